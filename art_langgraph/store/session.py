"""Writes of runs: several in a transaction, several transactions on a connection."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from art_langgraph.redaction import redact
from art_langgraph.store.database import Connection, Database, DuplicateRun, storable
from art_langgraph.store.filter import FIRST
from art_langgraph.store.reading import read_runs
from art_langgraph.trajectory import CompletionCall, Trajectory
from trainer_server.common.jsonl import to_json

_LOOK_BACK = 16
"""Runs of a thread, at most, among which the one is looked for that another run goes on with."""


class Session:
    """An open connection to the store."""

    def __init__(self, database: Database, db: Connection) -> None:
        self._database, self._db = database, db

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Several writes in one transaction, committed when the block ends. An exception rolls all of them back.

        Raises:
            StoreUnavailable: The store cannot be written, when the session ends.
        """
        with self._db.transaction():
            yield Batch(self._database, self._db)


class Batch:
    """Writes of one transaction. Each may be done again: nobody knows of a commit whose answer is lost."""

    def __init__(self, database: Database, db: Connection) -> None:
        self._database, self._db = database, db

    def begin(self, trajectory: Trajectory) -> None:
        """Stores a run that has begun, so that its scenario and metadata survive a kill of the process."""
        query = """
            INSERT INTO begun (id, started, record)
            SELECT ?, ?, ? WHERE NOT EXISTS (SELECT 1 FROM trajectories WHERE id = ?) ON CONFLICT DO NOTHING
        """
        row = (trajectory.id, trajectory.started, to_json(redact(trajectory)), trajectory.id)
        self._db.execute(query, row)

    def completion(self, trajectory_id: str, call: CompletionCall) -> None:
        """Stores a model's answer in a run that has begun. Of a run that has ended, `add` stores it."""
        query = """
            INSERT INTO completions (trajectory, record)
            SELECT ?, ? WHERE EXISTS (SELECT 1 FROM begun WHERE id = ?)
            AND NOT EXISTS (SELECT 1 FROM completions WHERE trajectory = ? AND record = ?)
        """
        record = to_json(redact(call))
        self._db.execute(query, (trajectory_id, record, trajectory_id, trajectory_id, record))

    def add(self, trajectory: Trajectory) -> None:
        """Stores a run that has ended. Its record replaces what `begin` and `completion` stored.

        A run that goes on with its thread gets the scenario of the run that it goes on with. Where that run had stopped
        at an interrupt or a breakpoint, the two are read as a single run from now on.

        Raises:
            DuplicateRun: The store has another run with this id.
        """
        before = self._before(trajectory) if trajectory.resumes else None
        if before is not None:
            trajectory = trajectory.model_copy(update={"scenario": before.scenario})
        trajectory = redact(trajectory)
        row = (
            trajectory.id,
            trajectory.started,
            storable(trajectory.scenario.id),
            _column(trajectory.graph_id),
            _column(trajectory.thread_id),
            trajectory.run_id,
            _column(trajectory.error),
            to_json(trajectory),
        )
        columns = "id, started, scenario, graph, thread, run, error, record"
        query = f"INSERT INTO trajectories ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
        is_new = self._db.execute(query, row).rowcount
        if not is_new and not self._has(trajectory.id, row[-1]):
            raise DuplicateRun(trajectory.id)
        self._db.execute("DELETE FROM begun WHERE id = ?", (trajectory.id,))
        self._db.execute("DELETE FROM completions WHERE trajectory = ?", (trajectory.id,))
        if is_new and before is not None and _goes_on(before, trajectory):
            self._db.execute("INSERT INTO resumed (trajectory, first) VALUES (?, ?)", (trajectory.id, before.id))

    def remove(self, trajectory_ids: Iterable[str]) -> None:
        """Removes runs that have ended, those that are not there aside."""
        for trajectory_id in trajectory_ids:
            self._db.execute("DELETE FROM resumed WHERE trajectory = ?", (trajectory_id,))
            self._db.execute("DELETE FROM trajectories WHERE id = ?", (trajectory_id,))

    def _has(self, trajectory_id: str, record: str | None) -> bool:
        """Whether the store has a run with this record."""
        row = self._db.execute("SELECT record FROM trajectories WHERE id = ?", (trajectory_id,)).fetchone()
        if row is None or row[0] == record:
            return row is not None
        # Earlier releases wrote the fields in another order.
        return row[0] is not None and record is not None and json.loads(row[0]) == json.loads(record)

    def _before(self, trajectory: Trajectory) -> Trajectory | None:
        """The run that another run of its thread goes on with, the same where that one is added again.

        It is the newest that waits at a node which the other runs again; or else, as after a breakpoint, the newest of
        the same graph. Threads of several graphs may have the same id.
        """
        link = self._db.execute("SELECT first FROM resumed WHERE trajectory = ?", (trajectory.id,)).fetchone()
        if link:
            return next(iter(read_runs(self._database, self._db, link)), None)
        query = f"""
            SELECT id FROM trajectories WHERE thread = ? AND started < ? AND {FIRST}
            ORDER BY coalesce(graph, '') = ? DESC, started DESC LIMIT {_LOOK_BACK}
        """
        values = (_column(trajectory.thread_id), trajectory.started, storable(trajectory.graph_id or ""))
        newest = None
        for (trajectory_id,) in self._db.execute(query, values).fetchall():
            (before,) = read_runs(self._database, self._db, [trajectory_id])
            if _stopped_at(before, trajectory):
                return before
            if newest is None and before.graph_id == trajectory.graph_id:
                newest = before
        return newest


def _column(text: str | None) -> str | None:
    """A text as a column of the store can hold it. The record keeps every character."""
    return None if text is None else storable(text)


def _goes_on(before: Trajectory, later: Trajectory) -> bool:
    """Whether a run goes on where another stopped, rather than from a checkpoint before that."""
    if later.resumes == "checkpoint":
        return _stopped_at(before, later)
    return bool(before.waiting) or before.error is None


def _stopped_at(before: Trajectory, later: Trajectory) -> bool:
    """Whether a run waits at a node that another runs again."""
    return not before.waiting.isdisjoint(node.namespace for node in later.nodes)
