"""A small disk that can be filled."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 512
_BLOCK = bytes(1 << 16)


class Disk:
    """A file system in memory, of MIB.

    Args:
        where: An empty directory.

    Attributes:
        unavailable_reason: Why it is none, and `where` a directory like others; None: it is mounted.
    """

    def __init__(self, where: Path) -> None:
        self._where = where
        where.mkdir(exist_ok=True)
        line = ["mount", "-t", "tmpfs", "-o", f"size={MIB}m,mode=0700", "tmpfs", str(where)]
        try:
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            self.unavailable_reason = done.stderr.strip() if done.returncode else None
        except OSError as error:
            self.unavailable_reason = str(error)

    @contextmanager
    def full(self) -> Iterator[None]:
        """Nothing can be written while the context is open."""
        filler = self._where / "filler"
        try:
            with filler.open("wb", buffering=0) as file:
                for size in (len(_BLOCK), 4096):
                    try:
                        while True:
                            file.write(_BLOCK[:size])
                    except OSError:
                        pass
            yield
        finally:
            filler.unlink(missing_ok=True)

    def unmount(self) -> None:
        """Frees it."""
        if self.unavailable_reason is None:
            subprocess.run(["umount", "-l", str(self._where)], check=True)
