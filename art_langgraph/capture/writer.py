"""Writes captured runs into the store, off the event loop: a blocking call in a callback would stall it."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from art_langgraph.capture.background import Background
from art_langgraph.store import Batch, Session, TrajectoryStore
from art_langgraph.trajectory import CompletionCall, Trajectory

log = logging.getLogger("art_langgraph")

_PAUSE = 0.02
"""Seconds between transactions, in which completions gather: with many rollouts, waking up costs more than writing."""

_Write = Callable[[Batch], None]


class Writer:
    """Writes runs while they are under way and when they have ended. What waits shares a transaction.

    Args:
        store: Where the runs go.
    """

    def __init__(self, store: TrajectoryStore) -> None:
        self.store = store
        self._writes: Background[_Write] = Background("art-capture", self._opened, _PAUSE)

    def begun(self, trajectory: Trajectory) -> None:
        """A run has begun."""
        header = trajectory.model_copy(update={"completions": [], "tool_calls": [], "nodes": []})
        self._writes.put(lambda batch: batch.begin(header))

    def completion(self, trajectory: Trajectory, call: CompletionCall) -> None:
        """A run that has begun got an answer."""
        self._writes.put(lambda batch: batch.completion(trajectory.id, call))

    def finished(self, trajectory: Trajectory) -> None:
        """A run has ended."""
        self._writes.put(lambda batch: batch.add(trajectory))

    def flush(self) -> None:
        """Returns when all that was given is on disk."""
        self._writes.flush()

    def close(self) -> None:
        """Writes what is left and ends the thread."""
        self._writes.close()

    @contextmanager
    def _opened(self) -> Iterator[Callable[[list[_Write]], None]]:
        with self.store.session() as session:
            yield lambda writes: self._write(session, writes)

    def _write(self, session: Session, writes: list[_Write]) -> None:
        """Writes all or, where one cannot be written, all others."""
        while writes:
            try:
                with session.batch() as batch:
                    for write in writes:
                        write(batch)
                return
            except sqlite3.OperationalError as error:  # a full disk, a lock: tried again
                log.error("captured runs wait: %s cannot be written: %s", self.store.path, error)
                time.sleep(1.0)
            except Exception as error:  # of the user's data: the thread must live on
                if len(writes) == 1:
                    log.exception("a captured run is lost: it cannot be written: %s", error)
                    return
                for write in writes:
                    self._write(session, [write])
                return
