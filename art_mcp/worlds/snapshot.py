"""The snapshot of a world: one consistent copy of the originals, of which all other copies are made."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from art_mcp.worlds.alias import WORLD, Aliases
from art_mcp.worlds.copying import Copier, copy_link
from art_mcp.worlds.database import SIDECARS, copy_database, is_database
from art_mcp.worlds.files import remove_tree, walk
from art_mcp.worlds.place import Place
from art_mcp.worlds.repository import copy_git, is_git_directory
from trainer_server.wire import ConfigError

log = logging.getLogger("art_mcp")

_TRIES = 3
"""Files may vanish while a tree is copied, such as when git packs its objects. Then the copy begins again."""


def take(places: Sequence[Place], target: Path, check: Callable[[], None] = lambda: None) -> tuple[Copier, list[str]]:
    """Copies the originals. They are only read.

    Databases are copied as of one moment, and repositories with all objects that their references name. Files beside
    them are copied one after another, as `cp` does: files of one program that writes meanwhile may not fit together.
    Absolute symbolic links into an original become relative ones, into the copy.

    Args:
        places: The originals.
        target: The directory in which each gets its name.
        check: Called before each file and block. It raises to end the copying.

    Returns:
        The counts, and remarks about what is not in the copy.

    Raises:
        ConfigError: An original cannot be copied.
    """
    for attempt in range(_TRIES):
        copier = Copier(check=check)
        notes: list[str] = []
        try:
            for place in places:
                _Snapshot(place, places, target, copier, notes).take()
        except FileNotFoundError as error:
            if attempt + 1 < _TRIES:
                for place in places:
                    remove_tree(target / place.name)
                continue
            raise ConfigError(f"the world cannot be copied, as its files change meanwhile: {error}") from None
        except OSError as error:
            raise ConfigError(f"the world cannot be copied: {error}") from None
        notes += [f"{path} is no file: it is not in the copies" for path in copier.skipped_paths]
        return copier, notes
    raise AssertionError  # the last attempt returns or raises


class _Snapshot:
    """The snapshot of one place."""

    def __init__(self, place: Place, places: Sequence[Place], target: Path, copier: Copier, notes: list[str]) -> None:
        self._place = place
        self._places = places
        self._target = target
        self._copier = copier
        self._notes = notes

    def take(self) -> None:
        original, to = self._place.original, self._target / self._place.name
        self._copier.special = self._special
        if original.is_dir() and is_git_directory(original):
            self._repository(original, to)
        elif original.is_file() and is_database(original):
            self._database(original, to)
        else:
            self._copier.tree(original, to)

    def _special(self, entry: os.DirEntry[str], to: Path) -> bool:
        """Copies links, repositories and databases."""
        path = Path(entry.path)
        if entry.is_symlink() and not self._leads_to_git(path):
            copy_link(entry.path, to, self._link(path, to))
        elif (entry.name == ".git" and (entry.is_dir() or entry.is_file())) or is_git_directory(path):
            self._repository(path, to)
        elif entry.name.endswith(SIDECARS) and _is_sidecar(path):
            pass  # what it has is in the copy of its database
        elif entry.is_file() and is_database(path):
            self._database(path, to)
        else:
            return False
        return True

    def _leads_to_git(self, path: Path) -> bool:
        """Whether a link is a `.git` whose repository is out of the world: a commit in a copy would be one there."""
        if path.name != ".git" or self._in_copy(Path(os.path.realpath(path))):
            return False
        return path.is_file() or is_git_directory(path)

    def _repository(self, path: Path, to: Path) -> None:
        """Copies a repository, with remarks about its remotes."""
        aliases, root = Aliases(self._places), str(self._target.parent)

        def replace_paths(text: str) -> str:
            return aliases.originals(text, root)

        self._notes += copy_git(path, to, self._place.original, self._copier, self._in_copy, replace_paths)

    def _database(self, path: Path, to: Path) -> None:
        """Copies a database; as bytes, with a remark, if it only looks like one."""
        try:
            copy_database(path, to)
        except sqlite3.Error as error:
            remove_tree(to)
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise ConfigError(
                    f"the database {path} cannot be copied: {error}. If a process is writing to it, wait for its end"
                ) from None
            self._copier.file(str(path), str(to))
            self._notes.append(f"{path} is no database that SQLite can read ({error}): it is copied as any file")
        else:
            self._copier.files += 1
            self._copier.bytes += to.stat().st_size

    def _link(self, path: Path, to: Path) -> str:
        """The target of a symbolic link in the copy."""
        link, real = os.readlink(path), Path(os.path.realpath(path))
        if not os.path.isabs(link) and self._stays(path.parent, link):
            return link
        # A link that leads through others is made anew: to where it really leads. In the copy, those lead elsewhere.
        if inside := self._in_copy(real):
            return os.path.relpath(inside, to.parent)
        if any(place.original.is_relative_to(real) for place in self._places):  # through it a run would write originals
            self._notes.append(f"the link {path} leads to {real}, around the world: in the copies it leads to {WORLD}")
            return os.path.relpath(self._target, to.parent)
        self._notes.append(
            f"the link {path} leads to {real}, out of the world: what is written there is in no copy; "
            "--world with that path copies it too"
        )
        return str(real)

    def _stays(self, directory: Path, link: str) -> bool:
        """Whether each step of a relative link is in the place, and is no link itself."""
        at = directory
        for part in Path(link).parts:
            at = at.parent if part == ".." else at / part
            if not at.is_relative_to(self._place.original) or at.is_symlink():
                return False
        return True

    def _in_copy(self, path: Path) -> Path | None:
        """Where a path of an original is in the copy. None: it is of no place."""
        for place in self._places:
            if path.is_relative_to(place.original):
                return self._target / place.name / path.relative_to(place.original)
        return None


def _is_sidecar(path: Path) -> bool:
    return any(
        path.name.endswith(suffix) and is_database(path.with_name(path.name.removesuffix(suffix)))
        for suffix in SIDECARS
    )


_Signature = tuple[int, int, int, int, int]


class Seal:
    """Takes the permission to write from a snapshot, and knows whether it was written nevertheless: as its owner, or as
    root.

    A digest of contents would have to be read before each copy. The system keeps the time of each change, which no
    program can set.

    Args:
        directory: The snapshot. Nobody may work in it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._modes: dict[str, int] = {}
        paths = [str(directory), *(entry.path for entry in walk(directory))]
        for path in paths:
            status = os.lstat(path)
            if not stat.S_ISLNK(status.st_mode):
                self._modes[os.path.relpath(path, directory)] = stat.S_IMODE(status.st_mode)
                os.chmod(path, stat.S_IMODE(status.st_mode) & ~0o222)
        self._signatures = {path: self._signature(path) for path in paths}

    def check(self) -> None:
        """Raises OSError if the snapshot is not as it was."""
        for path, signature in self._signatures.items():
            try:
                same = self._signature(path) == signature
            except OSError:
                same = False
            if not same:
                raise OSError(
                    f"{path} was written, which is of the snapshot that all runs begin with: a server reached it by a "
                    "path of its own. Start again, and give the server a container of its own"
                )

    def restore(self, copy: Path) -> None:
        """Gives the files of a copy of the snapshot the modes that the snapshot had."""
        for name, mode in self._modes.items():
            if mode & 0o222:
                os.chmod(copy / name, mode)

    def _signature(self, path: str) -> _Signature:
        status = os.lstat(path)
        return status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns
