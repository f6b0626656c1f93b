"""Files that survive a kill at any point: written aside, fsynced, renamed. Only their owner may read them."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from trainer_server.common import Home
from trainer_server.wire import ConfigError

T = TypeVar("T")

_MOST_ID = 200
"""Characters of a server's id."""
_WRITING = 1.0
"""Seconds that a file which another process creates in place may be empty."""
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_PASSING = _NO_SPACE | {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})


def no_space(error: OSError) -> bool:
    """Whether a file could not be written because the disk, or the user's share of it, is full."""
    return error.errno in _NO_SPACE


def may_pass(error: OSError) -> bool:
    """Whether the same call may succeed later, without a change to the file: the disk is full, or the machine has no
    memory or file descriptor left now. A file that is gone or may not be read stays so."""
    return error.errno in _PASSING


def caused_by(error: BaseException | None, *numbers: int) -> bool:
    """Whether an error, or one that led to it, is an OSError of one of these numbers."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in numbers:
            return True
        error = error.__cause__ or error.__context__
    return False


class FileReader:
    """Reads small files, and parses each again only after it has changed."""

    def __init__(self) -> None:
        self._cache: dict[Path, tuple[tuple[int, int, int], Any]] = {}
        """By path: inode, time and size of the file that was read, and what it says or why it says nothing."""

    def read(self, path: Path, parse: Callable[[str], T]) -> T:
        """What a file says. The caller must not change the result: later calls return the same object.

        Args:
            path: The file.
            parse: Makes the result of the file's text. Always the same for one path. Raises ValueError for a damaged
                file.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is damaged, or may not be read; the message names neither file nor remedy.
            OSError: The file cannot be read now; see `may_pass`.
        """
        try:
            about = path.stat()
            signature = (about.st_ino, about.st_mtime_ns, about.st_size)
            entry = self._cache.get(path)
            if stat.S_ISFIFO(about.st_mode) or stat.S_ISCHR(about.st_mode):  # it may never end
                raise OSError(errno.EINVAL, "it is no file")
            if entry is None or entry[0] != signature:
                entry = signature, _try_parse(path.read_text(encoding="utf-8", errors="replace"), parse)
                self._cache[path] = entry
        except OSError as error:
            self._cache.pop(path, None)
            if error.errno in _MISSING:
                raise FileNotFoundError(error.errno, error.strerror, str(path)) from None
            if may_pass(error):
                raise
            raise ValueError(str(error)) from None
        if isinstance(entry[1], ValueError):
            raise ValueError(*entry[1].args)
        result: T = entry[1]
        return result

    def forget(self, directory: Path) -> None:
        """Forgets the files below a directory that is deleted."""
        for path in [path for path in self._cache if path.is_relative_to(directory)]:
            del self._cache[path]


def _try_parse(text: str, parse: Callable[[str], T]) -> T | ValueError:
    """What `parse` makes of a text, or the error that it raises: JSON may have another shape than expected."""
    try:
        return parse(text)
    except ValueError as error:
        return ValueError(str(error))
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        return ValueError(f"it has another form ({type(error).__name__}: {error})")


def fsync_directory(path: Path) -> None:
    """Makes renames inside `path` durable."""
    flush(path, os.O_DIRECTORY)


def flush(path: Path, flags: int = 0) -> None:
    """Returns when what was written to a file, or to a directory, survives a crash. flags: others of `os.open`."""
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_durably(fd: int, text: str) -> None:
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, text: str) -> None:
    """Replaces `path` by `text`, with mode 0600; a reader sees the old or the new content, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        _write_durably(fd, text)
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
        _write_durably(fd, text)
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
        _write_durably(fd, text)
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
        flush(file)
    fsync_directory(aside)
    if final.exists():
        raise FileExistsError(final)
    os.rename(aside, final)
    fsync_directory(final.parent)


def server_id(home: Home) -> str:
    """The id of the server of this home; its completions carry it. The first call makes it.

    Raises:
        ConfigError: Its file is damaged.
    """
    if not home.identity.exists():
        write_atomic(home.identity, json.dumps({"server_id": f"srv-{secrets.token_hex(8)}"}))
    try:
        server_id = json.loads(home.identity.read_text())["server_id"]
        if not isinstance(server_id, str) or not 0 < len(server_id) <= _MOST_ID:
            raise ValueError(f"{server_id!r:.50} is no id")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{home.identity} cannot be read as the id of this server ({type(error).__name__}: {error}). Put the file "
            'of a backup back, or write {"server_id": "…"} into it, with the `server_id` of a completion of this '
            "server. If the file is deleted, the server takes a new id, and does not train its earlier completions, "
            "which are then those of another server"
        ) from None
    return server_id
