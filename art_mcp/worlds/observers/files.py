"""The observer of any file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from art_mcp.worlds.files import open_regular
from art_mcp.worlds.observers.observer import Show

LARGE = 16 * 1024 * 1024
"""Bytes from which on a file is known by its digest alone."""

HUGE = 1024 * 1024 * 1024
"""Bytes from which on a file is known by its size and the time when it was written: reading it would take too long. A
file of holes has any size at once."""


class FileObserver:
    """The observer of all files that no other one claims. It is asked last."""

    def claims(self, path: Path) -> bool:
        return path.is_file()

    def files(self, path: Path) -> Iterable[Path]:
        return [path]

    def observe(self, path: Path, before: Path, show: Show) -> Mapping[str, str]:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            executable = {"mode": "executable"} if status.st_mode & 0o100 else {}
            if status.st_size <= LARGE:
                return {"content": show(file.read()), **executable}
            size = f"{status.st_size:,} bytes"
            if status.st_size > HUGE:
                return {"content": f"{size}, not read, written at {status.st_mtime_ns} ns", **executable}
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"content": f"{size}, sha256 {digest[:32]}", **executable}
