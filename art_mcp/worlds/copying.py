"""Copies trees of files: by shared blocks where the file system can, else byte by byte. Modes and times are kept."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from art_mcp.worlds.files import open_regular

_FICLONE = 0x40049409
"""The ioctl of Linux that lets a file share the blocks of another one until either is written (btrfs, XFS)."""

_CANNOT = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ETXTBSY}
"""Errors of the ioctl that mean: not on this file system, or not between these two."""

_SEEK_DATA, _SEEK_HOLE = getattr(os, "SEEK_DATA", -1), getattr(os, "SEEK_HOLE", -1)
"""What `lseek` takes to find what was written of a file. -1: the system has no such thing, and says EINVAL."""

_BLOCK = 1024 * 1024
"""Bytes that are read at once."""

Special = Callable[[os.DirEntry[str], Path], bool]
"""Copies an entry of a directory to a path in its own way. False: it did not, and the entry is copied as any other."""


@dataclass(slots=True)
class Copier:
    """Copies files and trees, and counts what it did.

    None is a hard link: a run that gave itself the permission to write would change every copy by it.

    Args:
        special: Copies some entries in its own way.
        check: Called before each file and block. It raises to end the copying.
        reflinks: Whether files can share blocks; None: not tried yet. One failure stands for all files, as all of them
            go to the same file system.
        files: Number of files that were copied.
        bytes: Their size.
        shared_count: Number of files that share blocks with the source.
        skipped_paths: Sockets, pipes and devices, which are not copied.
    """

    special: Special = lambda entry, target: False
    check: Callable[[], None] = lambda: None
    reflinks: bool | None = None
    files: int = 0
    bytes: int = 0
    shared_count: int = 0
    skipped_paths: list[str] = field(default_factory=list)

    def tree(self, source: Path, target: Path) -> None:
        """Copies a file, or a directory with all that is in it. The target must not exist.

        Raises:
            OSError: Something cannot be read or written.
        """
        if not source.is_dir():
            self.file(str(source), str(target))
            return
        target.mkdir()
        directories = [(source, target)]
        for directory, target_path in directories:  # those that are found on the way are added
            with os.scandir(directory) as entries:
                order = sorted(entries, key=lambda entry: entry.name)
            for entry in order:
                to = target_path / entry.name
                if self.special(entry, to):
                    continue
                if entry.is_symlink():
                    copy_link(entry.path, to, os.readlink(entry.path))
                elif entry.is_dir():
                    to.mkdir()
                    directories.append((Path(entry.path), to))
                elif entry.is_file():
                    self.file(entry.path, str(to))
                else:
                    self.skipped_paths.append(entry.path)
        for directory, target_path in reversed(directories):  # after its entries, which change its time
            shutil.copystat(directory, target_path)

    def file(self, source: str, target: str) -> None:
        """Copies a regular file with its mode and times. Its holes are holes of the copy."""
        self.check()
        with open_regular(source) as reader:
            status = os.fstat(reader.fileno())
            self.files += 1
            self.bytes += status.st_size
            with open(target, "wb", buffering=0) as writer:
                if self.reflinks is not False and self._reflink(reader, writer):
                    self.shared_count += 1
                else:
                    self._blocks(reader, writer, status.st_size)
        shutil.copystat(source, target)

    def _blocks(self, source: FileIO, target: FileIO, size: int) -> None:
        """Copies what was written of a file."""
        at = 0
        while at < size:
            try:
                at = os.lseek(source.fileno(), at, _SEEK_DATA)
                end = os.lseek(source.fileno(), at, _SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole from here on
                    break
                if error.errno != errno.EINVAL:
                    raise
                end = size  # the file system knows no holes
            source.seek(at)
            target.seek(at)
            while at < end and (data := source.read(min(_BLOCK, end - at))):
                self.check()
                target.write(data)
                at += len(data)
            if at < end:  # it became shorter meanwhile
                break
        target.truncate(max(size, target.tell()))

    def _reflink(self, source: FileIO, target: FileIO) -> bool:
        """Lets the target share the source's blocks. False: that is not possible here."""
        if sys.platform != "linux":
            return False
        import fcntl

        try:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            self.reflinks = False
            return False
        self.reflinks = True
        return True


def copy_link(source: str, target: Path, leads: str) -> None:
    """Makes a symbolic link with the times of another one. leads: where it leads."""
    os.symlink(leads, target)
    shutil.copystat(source, target, follow_symlinks=False)
