"""The directory in which a process keeps its copies. Those of processes that died are removed by the next one."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import lock_descriptor

from art_mcp.worlds.files import remove_tree

log = logging.getLogger("art_mcp")

_LOCK = "lock"


class Scratch:
    """A directory below that of all processes, which only its owner may read.

    The process holds a lock of the directory. The system gives the lock back however the process ends, so that a
    directory whose lock is free belongs to nobody: the next `Scratch` of any process removes it.

    Args:
        base: The directory of all processes.

    Raises:
        OSError: The directory cannot be made.
    """

    def __init__(self, base: Path) -> None:
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _hold_lock(base / _LOCK):  # no process may remove a directory between its making and its locking
            self.removed_count = _remove_leftovers(base)
            self.path = Path(tempfile.mkdtemp(prefix="w", dir=base)).resolve()
            self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            lock_descriptor(self._lock)
        if self.removed_count:
            log.info("removed the worlds of %d processes that had died", self.removed_count)

    def close(self) -> None:
        """Removes the directory. What cannot be removed is left to the next process, with a warning."""
        try:
            remove_tree(self.path)
        except OSError as error:
            log.warning("%s cannot be removed now: %s", self.path, error)
        finally:
            os.close(self._lock)


def _remove_leftovers(base: Path) -> int:
    """Removes the directories that no living process holds, and returns how many these were."""
    count = 0
    for entry in base.iterdir():
        if not entry.is_dir():
            continue
        try:
            lock = os.open(entry / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # its process removes it now
            continue
        except OSError as error:
            log.warning("%s cannot be removed: %s", entry, error)
            continue
        try:
            if not lock_descriptor(lock, blocking=False):
                continue
            remove_tree(entry)
        except OSError as error:
            log.warning("%s, which a process left that died, cannot be removed: %s", entry, error)
        else:
            count += 1
        finally:
            os.close(lock)
    return count


@contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    """Holds the lock of a file."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock_descriptor(lock)
        yield
    finally:
        os.close(lock)
