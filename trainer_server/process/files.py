"""Files that survive a kill at any point: written aside, fsynced, renamed. Only their owner may read them."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from pathlib import Path

_WRITING = 1.0
"""Seconds that a file which another process creates in place may be empty."""


def fsync_directory(path: Path) -> None:
    """Makes renames inside `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, text: str) -> None:
    """Replaces `path` by `text`, with mode 0600; a reader sees the old or the new content, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def create_exclusive(path: Path, text: str) -> bool:
    """Creates `path` with `text` and mode 0600, durably, unless it exists.

    Of several processes that call this for one path, exactly one gets True. A reader sees the whole text or no file;
    on a file system without hard links, a reader may see an empty file for a moment, but not after this has returned.

    Returns:
        Whether this call created the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(aside, path)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOSPC, errno.EDQUOT):
                raise
            _create_in_place(path, text)
    except FileExistsError:
        _wait_for_content(path)
        return False
    finally:
        Path(aside).unlink(missing_ok=True)
    fsync_directory(path.parent)
    return True


def _create_in_place(path: Path, text: str) -> None:
    """Creates a file where there are no hard links. Raises FileExistsError if it exists."""
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _wait_for_content(path: Path) -> None:
    """Waits a moment for a file that another process is creating in place; one that was killed then leaves it empty."""
    deadline = time.monotonic() + _WRITING
    while time.monotonic() < deadline and path.exists() and not path.stat().st_size:
        time.sleep(0.01)


def publish_directory(aside: Path, final: Path) -> None:
    """Makes a finished directory visible under its final name in one step. Raises FileExistsError if that is taken.

    All files in it are fsynced first, so that after a power cut the directory is whole or absent.
    """
    for file in aside.iterdir():
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    fsync_directory(aside)
    if final.exists():
        raise FileExistsError(final)
    os.rename(aside, final)
    fsync_directory(final.parent)
