"""A world: originals that are never written, and copies of them, one for each run."""

from __future__ import annotations

import logging
import math
import os
import platform
import re
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from art_mcp.worlds.alias import WORLD, Aliases, Translation
from art_mcp.worlds.change import Change
from art_mcp.worlds.checkpoint import Checkpoint
from art_mcp.worlds.copying import Copier
from art_mcp.worlds.files import remove_tree, walk
from art_mcp.worlds.git.environment import git_environment, older_than_needed
from art_mcp.worlds.observers.database import DatabaseObserver
from art_mcp.worlds.observers.files import FileObserver
from art_mcp.worlds.observers.observer import Observer, Unread, render_value
from art_mcp.worlds.observers.repository import RepositoryObserver
from art_mcp.worlds.place import Worlds, places_of
from art_mcp.worlds.repository import is_git_directory
from art_mcp.worlds.scratch import Scratch
from art_mcp.worlds.snapshot import Seal, take
from art_mcp.worlds.state import State, StateReader, changes
from trainer_server.common import Home
from trainer_server.common.home import make_directory
from trainer_server.wire import ConfigError

log = logging.getLogger("art_mcp")

SLOW = 1.0
"""Seconds that a copy may take without a remark."""

OBSERVERS: tuple[Observer, ...] = (RepositoryObserver(), DatabaseObserver(), FileObserver())
"""In the order in which they are asked whether they claim a file or directory. The last one claims every file."""


class World:
    """Directories, files, SQLite databases and Git repositories that a server works on.

    `open` takes a snapshot. Copies are made of the snapshot, so that all runs begin alike, whatever happens to the
    originals meanwhile. Threads may make and remove copies at the same time.

    `places` has the originals. `made` and `removed` count copies. `notes` has remarks for a person, such as links that
    lead out of the world.

    Args:
        paths: The originals: `PATH`, or `NAME=PATH`.
        observers: Observers of your own, which come before those that are included.
        scratch: Directory of the copies of all processes. None takes the cache.

    Raises:
        ConfigError: A path or a name is invalid, or this is Windows.
    """

    def __init__(self, paths: Worlds, observers: Sequence[Observer] = (), scratch: Path | None = None) -> None:
        if platform.system() == "Windows":  # paths of copies are found in texts by the rules of POSIX
            raise ConfigError(
                "worlds cannot be copied on Windows: run this in WSL2, or reset the server before each run (--reset, "
                "reset=)"
            )
        self.places = places_of(paths)
        self.aliases = Aliases(self.places)
        self.notes: list[str] = []
        self.made = self.removed = 0
        self._observers = (*observers, *OBSERVERS)
        self._base = (scratch or Home.find().cache / "worlds").expanduser().resolve()
        for place in self.places:
            if self._base.is_relative_to(place.original) or place.original.is_relative_to(self._base):
                raise ConfigError(
                    f"the world {place.original} and the directory of its copies, {self._base}, overlap: set ART_CACHE "
                    "to a directory elsewhere"
                )
        self._scratch: Scratch | None = None
        self._lock = threading.Lock()
        self._opening = threading.RLock()
        self._counts = Copier()
        self._snapshot_path: Path | None = None
        self._seal: Seal | None = None
        self._rooted: list[Path] = []
        self._stop = threading.Event()
        self._reflinks: bool | None = None
        self._state: State = {}
        self._seconds = 0.0
        self.fastest_start = math.inf
        """Seconds that a copy and the start of its server took, at best: a first one may download the server."""

    def open(self) -> None:
        """Takes the snapshot.

        Raises:
            ConfigError: An original cannot be copied, or the directory of copies cannot be made.
        """
        with self._opening:
            self._open()

    def _open(self) -> None:
        make_directory(self._base, "ART_CACHE", mode=0o700)
        self._scratch = Scratch(self._base)
        try:
            self._snapshot_path = self._scratch.path / secrets.token_hex(16)
            directory = self._snapshot / WORLD[1:]
            directory.mkdir(parents=True)
            self._counts, self.notes = take(self.places, directory, self._check)
            self._rooted = _naming(self._snapshot)
            self._seal = Seal(self._snapshot)
            start = time.monotonic()
            copy = self.copy()
            self._seconds = time.monotonic() - start
            self._state = copy.reader.state()
            self.remove(copy)
            self._check()
            old = older_than_needed() if any(place.kind == "repository" for place in self.places) else None
            self.notes += [old] if old else []
            self.notes += [
                f"{WORLD}/{name} cannot be observed, so changes of it are not seen: {path_state.values['unreadable']}"
                for name, path_state in self._state.items()
                if "unreadable" in path_state.values
            ]
            self.notes += [
                f"changes of the {what} in {WORLD}/{name} are not seen: {value}"
                for name, path_state in self._state.items()
                for what, value in path_state.values.items()
                if isinstance(value, Unread) and what != "unreadable"
            ]
        except BaseException:
            self.close()
            raise
        self.made = self.removed = 0
        if self._seconds > SLOW:
            self.notes.append(f"a copy of the world takes {self._seconds:.1f} s: {self}")
        for note in self.notes:
            log.warning("%s", note)

    def close(self) -> None:
        """Removes the snapshot and all copies. A snapshot that another thread takes now ends with an error."""
        self._stop.set()
        with self._opening:
            if self._scratch:
                self._scratch.close()
                self._scratch = self._snapshot_path = None

    def _check(self) -> None:
        """Raises OSError if the world was closed meanwhile."""
        if self._stop.is_set():
            raise OSError("the world was closed")

    def copy(self) -> Copy:
        """Makes a copy.

        Raises:
            OSError: The disk is full, the world was closed, or its snapshot was written.
        """
        root = self._snapshot.with_name(secrets.token_hex(16))
        copier = Copier(check=self._check, reflinks=self._reflinks)
        assert self._seal
        try:
            copier.tree(self._snapshot, root)
            self._seal.check()  # after it was read: whatever was written before or meanwhile is seen
            self._seal.restore(root)
            for name in self._rooted:
                _replace(root / name, str(self._snapshot), str(root))
            copy = Copy(self, root, {})
            copy.begin(copy.reader.restamp_state(self._state))
        except BaseException:
            _removed(root)
            raise
        with self._lock:
            self.made += 1
            self._reflinks = copier.reflinks
        return copy

    def remove(self, copy: Copy) -> None:
        """Removes a copy. The processes that work on it must have ended."""
        if _removed(copy.root):
            with self._lock:
                self.removed += 1

    @property
    def in_use(self) -> int:
        """Number of copies that are there."""
        return self.made - self.removed

    def reader(self, copy: Copy) -> StateReader:
        """Observes a copy."""
        return StateReader(
            copy.directory, self._snapshot / WORLD[1:], self._observers, copy.show, stopped=self._stop.is_set
        )

    @property
    def _snapshot(self) -> Path:
        """The root of the snapshot. No run can guess its name. Raises OSError if the world is not open."""
        if self._snapshot_path is None:
            raise FileNotFoundError("the world is not open")
        return self._snapshot_path

    def __str__(self) -> str:
        places = ", ".join(f"{WORLD}/{place.name} ({place.kind} {place.original})" for place in self.places)
        return f"{places}; {self._counts.files:,} files, {self._counts.bytes / 1e6:,.1f} MB"


