"""The observed state of a world: files and directories, each with the values that its observer gives."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from art_mcp.worlds.alias import WORLD
from art_mcp.worlds.change import CUT, Change
from art_mcp.worlds.edit import Edit
from art_mcp.worlds.observers.observer import LongText, Observer, Show, Unread

PATIENCE = 60.0
"""Seconds in which a world is observed at most."""

LONGEST_EDITS = 256_000
"""Characters of all edits of long texts that a run's changes have at most."""

_KINDS = {stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
"""What is neither file nor directory nor link. It is never opened: opening a pipe waits for whoever writes to it."""

Stamp = tuple[tuple[str, int, int, int, int, int], ...]
"""Path, inode, mode, size, and times of modification and of change of the files that an observation depends on. Whoever
writes a file changes its stamp: no program can set the time of change."""


@dataclass(frozen=True, slots=True)
class PathState:
    """What was seen of a file or directory.

    Args:
        values: By the names that the observer gives.
        stamp: Of the files on which the values depend. None: they are not known, and it is read each time.
        observer: Who observed it. None: it is a directory like any other, or a symbolic link.
    """

    values: Mapping[str, str]
    stamp: Stamp | None = None
    observer: Observer | None = None


DIRECTORY = PathState({"directory": "there"})
"""A directory that nobody observes."""

State = dict[str, PathState]
"""Files and directories by their path below the directory of all places: `repo/notes.txt`."""


@dataclass(frozen=True, slots=True)
class StateReader:
    """Observes the directory of all places of a copy.

    Args:
        root: The directory.
        before: The same directory as it was before any run; `root` itself for the first observation.
        observers: Asked in this order who observes a file or directory.
        show: Makes values.
        stopped: Whether to end: nobody waits for the state any more.
    """

    root: Path
    before: Path
    observers: Sequence[Observer]
    show: Show
    stopped: Callable[[], bool] = lambda: False

    def state(self, earlier: State | None = None) -> State:
        """Observes everything.

        Args:
            earlier: An earlier state of the same directory. What was not written since is taken from it.

        Returns:
            The state. A file that its observer cannot read has the value `unreadable` with the reason, and so has the
            whole if reading it takes longer than PATIENCE.
        """
        state: State = {}
        deadline = time.monotonic() + PATIENCE
        for name, path_state in self._all(earlier or {}):
            state[name] = path_state
            if time.monotonic() > deadline or self.stopped():
                reason = f"not all of it was read within {PATIENCE:g} s"
                return {**(earlier or {}), **state, "": PathState({"unreadable": reason})}
        return state

    def restamp_state(self, state: State) -> State:
        """The state of this directory right after it was copied: the values of its source, with its own stamps."""
        return {
            name: PathState(path_state.values, self._stamp(name, path_state.observer), path_state.observer)
            for name, path_state in state.items()
        }

    def _all(self, earlier: State) -> Iterator[tuple[str, PathState]]:
        waiting = [self.root]
        while waiting:
            directory = waiting.pop()
            try:
                with os.scandir(directory) as entries:
                    order = sorted(entries, key=lambda entry: entry.name)
            except OSError as error:
                yield os.path.relpath(directory, self.root), PathState({"unreadable": self.show(str(error))})
                continue
            below = []
            for entry in order:
                name = os.path.relpath(entry.path, self.root)
                try:
                    path_state = self._observe_entry(entry, name, earlier.get(name))
                except (OSError, ValueError) as error:
                    path_state = PathState({"unreadable": self.show(str(error))})
                yield name, path_state
                below += [Path(entry.path)] if path_state == DIRECTORY else []
            waiting += reversed(below)

    def _observe_entry(self, entry: os.DirEntry[str], name: str, earlier: PathState | None) -> PathState:
        """What is seen of an entry of a directory. Raises OSError or ValueError if nobody can say who observes it."""
        if entry.is_symlink():
            return PathState({"link": self.show(os.readlink(entry.path))})
        if not entry.is_dir() and not entry.is_file():
            return PathState(
                {_KINDS.get(stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode), "special file"): "there"}
            )
        if earlier and earlier.stamp is not None and earlier.stamp == self._stamp(name, earlier.observer):
            return earlier
        path = Path(entry.path)
        observer = next((candidate for candidate in self.observers if candidate.claims(path)), None)
        if observer:
            stamp = self._stamp(name, observer)  # before the reading: a later write is seen the next time
            return PathState(self._values(name, observer), stamp, observer)
        return DIRECTORY

    def _values(self, name: str, observer: Observer) -> Mapping[str, str]:
        try:
            return observer.observe(self.root / name, self.before / name, self.show)
        except (OSError, ValueError) as error:
            return {"unreadable": Unread(self.show(str(error)), "")}

    def _stamp(self, name: str, observer: Observer | None) -> Stamp | None:
        """The stamp of what an observer reads. Files that are missing are left out, so that their coming is seen.
        None: nobody observes it, or the observer cannot say which files it reads."""
        if observer is None:
            return None
        try:
            files = list(observer.files(self.root / name))
        except (OSError, ValueError):
            return None
        stamps = []
        for path in files:
            try:
                status = os.lstat(path)
            except OSError:
                continue
            times = status.st_mtime_ns, status.st_ctime_ns
            stamps.append((os.path.relpath(path, self.root), status.st_ino, status.st_mode, status.st_size, *times))
        return tuple(stamps)


def changes(before: State, after: State) -> list[Change]:
    """What differs between two states of one directory, in the order of the paths. What one of them has not read is
    named, if it may differ."""
    result: list[Change] = []
    size = 0
    for name in sorted(before.keys() | after.keys()):
        old = before[name].values if name in before else {}
        new = after[name].values if name in after else {}
        path = name.encode(errors="surrogateescape").decode(errors="replace")  # of names that are no UTF-8
        where = f"{WORLD}/{path}".removesuffix("/.git").removesuffix("/")
        unread = {what: value for side in (old, new) for what, value in side.items() if isinstance(value, Unread)}
        unread_starts = tuple(value.start for value in unread.values() if value.start is not None)
        for what in dict.fromkeys([*old, *new]) if old is not new else ():
            if what.startswith(unread_starts) and what not in unread:
                continue
            if old.get(what) != new.get(what) or _mark(old.get(what)) != _mark(new.get(what)):
                edit = _edit(old.get(what), new.get(what))
                size += edit.size if edit else 0
                edit = edit if size <= LONGEST_EDITS else None
                result.append(Change(where=where, what=what, before=old.get(what), after=new.get(what), edit=edit))
    return result


def _edit(before: str | None, after: str | None) -> Edit | None:
    """What was edited in a long text. None: it is none, or too long, or is gone."""
    sides = before or "", after or ""
    texts = [value.text if isinstance(value, LongText) else value for value in sides]
    long = any(isinstance(value, LongText) for value in sides)
    return Edit.between(*texts) if long and after is not None and not any(map(CUT.search, texts)) else None


def _mark(value: str | None) -> str:
    """What else differs between values that were not read, if what they stand for may differ."""
    return value.mark if isinstance(value, Unread) else ""
