"""Copies of a home, made while its server runs, and homes made of such copies.

Each file is copied whole: databases as they are at one moment, by SQLite's own means; weights, which never change, by
hard links where the file system allows it, but never from a copy into a new home. The order makes the copy one that the
server could have left behind when it was killed: jobs before the versions that they made, and before the completions
that they use; the ledger before the archive, to which its completions move. A restored server goes on from there as
after a crash.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from trainer_server.common import Home
from trainer_server.process.files import flush, fsync_directory, write_atomic
from trainer_server.wire import ConfigError

log = logging.getLogger("trainer_server")

MANIFEST = "backup.json"
_LEFT_OUT = {"lock", "tokens.lock", "server.json", "trainer.json", "connection.json", "exports", "logs", MANIFEST}
"""What a running server has for itself; the token of another server, which `connect` wrote; and logs."""
_WEIGHTS_SUFFIX = ".safetensors"
_PAGES = 8192
"""Pages of a database between two lines of progress."""

Progress = Callable[[str], None]


def back_up(home: Home, target: Path, progress: Progress = lambda _: None) -> dict[str, int]:
    """Copies a home into a directory. The directory is there with all files, or not at all. What is neither a file nor
    a directory, such as a pipe, is left out, and logged.

    Args:
        home: The home. Its server may run.
        target: The directory, which must not exist, or be empty.
        progress: Gets a line for each part.

    Returns:
        Size in bytes by path.

    Raises:
        ConfigError: There is no home, or the directory exists or cannot be written.
    """
    if not home.root.is_dir():
        raise ConfigError(f"{home.root} is no home of a server: name it with --home or ART_HOME")
    _refuse_existing(target)
    if target.absolute().is_relative_to(home.root):
        raise ConfigError(f"{target} is inside of {home.root}: name a directory elsewhere, on another disk at best")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir(mode=0o700)
        for name in _in_order(home.root):
            progress(f"copying {name}")
            source, copy = home.root / name, partial / name
            if source.is_dir():
                _copy_tree(source, copy, link=True, root=home.root)
            elif name.endswith(".sqlite") and _is_file(source):
                _copy_database(source, copy, progress)
            else:
                _copy_file(source, copy, link=True)
        sizes = _sizes(partial)
        progress(f"computing the digests of {len(sizes)} files")
        manifest = {
            "format": 2,
            "created": time.time(),
            "home": str(home.root),
            "files": sizes,
            "sha256": {path: _digest(partial / path) for path in sizes},
        }
        write_atomic(partial / MANIFEST, json.dumps(manifest, indent=1))
        partial.rename(target)
        fsync_directory(target.parent)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"{home.root} could not be copied to {target}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return sizes


def restore(source: Path, home: Home, progress: Progress = lambda _: None) -> dict[str, int]:
    """Makes a home of a copy, whose files stay its own. The home is there with all files, or not at all.

    Args:
        source: The directory that `back_up` made. It stays as it is.
        home: The new home, which must not exist, or be empty.
        progress: Gets a line for each part.

    Returns:
        Size in bytes by path.

    Raises:
        ConfigError: The copy is not whole, or has changed, or the home exists or cannot be written.
    """
    sizes, digests = _check(source, progress)
    _refuse_existing(home.root)
    partial = home.root.with_name(f".{home.root.name}.{os.getpid()}.partial")
    try:
        home.root.parent.mkdir(parents=True, exist_ok=True)
        progress(f"copying {len(sizes)} files")
        _copy_tree(source, partial, link=False, root=source)
        (partial / MANIFEST).unlink()
        for path, digest in digests.items():
            progress(f"checking {path}")
            if _digest(partial / path) != digest:
                raise ConfigError(
                    f"{source} is not as `backup` left it: the content of {path} has changed (SHA-256). Take another "
                    "backup, or restore an earlier one"
                )
        if home.root.exists():
            home.root.rmdir()
        partial.rename(home.root)
        fsync_directory(home.root.parent)
    except OSError as error:
        raise ConfigError(f"{source} could not be copied to {home.root}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    home.make_private()
    return sizes


def _refuse_existing(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} is there already, and is not overwritten: name another directory")


def _in_order(root: Path) -> list[str]:
    """Names in a home, in the order in which they are copied; see the top of this file."""
    names = [path.name for path in root.iterdir() if path.name not in _LEFT_OUT and not _passing((path.name,))]
    last = {"policies": 1, "rollouts.sqlite": 2, "ledger.sqlite": 3, "archive": 4}
    return sorted(names, key=lambda name: (-1 if name == "jobs" else last.get(name, 0), name))


def _passing(parts: tuple[str, ...]) -> bool:
    """Whether a path in a home, in parts, is being written or deleted, or belongs to an open database. Policies may
    have names such as `staging` and `prod-wal`."""
    match parts:
        case (name,) if name.endswith((".sqlite-wal", ".sqlite-shm", ".sqlite-journal")):
            return True
        case ("policies", _, "staging"):
            return True
    return parts[-1].startswith(".")


def _copy_database(source: Path, copy: Path, progress: Progress) -> None:
    """Copies a database as it is now. Writers do not wait: what they write meanwhile is not in the copy."""

    def report_pages(_status: int, remaining: int, pages: int) -> None:
        if remaining and pages > _PAGES:
            progress(f"copying {source.name}: {1 - remaining / pages:.0%}")

    os.close(os.open(copy, os.O_CREAT | os.O_EXCL, 0o600))
    with closing(sqlite3.connect(source, timeout=60)) as db, closing(sqlite3.connect(copy)) as other:
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()  # from now on it sees one state
        db.backup(other, pages=_PAGES, progress=report_pages)
        other.execute("PRAGMA journal_mode=DELETE")  # one file, complete in itself; the server changes it back
        _check_database(other, copy)
    flush(copy)


def _check_database(db: sqlite3.Connection, path: Path) -> None:
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(f"{path.name} is damaged: {verdict}")


def _copy_tree(source: Path, copy: Path, *, link: bool, root: Path, above: frozenset[Path] = frozenset()) -> None:
    """Copies a directory, and what its links lead to. What is deleted meanwhile is left out; a version of a policy then
    as a whole.

    Args:
        source: The directory, in `root`.
        copy: Its copy, which must not exist.
        link: Whether weights get hard links.
        root: The home.
        above: The directories that it is in, without links.

    Raises:
        OSError: A link leads to nothing, or to a directory that it is in; a file cannot be copied.
    """
    above |= {source.resolve()}
    copy.mkdir(mode=0o700)
    for path in sorted(source.iterdir()):
        if _passing(path.relative_to(root).parts):
            continue
        try:
            if path.is_dir():
                if path.resolve() in above:
                    raise OSError(f"{path} is a link to a directory that it is in: remove it")
                _copy_tree(path, copy / path.name, link=link, root=root, above=above)
            else:
                _copy_file(path, copy / path.name, link=link)
        except FileNotFoundError:
            if path.exists() or path.is_symlink():  # a link that leads to nothing: its disk may be missing
                raise
    if not source.exists():
        shutil.rmtree(copy)
        raise FileNotFoundError(source)
    fsync_directory(copy)


def _is_file(path: Path) -> bool:
    """Whether a path is that of a file: to read a pipe or a device may never end."""
    if stat.S_ISREG(path.stat().st_mode):
        return True
    log.warning("left out: %s is neither a file nor a directory", path)
    return False


def _copy_file(source: Path, copy: Path, *, link: bool) -> None:
    if not _is_file(source):
        return
    if link and source.suffix == _WEIGHTS_SUFFIX:
        try:
            os.link(source.resolve(), copy)
            return
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without hard links
            pass
    # O_NONBLOCK: a pipe that took the place of the file since just now is not waited for.
    with (
        open(os.open(source, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader,
        open(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as writer,
    ):
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.flush()
        os.fsync(writer.fileno())
    shutil.copystat(source, copy)  # retention goes by the time of change
    copy.chmod(0o600)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sizes(root: Path) -> dict[str, int]:
    return {path.relative_to(root).as_posix(): path.stat().st_size for path in _files(root)}


def _files(root: Path) -> Iterator[Path]:
    return (path for path in sorted(root.rglob("*")) if path.is_file() and path.name != MANIFEST)


def _check(source: Path, progress: Progress) -> tuple[dict[str, int], dict[str, str]]:
    """The sizes and digests of the files that a copy should have; no digests: an earlier release made it. Raises
    ConfigError for a copy that is not whole."""
    try:
        manifest = json.loads((source / MANIFEST).read_text())
        expected_sizes = {str(path): int(size) for path, size in manifest["files"].items()}
        digests = {path: str(manifest["sha256"][path]) for path in expected_sizes} if manifest["format"] != 1 else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{source} is no backup: its {MANIFEST} cannot be read ({error!r})") from None
    sizes = _sizes(source)
    paths = expected_sizes.keys() | sizes.keys()
    if wrong := sorted(path for path in paths if expected_sizes.get(path) != sizes.get(path)):
        path = wrong[0]
        raise ConfigError(
            f"{source} is not as `backup` left it: {path} has {sizes.get(path, 'no')} bytes and should have "
            f"{expected_sizes.get(path, 'none')}, and {len(wrong) - 1} more files differ. Take another backup"
        )
    for path in expected_sizes:
        if path.endswith(".sqlite"):
            progress(f"checking {path}")
            try:
                with closing(sqlite3.connect(f"{(source / path).absolute().as_uri()}?mode=ro", uri=True)) as db:
                    _check_database(db, source / path)
            except sqlite3.Error as error:
                raise ConfigError(f"{source / path} cannot be restored: {error}. Take another backup") from None
    return expected_sizes, digests
