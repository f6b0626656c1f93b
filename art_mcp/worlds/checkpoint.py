"""The files of a copy at a moment, to which it can be put back while a server runs in it."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from art_mcp.worlds.copying import Copier, copy_link
from art_mcp.worlds.files import remove_tree, walk

SHARED_MEMORY = "-shm"
"""Ends the name of a file that SQLite writes as memory, which need not change its times."""

_Signature = tuple[int, ...]


class Checkpoint:
    """What a directory has at this moment, kept beside it.

    A file that was written gets its content back, and keeps its inode if it still has one there: a server that holds
    it open sees the old content, as one that opens it does. What the server remembers is not put back.

    Args:
        directory: The directory.
        backup: Where its files are kept. It must not exist.

    Raises:
        OSError: Something cannot be read or written.
    """

    def __init__(self, directory: Path, backup: Path) -> None:
        self._directory = directory
        self._backup = backup
        Copier().tree(directory, backup)
        self._signatures = self._signatures_now()

    def restore(self) -> None:
        """Puts the directory back: contents, modes, times and links. Pipes, sockets and devices stay, or stay away.

        Raises:
            OSError: Something cannot be read, written or removed.
        """
        now = self._signatures_now()
        for name in now.keys() - self._signatures.keys():
            remove_tree(self._directory / name)
        written = [
            name
            for name, signature in self._signatures.items()
            if now.get(name) != signature or name.endswith(SHARED_MEMORY)
        ]
        for name in written:
            self._restore(name)
        for name in reversed([*self._signatures, "."]):  # after its entries, which change its time
            if (self._backup / name).is_dir() and not (self._backup / name).is_symlink():
                shutil.copystat(self._backup / name, self._directory / name)
        for name in written:
            self._signatures[name] = _signature(self._directory / name)

    def _restore(self, name: str) -> None:
        """Puts an entry back; of a directory, that it is there."""
        source, target = self._backup / name, self._directory / name
        if not os.path.lexists(source):  # neither file nor directory nor link: none was kept
            return
        kind = stat.S_IFMT(os.lstat(source).st_mode)
        if os.path.lexists(target):
            other_kind = stat.S_IFMT(os.lstat(target).st_mode) != kind
            if other_kind or kind == stat.S_IFLNK or not os.access(target, os.W_OK):
                remove_tree(target)
        if kind == stat.S_IFLNK:
            copy_link(str(source), target, os.readlink(source))
        elif kind == stat.S_IFDIR:
            target.mkdir(exist_ok=True)
        else:
            Copier().file(str(source), str(target))

    def _signatures_now(self) -> dict[str, _Signature]:
        """What tells of each entry below the directory whether it was written."""
        return {
            os.path.relpath(entry.path, self._directory): _signature(Path(entry.path))
            for entry in walk(self._directory)
        }


def _signature(path: Path) -> _Signature:
    """Kind and mode; of anything but a directory also size, inode and times. Whoever writes a file changes them: no
    program can set the time of change."""
    status = os.lstat(path)
    if stat.S_ISDIR(status.st_mode):
        return (status.st_mode,)
    return status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
