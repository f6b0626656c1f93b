"""Writes captured runs into the store, off the event loop: a blocking call in a callback would stall it."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from art_langgraph.background.background import Background
from art_langgraph.redaction import redact
from art_langgraph.store import Batch, Session, StoreUnavailable, TrajectoryStore
from art_langgraph.trajectory import CompletionCall, Trajectory
from trainer_server.common import Home
from trainer_server.common.jsonl import append_jsonl
from trainer_server.wire import ARTError

log = logging.getLogger("art_langgraph")

_PAUSE = 0.02
"""Seconds between transactions, in which completions gather: with many rollouts, waking up costs more than writing."""
_PATIENCE = 5.0
"""Seconds that a write waits for other writers before it counts as failed. It is tried again."""
_AGAIN = 1.0
"""Seconds after which a write that failed is tried again."""
_MOST = 5000
"""Writes that may wait for a store that cannot be written. Above that, ended runs go to a file."""
_MESSAGE_INTERVAL = 60.0
"""Seconds between two messages that the store cannot be written."""


@dataclass(frozen=True, slots=True)
class _Write:
    """One write for a run: its beginning (`header`), an answer in it (`call`), or all of it (`ended_run`)."""

    run: str
    header: Trajectory | None = None
    call: CompletionCall | None = None
    ended_run: Trajectory | None = None

    def into(self, batch: Batch) -> None:
        if self.header:
            batch.begin(self.header)
        if self.call:
            batch.completion(self.run, self.call)
        if self.ended_run:
            batch.add(self.ended_run)


class Writer:
    """Writes runs while they are under way and when they have ended. What waits shares a transaction.

    Where the store cannot be written (a full disk, a lock), runs wait in memory. When too many wait, or when the writer
    is closed, runs that have ended go to a JSONL file, which `art-langgraph trajectories import` reads.

    Args:
        store: Where the runs go.
    """

    def __init__(self, store: TrajectoryStore) -> None:
        self.store = store
        self._writes: Background[_Write] = Background("art-capture", self._open_worker, _PAUSE, _AGAIN)
        self._problem: str | None = None
        """Why the store cannot be written; None: the last write succeeded."""
        self._last_message = 0.0
        """Time of the last log message about it, by `time.monotonic`."""
        self._overflow_files: dict[Path, Path] = {}
        """By directory, the file for runs that cannot be stored."""

    def note_start(self, trajectory: Trajectory) -> None:
        """Writes that a run has begun."""
        header = trajectory.model_copy(update={"completions": [], "tool_calls": [], "nodes": []})
        self._writes.put(_Write(trajectory.id, header=header))

    def note_completion(self, trajectory: Trajectory, call: CompletionCall) -> None:
        """Writes an answer in a run that has begun."""
        self._writes.put(_Write(trajectory.id, call=call))

    def note_end(self, trajectory: Trajectory) -> None:
        """Writes a run that has ended."""
        self._writes.put(_Write(trajectory.id, ended_run=trajectory))

    def flush(self, timeout: float) -> None:
        """Waits until all writes are on disk.

        Args:
            timeout: Seconds to wait at most.

        Raises:
            ARTError: It is not there after `timeout` seconds.
        """
        if not self._writes.flush(timeout):
            why = f" ({self._problem})" if self._problem else ""
            raise ARTError(
                f"{self._writes.waiting()} records of captured runs are not in {self.store.name} after {timeout:g} "
                f"s{why}. They are tried again until the process ends"
            )

    def close(self) -> str | None:
        """Writes what is left and ends the thread.

        Returns:
            What could not be written, and where it is instead; None: all is in the store.
        """
        rest = self._writes.close()
        return self._write_overflow(rest) if rest else None

    @contextmanager
    def _open_worker(self) -> Iterator[Callable[[list[_Write]], int]]:
        with ExitStack() as stack:
            session: Session | None = None

            def work(writes: list[_Write]) -> int:
                nonlocal session
                count = 0
                try:
                    session = session or stack.enter_context(self.store.session(patience=_PATIENCE))
                    if _write_all(session, writes):
                        count = len(writes)
                    for write in writes[count:]:
                        _write_one(session, write)
                        count += 1
                    self._problem = None
                    return count
                except StoreUnavailable as error:  # a full disk, a lock, a broken file, no database
                    session = None
                    stack.close()
                    return count + self._handle_failure(error, writes[count:])

            yield work

    def _handle_failure(self, error: StoreUnavailable, writes: Sequence[_Write]) -> int:
        """Logs that the store cannot be written. Where too many writes wait, their runs go to a file.

        Returns:
            How many of the writes need not be tried again.
        """
        now = time.monotonic()
        if self._problem is None or now > self._last_message + _MESSAGE_INTERVAL:
            log.error("captured runs wait: %s cannot be written: %s", self.store.name, error.reason)
            self._last_message = now
        self._problem = error.reason
        if len(writes) <= _MOST:
            return 0
        log.error("%s", self._write_overflow(writes))
        return len(writes)

    def _write_overflow(self, writes: Sequence[_Write]) -> str:
        """Saves ended runs in a file. Returns what became of all runs."""
        runs = [write.ended_run for write in writes if write.ended_run]
        others = {write.run for write in writes} - {run.id for run in runs}
        parts = [f"the trajectory store {self.store.name} cannot be written ({self._problem or 'it does not answer'})"]
        if runs:
            number = "1 captured run" if len(runs) == 1 else f"{len(runs)} captured runs"
            problem = ""
            beside = self.store.path or Home.find().store
            for directory in (beside.parent, Path(tempfile.gettempdir())):
                try:
                    if directory not in self._overflow_files:
                        self._overflow_files[directory] = _new_file(directory, f"{beside.stem}.not-stored-")
                    file = self._overflow_files[directory]
                    append_jsonl(file, map(redact, runs))
                except OSError as error:
                    problem = f"{directory}: {error.strerror}"
                else:
                    parts.append(f"{number} can be read from {file} by `art-langgraph trajectories import {file}`")
                    break
            else:
                parts.append(f"lost: {number}, since there is no place for a file either ({problem})")
        if others:
            parts.append(f"nothing more is kept of {len(others)} that had not ended")
        return "; ".join(parts)


def _new_file(directory: Path, prefix: str) -> Path:
    """Makes a file of which nobody else knew the name: in a directory of all users, one could have put a link there."""
    descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=".jsonl", dir=directory)
    os.close(descriptor)
    return Path(name)


def _write_all(session: Session, writes: Sequence[_Write]) -> bool:
    """Writes all in a transaction, or nothing where one of them cannot be written. Returns whether it wrote."""
    try:
        with session.batch() as batch:
            for write in writes:
                write.into(batch)
    except StoreUnavailable:
        raise
    except Exception:
        return False
    return True


def _write_one(session: Session, write: _Write) -> None:
    try:
        with session.batch() as batch:
            write.into(batch)
    except StoreUnavailable:
        raise
    except Exception as error:  # of the user's data: the thread must live on
        log.exception("a captured run is lost: it cannot be written: %s", error)
