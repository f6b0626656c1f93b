"""Opens and removes what a run may have made: no pipe blocks, no link is followed, no depth is too deep."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

LONGEST_LINE = 65_536
"""Bytes of a small file of one line, such as a `.git` file, that are read at most."""


def open_regular(path: str | Path) -> FileIO:
    """Opens a regular file, or a link to one, for reading, without waiting for whoever writes to a pipe.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    flags = os.O_RDONLY
    if sys.platform != "win32":
        flags |= os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return os.fdopen(descriptor, "rb", buffering=0)


def read_line(path: Path) -> str:
    """The text of a small file. Raises OSError if it cannot be read, is long, or is no regular file."""
    with open_regular(path) as file:
        data = file.read(LONGEST_LINE + 1)
    if len(data) > LONGEST_LINE:
        raise OSError(errno.EFBIG, f"longer than {LONGEST_LINE:,} bytes", str(path))
    return data.decode(errors="replace").strip()


def walk(directory: Path) -> Iterator[os.DirEntry[str]]:
    """All that is below a directory, each directory before what is in it. No link is followed, at any depth."""
    waiting = [str(directory)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                yield entry


def remove_tree(path: Path) -> None:
    """Removes a file or directory, however deep, also with directories that may not be written.

    Each directory is moved to the top before it is read. So no path becomes too long, no call is nested in another, and
    no link is followed.

    Raises:
        OSError: Something cannot be removed, or a process goes on writing there.
    """
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    os.chmod(path, stat.S_IRWXU)
    top = path / secrets.token_hex(8)
    top.mkdir()
    waiting, numbers = [path], itertools.count()
    while waiting:
        directory = waiting.pop()
        with os.scandir(directory) as entries:
            children = [entry for entry in entries if entry.path != str(top)]
        for entry in children:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            to = top / str(next(numbers))
            try:
                os.rename(entry.path, to)
            except PermissionError:
                os.chmod(entry.path, stat.S_IRWXU)
                os.rename(entry.path, to)
            if not os.access(to, os.R_OK | os.W_OK | os.X_OK):
                os.chmod(to, stat.S_IRWXU)
            waiting.append(to)
        if directory != path:
            os.rmdir(directory)
    top.rmdir()
    path.rmdir()
