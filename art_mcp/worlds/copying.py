"""Copies trees of files: by shared blocks where the file system can, else byte by byte. Modes and times are kept."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_FICLONE = 0x40049409
"""The ioctl of Linux that lets a file share the blocks of another one until either is written (btrfs, XFS)."""

_CANNOT = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ETXTBSY}
"""Errors of the ioctl that mean: not on this file system, or not between these two."""

Special = Callable[[os.DirEntry[str], Path], bool]
"""Copies an entry of a directory to a path in its own way. False: it did not, and the entry is copied as any other."""


@dataclass(slots=True)
class Copier:
    """Copies files and trees, and counts what it did.

    Hard links are for files that no program writes in place. A program that opened a linked file for writing would
    change every copy, so that links are made only where the caller says so, and only of files without write permission.

    Args:
        special: Copies some entries in its own way.
        linkable: Whether a file may be a hard link.
        reflinks: Whether files can share blocks; None: not tried yet. One failure stands for all files, as all of them
            go to the same file system.
        files: Number of files that were copied.
        bytes: Their size.
        shared: Number of files that share blocks with the source.
        linked: Number of files that are hard links.
        skipped: Sockets, pipes and devices, which are not copied.
    """

    special: Special = lambda entry, target: False
    linkable: Callable[[str], bool] = lambda path: False
    reflinks: bool | None = None
    files: int = 0
    bytes: int = 0
    shared: int = 0
    linked: int = 0
    skipped: list[str] = field(default_factory=list)

    def tree(self, source: Path, target: Path) -> None:
        """Copies a file, or a directory with all that is in it. The target must not exist.

        Raises:
            OSError: Something cannot be read or written.
        """
        if not source.is_dir():
            self.file(str(source), str(target))
            return
        target.mkdir()
        with os.scandir(source) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                to = target / entry.name
                if self.special(entry, to):
                    continue
                if entry.is_symlink():
                    copy_link(entry.path, to, os.readlink(entry.path))
                elif entry.is_dir():
                    self.tree(Path(entry.path), to)
                elif entry.is_file():
                    self.file(entry.path, str(to))
                else:
                    self.skipped.append(entry.path)
        shutil.copystat(source, target)  # after its entries, which change its time

    def file(self, source: str, target: str) -> None:
        """Copies a regular file with its mode and times."""
        status = os.stat(source)
        self.files += 1
        self.bytes += status.st_size
        if not status.st_mode & 0o222 and self.linkable(source):
            try:
                os.link(source, target)
                self.linked += 1
                return
            except OSError:  # too many links, or another file system
                pass
        if self.reflinks is not False and self._reflink(source, target):
            self.shared += 1
        else:
            shutil.copyfile(source, target)
        shutil.copystat(source, target)

    def _reflink(self, source: str, target: str) -> bool:
        """Lets the target share the source's blocks. False: that is not possible here."""
        if sys.platform != "linux":
            return False
        import fcntl

        try:
            with open(source, "rb") as given, open(target, "wb") as made:
                fcntl.ioctl(made.fileno(), _FICLONE, given.fileno())
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


def remove_tree(path: Path) -> None:
    """Removes a file or directory, also with directories that may not be written."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        for directory in _directories(path):
            os.chmod(directory, stat.S_IRWXU)
        shutil.rmtree(path)


def _directories(path: Path) -> Iterator[str]:
    """The directory and those below it, from the top: each can be read once the one before is writable."""
    yield str(path)
    with os.scandir(path) as entries:
        below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    for directory in below:
        yield from _directories(Path(directory))
