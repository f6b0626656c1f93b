"""TrajectoryStore: every recorded run, in SQLite (WAL). Several processes may write at once.

The record of a finished run is never changed. What becomes known later, such as a score or a resume that voids some of
its calls, is a row of another table. `TrajectoryStore` merges these rows into the trajectory when it reads it.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_langgraph.notices import warn_once
from art_langgraph.trajectory import CompletionCall, Trajectory, TrajectoryGroup
from trainer_server.wire import ConfigError, Home
from trainer_server.wire.home import create_private
from trainer_server.wire.jsonl import from_json, to_json
from trainer_server.wire.text import writable

_SCHEMA = """
CREATE TABLE IF NOT EXISTS trajectories (
    id TEXT PRIMARY KEY,
    started REAL NOT NULL,
    scenario TEXT NOT NULL,
    graph TEXT,
    thread TEXT,
    run TEXT,
    error TEXT,
    record TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS trajectories_started ON trajectories (started);
CREATE INDEX IF NOT EXISTS trajectories_run ON trajectories (run);
CREATE TABLE IF NOT EXISTS begun (id TEXT PRIMARY KEY, started REAL NOT NULL, record TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS completions (trajectory TEXT NOT NULL, record TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS completions_trajectory ON completions (trajectory);
CREATE TABLE IF NOT EXISTS interrupted (
    thread TEXT NOT NULL, namespace TEXT NOT NULL, trajectory TEXT NOT NULL, attempt TEXT PRIMARY KEY
) STRICT;
CREATE INDEX IF NOT EXISTS interrupted_thread ON interrupted (thread);
CREATE TABLE IF NOT EXISTS resumed (attempt TEXT PRIMARY KEY, trajectory TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS scores (
    trajectory TEXT NOT NULL, time REAL NOT NULL, reward REAL, error TEXT, parts TEXT NOT NULL, source TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS scores_trajectory ON scores (trajectory);
CREATE TABLE IF NOT EXISTS trained (
    trajectory TEXT NOT NULL, policy TEXT NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (trajectory, policy, version)
) STRICT;
"""

_PATIENCE = 30.0
"""Seconds for which a connection waits while another process writes."""

_TRAINABLE = """
SELECT json_extract(record, '$.evaluation') = 1 OR EXISTS (
    SELECT 1 FROM json_each(record, '$.completions') WHERE json_extract(value, '$.id') IS NOT NULL
) FROM trajectories WHERE id = ?
"""
"""1 for a run that has completions of the gateway, and for an evaluation, which needs none; else 0."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which trajectories to read. None in a field does not restrict."""

    scenario: str | None = None
    """Id of the scenario."""
    graph: str | None = None
    """Name of the graph."""
    thread: str | None = None
    """Id of LangGraph's thread."""
    run: str | None = None
    """Id of LangGraph's run."""
    since: float | None = None
    """Earliest start, as Unix time."""
    until: float | None = None
    """Starts before this Unix time."""
    min_reward: float | None = None
    """Least reward; runs without a reward are left out."""
    max_reward: float | None = None
    """Greatest reward; runs without a reward are left out."""
    error: bool | None = None
    """True: only runs that raised. False: only runs that did not."""

    def admits(self, trajectory: Trajectory) -> bool:
        """Whether the reward is within bounds. SQL checks all other fields; rewards are stored after the run."""
        if self.min_reward is not None and (trajectory.reward is None or trajectory.reward < self.min_reward):
            return False
        return self.max_reward is None or (trajectory.reward is not None and trajectory.reward <= self.max_reward)


class TrajectoryStore:
    """A SQLite file of trajectories.

    Only the user may read the file, since it has what people and models wrote. A file that exists keeps its
    permissions.

    Args:
        path: The file, created if it is missing; None: `trajectories.sqlite` under ART_HOME.

    Raises:
        ConfigError: The file cannot be made or opened.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else Home.find().store
        try:
            create_private(self.path)
            with closing(self._open()) as db:
                db.execute("PRAGMA journal_mode=WAL")
                db.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"the trajectory store {self.path} cannot be opened: {error}. Name another file, or another directory "
                "with ART_HOME"
            ) from error

    @contextmanager
    def session(self, *, patience: float = _PATIENCE) -> Iterator[Session]:
        """Opens a connection for several batches of writes. Use it in the thread that opened it.

        Args:
            patience: Seconds to wait while another process writes, before a write raises sqlite3.OperationalError.
        """
        with closing(self._open(patience)) as db:
            yield Session(db)

    def add(self, trajectory: Trajectory) -> None:
        """Appends a finished run. When this returns, the run survives a kill of the process.

        Args:
            trajectory: The run.

        Raises:
            sqlite3.IntegrityError: The store has a run with this id.
            ConfigError: The store cannot be used, as on a full disk. All methods that read or write raise it.
        """
        with self._connected() as db, Session(db).batch() as batch:
            batch.add(trajectory)

    def score(
        self,
        trajectory_id: str,
        reward: float | None,
        parts: Mapping[str, float] | None = None,
        *,
        error: str | None = None,
        source: str = "feedback",
    ) -> None:
        """Gives a stored run a reward. When a run is scored several times, the newest score counts.

        Args:
            trajectory_id: Id of the trajectory.
            reward: The reward; None: the run could not be scored.
            parts: Parts of the reward, added to the trajectory's metrics.
            error: Why there is no reward.
            source: Origin of the reward, read back as `Trajectory.reward_source`.

        Raises:
            KeyError: The store has no finished run with this id.
        """
        with self._connected() as db, db:
            if not (stored := db.execute(_TRAINABLE, (trajectory_id,)).fetchone()):
                raise KeyError(trajectory_id)
            if reward is not None and stored == (0,):
                warn_once(
                    "a run has a reward and no completion of the trainer server: no step can train it",
                    "Let the graph ask the policy by ChatART, or by the server's address as base_url, in the process "
                    "that records it",
                    example=trajectory_id,
                )
            row = (trajectory_id, time.time(), reward, _text(error), json.dumps(dict(parts or {})), _text(source))
            db.execute("INSERT INTO scores VALUES (?, ?, ?, ?, ?, ?)", row)

    def score_group(self, group: TrajectoryGroup, source: str = "group") -> None:
        """Stores the reward of each trajectory of a group, or why it has none.

        Args:
            group: Trajectories that were scored together.
            source: As that of `score`.

        Raises:
            KeyError: The store lacks a trajectory of the group.
        """
        for run in group.trajectories:
            self.score(run.id, run.reward, run.metrics, error=run.reward_error, source=source)

    def mark_trained(self, trajectory_ids: Iterable[str], policy: str, version: int) -> None:
        """Records that runs were used by a training step.

        Args:
            trajectory_ids: Ids of the runs.
            policy: Name of the trained policy.
            version: The version that the step made.
        """
        with self._connected() as db, db:
            rows = [(trajectory_id, policy, version) for trajectory_id in trajectory_ids]
            db.executemany("INSERT OR IGNORE INTO trained VALUES (?, ?, ?)", rows)

    def trained(self, policy: str) -> set[str]:
        """Ids of the runs that training steps of `policy` used; see `mark_trained`."""
        with self._connected() as db:
            rows = db.execute("SELECT trajectory FROM trained WHERE policy = ?", (policy,))
            return {trajectory_id for (trajectory_id,) in rows}

    def get(self, trajectory_id: str) -> Trajectory | None:
        """A run by its id, finished or not; None where the store has no such run."""
        with self._connected() as db:
            row = db.execute("SELECT record FROM trajectories WHERE id = ?", (trajectory_id,)).fetchone()
            if row:
                return _read(db, row[0])
            begun = db.execute("SELECT record FROM begun WHERE id = ?", (trajectory_id,)).fetchone()
            return _unfinished(db, begun[0]) if begun else None

    def find(self, run_id: str) -> Trajectory | None:
        """The newest run with an id: the trajectory's, or that of LangGraph's run. None where no run has this id."""
        if trajectory := self.get(run_id):
            return trajectory
        return next(iter(self.list(run=run_id, limit=1)), None)

    def ids_with_prefix(self, prefix: str) -> list[str]:
        """Ids of trajectories and of LangGraph's runs that begin with `prefix`, sorted."""
        query = """
            SELECT id FROM trajectories WHERE id >= :low AND id < :high
            UNION SELECT run FROM trajectories WHERE run >= :low AND run < :high
            UNION SELECT id FROM begun WHERE id >= :low AND id < :high ORDER BY 1
        """
        bounds = {"low": prefix, "high": prefix + chr(0x10FFFF)}
        with self._connected() as db:
            return [known_id for (known_id,) in db.execute(query, bounds)]

    def list(self, *, limit: int | None = None, **filters: Any) -> list[Trajectory]:
        """Finished runs, newest first.

        Args:
            limit: How many at most; None: all.
            filters: Fields of `Filter`.
        """
        trajectories: list[Trajectory] = []
        for trajectory in self._select(Filter(**filters)):
            if limit is not None and len(trajectories) >= limit:
                break
            trajectories.append(trajectory)
        return trajectories

    def unfinished(self) -> Sequence[Trajectory]:
        """Runs that have begun and not ended: they still run, or their process was killed. Newest first.

        Each has the completions that were recorded until now.
        """
        query = "SELECT record FROM begun WHERE id NOT IN (SELECT id FROM trajectories) ORDER BY started DESC"
        with self._connected() as db:
            return [_unfinished(db, record) for (record,) in db.execute(query).fetchall()]

    def __iter__(self) -> Iterator[Trajectory]:
        return self._select(Filter())

    def __len__(self) -> int:
        with self._connected() as db:
            return int(db.execute("SELECT count(*) FROM trajectories").fetchone()[0])

    def _select(self, wanted: Filter) -> Iterator[Trajectory]:
        clauses = ["1"]
        values: list[str | float] = []
        for column in ("scenario", "graph", "thread", "run"):
            if (value := getattr(wanted, column)) is not None:
                clauses.append(f"{column} = ?")
                values.append(writable(value))
        for bound, sign in ((wanted.since, ">="), (wanted.until, "<")):
            if bound is not None:
                clauses.append(f"started {sign} ?")
                values.append(bound)
        if wanted.error is not None:
            clauses.append("error IS NOT NULL" if wanted.error else "error IS NULL")
        query = f"SELECT record FROM trajectories WHERE {' AND '.join(clauses)} ORDER BY started DESC"
        with self._connected() as db:
            for (record,) in db.execute(query, values):
                if wanted.admits(trajectory := _read(db, record)):
                    yield trajectory

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(self._open()) as db:
                yield db
        except sqlite3.Error as error:
            if concerns_all(error):
                raise ConfigError(f"the trajectory store {self.path} cannot be used: {error}") from error
            raise

    def _open(self, patience: float = _PATIENCE) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=patience)


class Session:
    """An open connection to the store."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Several writes in one transaction, committed when the block ends. An exception rolls all of them back."""
        with self._db:
            yield Batch(self._db)


class Batch:
    """Writes of one transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def begin(self, trajectory: Trajectory) -> None:
        """Stores a run that has begun, so that its scenario and metadata survive a kill of the process."""
        row = (trajectory.id, trajectory.started, to_json(trajectory))
        self._db.execute("INSERT OR IGNORE INTO begun VALUES (?, ?, ?)", row)

    def completion(self, trajectory_id: str, call: CompletionCall) -> None:
        """Stores a model's answer in a run that has begun."""
        self._db.execute("INSERT INTO completions VALUES (?, ?)", (trajectory_id, to_json(call)))

    def add(self, trajectory: Trajectory) -> None:
        """Stores a run that has ended. Its record replaces what `begin` and `completion` stored."""
        row = (
            trajectory.id,
            trajectory.started,
            _text(trajectory.scenario.id),
            _text(trajectory.graph_id),
            _text(trajectory.thread_id),
            trajectory.run_id,
            _text(trajectory.error),
        )
        self._db.execute("INSERT INTO trajectories VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, to_json(trajectory)))
        self._db.execute("DELETE FROM begun WHERE id = ?", (trajectory.id,))
        self._db.execute("DELETE FROM completions WHERE trajectory = ?", (trajectory.id,))
        if trajectory.thread_id is not None:
            self._link(trajectory, writable(trajectory.thread_id))

    def _link(self, run: Trajectory, thread: str) -> None:
        """Marks the attempts that this run repeats.

        When a thread is resumed, its interrupted nodes run again from their beginning. The calls of the first attempt
        then do not count.
        """
        earlier = self._db.execute(
            "SELECT namespace, trajectory, attempt FROM interrupted WHERE thread = ?", (thread,)
        ).fetchall()
        namespaces = {node.namespace for node in run.nodes}
        self._db.executemany(
            "INSERT OR IGNORE INTO resumed VALUES (?, ?)",
            [(attempt, earlier_id) for namespace, earlier_id, attempt in earlier if namespace in namespaces],
        )
        self._db.executemany(
            "INSERT OR IGNORE INTO interrupted VALUES (?, ?, ?, ?)",
            [(thread, node.namespace, run.id, node.attempt) for node in run.nodes if node.interrupted],
        )


def concerns_all(error: Exception) -> bool:
    """Whether an error is one of the store, which every other record would meet as well: a full disk, a lock."""
    return type(error) in (sqlite3.OperationalError, sqlite3.DatabaseError, sqlite3.InternalError)


def _text(text: str | None) -> str | None:
    """A text as a column of the store can hold it. The record keeps every character."""
    return None if text is None else writable(text)


def _read(db: sqlite3.Connection, record: str) -> Trajectory:
    trajectory = from_json(Trajectory, record)
    rows = db.execute("SELECT attempt FROM resumed WHERE trajectory = ?", (trajectory.id,))
    resumed = {attempt for (attempt,) in rows}
    for call in trajectory.completions:
        if call.attempt in resumed and call.superseded is None:
            call.superseded = "resume"
    query = (
        "SELECT reward, error, parts, source FROM scores WHERE trajectory = ? ORDER BY time DESC, rowid DESC LIMIT 1"
    )
    if score := db.execute(query, (trajectory.id,)).fetchone():
        trajectory.reward, trajectory.reward_error = score[0], score[1]
        trajectory.metrics |= json.loads(score[2])
        trajectory.reward_source = score[3]
    return trajectory


def _unfinished(db: sqlite3.Connection, record: str) -> Trajectory:
    trajectory = from_json(Trajectory, record)
    rows: Iterable[tuple[str]] = db.execute("SELECT record FROM completions WHERE trajectory = ?", (trajectory.id,))
    trajectory.completions = [from_json(CompletionCall, row) for (row,) in rows]
    trajectory.error = "the run has not ended"
    return trajectory
