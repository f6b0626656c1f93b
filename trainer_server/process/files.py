"""Files that survive a kill at any point: written aside, fsynced, renamed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def fsync_directory(path: Path) -> None:
    """Makes renames inside `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replaces `path` by `text`; a reader sees the old or the new content, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def create_exclusive(path: Path, text: str) -> bool:
    """Creates `path` with `text`, durably, unless it exists.

    Of several processes that call this for one path, exactly one gets True. A reader sees the whole text or no file.

    Returns:
        Whether this call created the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        Path(aside).unlink(missing_ok=True)
    fsync_directory(path.parent)
    return True


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