def _naming(root: Path) -> list[Path]:
    """The settings of repositories in which the path of the snapshot stands, relative to it."""
    paths = [Path(entry.path) for entry in walk(root) if entry.name == "config" and entry.is_file()]
    return [
        path.relative_to(root)
        for path in paths
        if is_git_directory(path.parent) and str(root).encode() in path.read_bytes()
    ]


def _replace(path: Path, before: str, after: str) -> None:
    """Replaces a text in a file, which keeps its times."""
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(before.encode(), after.encode()))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _removed(path: Path) -> bool:
    """Removes a copy. False: it cannot be removed, which is logged. The next start of any process tries it again."""
    try:
        remove_tree(path)
    except OSError as error:
        log.warning("the copy %s cannot be removed now: %s", path, error)
        return False
    return True


_DIVIDERS = re.compile(r"""[\s=:,;'"]+""")
"""What stands between paths in a word of a command."""


class Copy:
    """A copy of a world, for one run.

    Args:
        world: The world.
        root: Its root. The place NAME is at `ROOT/world/NAME`.
        state: What it has.
    """

    def __init__(self, world: World, root: Path, state: State) -> None:
        self.root = root
        self.directory = root / WORLD[1:]
        self.translation = Translation(str(root), world.aliases)
        self._state = state
        self._world = world
        self._checkpoint: Checkpoint | None = None

    @property
    def reader(self) -> StateReader:
        """Observes the copy."""
        return self._world.reader(self)

    def begin(self, state: State | None = None) -> None:
        """Notes the state from which `changes` counts. None observes it: what a server did when it started is then no
        change of the run."""
        self._state = self.reader.state(self._state) if state is None else state

    def changes(self) -> list[Change]:
        """What differs from the state that `begin` noted."""
        return changes(self._state, self.reader.state(self._state))

    def rewind(self) -> None:
        """Notes at the first time what the copy has, and puts it back later. A server may run in it, but must be idle.

        Raises:
            OSError: It cannot be read, or not be put back.
        """
        if self._checkpoint is None:
            self._checkpoint = Checkpoint(self.directory, self.root / "checkpoint")
        else:
            self._checkpoint.restore()

    @property
    def home(self) -> Path:
        """The working directory for a server: the first place, or where it is if it is a file."""
        first = self._world.places[0]
        return self.directory / first.name if first.kind in ("directory", "repository") else self.directory

    def git_environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """The variables with which git in a server pushes to no repository outside of the copy.

        Args:
            env: The server's environment.

        Raises:
            OSError: The files for git cannot be written.
        """
        repository = next((place.original for place in self._world.places if place.kind == "repository"), self.root)
        git = repository / ".git" if (repository / ".git").is_dir() else repository
        return git_environment(self.root / "git", self.directory, git, env)

    def show(self, data: str | bytes) -> str:
        """Makes a value of a text or bytes, with aliases instead of this copy's paths."""
        return render_value(data, self.translation.text)

    def path(self, text: str) -> str:
        """A word of a command, with the copy's paths for placeholders, aliases and originals.

        Raises:
            ConfigError: A placeholder names no place.
        """
        return self.translation.word(text)

    def led_into(self, word: str, cwd: Path) -> Path | None:
        """The original into which a path in a word of a command leads, by links, `..` and `~` as well. None: there is
        no such path.

        Args:
            word: The word, with the copy's paths.
            cwd: Where relative paths begin.
        """
        value = re.sub(r"^-\w", "", word)  # of an option: -v/srv/data:/data
        texts = {word, value, word.partition("=")[2], *_DIVIDERS.split(word), *_DIVIDERS.split(value)}
        for text in {*texts, *map(unquote, texts)}:
            try:
                path = Path(os.path.realpath(cwd / os.path.expanduser(text))) if text else cwd
            except (OSError, ValueError):  # no path
                continue
            for place in self._world.places:
                if text and path.is_relative_to(place.original):
                    return place.original
        return None

    def to_copy(self, value: Any) -> Any:
        """A JSON value with this copy's paths for aliases."""
        return self.translation.to_copy(value)

    def from_copy(self, value: Any) -> Any:
        """A JSON value with aliases for this copy's paths."""
        return self.translation.from_copy(value)
