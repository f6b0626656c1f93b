"""TrajectoryStore: every recorded run, in SQLite (WAL). Append-only; several processes may write at once.

What is learnt about a run later is a row of its own - a score, a resume that made part of it void - and is laid over
the run when it is read.
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

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from art_langgraph.messages import plain
from art_langgraph.notices import warn_once
from art_langgraph.trajectory import CompletionCall, Trajectory, TrajectoryGroup
from trainer_server.wire import Home

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

_TRAINABLE = """
SELECT json_extract(record, '$.evaluation') = 1 OR EXISTS (
    SELECT 1 FROM json_each(record, '$.completions') WHERE json_extract(value, '$.id') IS NOT NULL
) FROM trajectories WHERE id = ?
"""
"""Whether a run has completions of our gateway, or is an evaluation, which needs none."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which trajectories to read; None: all. since, until: Unix time. error: only runs that raised, or only others."""

    scenario: str | None = None
    graph: str | None = None
    thread: str | None = None
    run: str | None = None
    since: float | None = None
    until: float | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    error: bool | None = None

    def admits(self, one: Trajectory) -> bool:
        """The part that depends on what was learnt after the run."""
        if self.min_reward is not None and (one.reward is None or one.reward < self.min_reward):
            return False
        return self.max_reward is None or (one.reward is not None and one.reward <= self.max_reward)


class TrajectoryStore:
    """A file of trajectories; by default `trajectories.sqlite` under ART_HOME."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else Home.find().store
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with closing(self._open()) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.executescript(_SCHEMA)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """An open connection, for somebody who writes often; of one thread."""
        with closing(self._open()) as db:
            yield Session(db)

    def add(self, trajectory: Trajectory) -> None:
        """Appends a finished run; when this returns, a kill of the process cannot lose it.

        Raises sqlite3.IntegrityError for an id that is there already.
        """
        with self.session() as session, session.batch() as batch:
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
        """Gives a stored run a reward; the newest one counts. error: why there is none. Raises KeyError."""
        with closing(self._open()) as db, db:
            if not (stored := db.execute(_TRAINABLE, (trajectory_id,)).fetchone()):
                raise KeyError(trajectory_id)
            if reward is not None and stored == (0,):
                warn_once(
                    "a run has a reward and no completion of the trainer server: no step can train it",
                    "Let the graph ask the policy by ChatART, or by the server's address as base_url, in the process "
                    "that records it",
                    example=trajectory_id,
                )
            row = (trajectory_id, time.time(), reward, error, json.dumps(dict(parts or {})), source)
            db.execute("INSERT INTO scores VALUES (?, ?, ?, ?, ?, ?)", row)

    def score_group(self, group: TrajectoryGroup, source: str = "group") -> None:
        """Keeps the rewards of a group that was scored together, or why there are none. Raises KeyError."""
        for one in group.trajectories:
            self.score(one.id, one.reward, one.metrics, error=one.reward_error, source=source)

    def mark_trained(self, trajectory_ids: Iterable[str], policy: str, version: int) -> None:
        """Notes that a step which made `version` was given these runs."""
        with closing(self._open()) as db, db:
            rows = [(one, policy, version) for one in trajectory_ids]
            db.executemany("INSERT OR IGNORE INTO trained VALUES (?, ?, ?)", rows)

    def trained(self, policy: str) -> set[str]:
        """Ids of the runs that a step of `policy` was given."""
        with closing(self._open()) as db:
            return {one for (one,) in db.execute("SELECT trajectory FROM trained WHERE policy = ?", (policy,))}

    def get(self, trajectory_id: str) -> Trajectory | None:
        """A run by its id, finished or not."""
        with closing(self._open()) as db:
            found = db.execute("SELECT record FROM trajectories WHERE id = ?", (trajectory_id,)).fetchone()
            if found:
                return _read(db, found[0])
            begun = db.execute("SELECT record FROM begun WHERE id = ?", (trajectory_id,)).fetchone()
            return _unfinished(db, begun[0]) if begun else None

    def find(self, run_id: str) -> Trajectory | None:
        """A run by its id, or by the run id that LangGraph or its server gave it; the newest one."""
        if found := self.get(run_id):
            return found
        return next(iter(self.list(run=run_id, limit=1)), None)

    def ids_with_prefix(self, prefix: str) -> list[str]:
        """Ids of trajectories, and of LangGraph's runs, that begin with `prefix`, sorted: for a user who types the
        beginning of an id."""
        query = """
            SELECT id FROM trajectories WHERE id >= :low AND id < :high
            UNION SELECT run FROM trajectories WHERE run >= :low AND run < :high
            UNION SELECT id FROM begun WHERE id >= :low AND id < :high ORDER BY 1
        """
        bounds = {"low": prefix, "high": prefix + chr(0x10FFFF)}
        with closing(self._open()) as db:
            return [found for (found,) in db.execute(query, bounds)]

    def list(self, *, limit: int | None = None, **filters: Any) -> list[Trajectory]:
        """Finished runs, newest first. filters: see `Filter`."""
        found: list[Trajectory] = []
        for one in self._select(Filter(**filters)):
            if limit is not None and len(found) >= limit:
                break
            found.append(one)
        return found

    def unfinished(self) -> Sequence[Trajectory]:
        """Runs that have begun and not ended - still under way, or cut off by a kill - with what they did until now."""
        query = "SELECT record FROM begun WHERE id NOT IN (SELECT id FROM trajectories) ORDER BY started DESC"
        with closing(self._open()) as db:
            return [_unfinished(db, record) for (record,) in db.execute(query).fetchall()]

    def __iter__(self) -> Iterator[Trajectory]:
        return self._select(Filter())

    def __len__(self) -> int:
        with closing(self._open()) as db:
            return int(db.execute("SELECT count(*) FROM trajectories").fetchone()[0])

    def _select(self, wanted: Filter) -> Iterator[Trajectory]:
        clauses, values = ["1"], []
        for column in ("scenario", "graph", "thread", "run"):
            if (value := getattr(wanted, column)) is not None:
                clauses.append(f"{column} = ?")
                values.append(value)
        for bound, sign in ((wanted.since, ">="), (wanted.until, "<")):
            if bound is not None:
                clauses.append(f"started {sign} ?")
                values.append(bound)
        if wanted.error is not None:
            clauses.append("error IS NOT NULL" if wanted.error else "error IS NULL")
        query = f"SELECT record FROM trajectories WHERE {' AND '.join(clauses)} ORDER BY started DESC"
        with closing(self._open()) as db:
            for (record,) in db.execute(query, values):
                if wanted.admits(one := _read(db, record)):
                    yield one

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=30)


class Session:
    """A connection that is held open."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Several writes in one transaction: all of them are kept when the block is left, or none."""
        with self._db:
            yield Batch(self._db)


class Batch:
    """Writes of one transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def begin(self, trajectory: Trajectory) -> None:
        """A run has begun: its scenario and metadata are kept in case it never ends."""
        row = (trajectory.id, trajectory.started, _json(trajectory))
        self._db.execute("INSERT OR IGNORE INTO begun VALUES (?, ?, ?)", row)

    def completion(self, trajectory_id: str, call: CompletionCall) -> None:
        """A run that has begun got an answer of a model."""
        self._db.execute("INSERT INTO completions VALUES (?, ?)", (trajectory_id, _json(call)))

    def add(self, trajectory: Trajectory) -> None:
        """A run has ended: this record takes the place of what was kept while it was under way."""
        one = trajectory
        error = None if one.error is None else one.error.encode(errors="replace").decode()
        row = (one.id, one.started, one.scenario.id, one.graph_id, one.thread_id, one.run_id, error)
        self._db.execute("INSERT INTO trajectories VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, _json(trajectory)))
        self._db.execute("DELETE FROM begun WHERE id = ?", (one.id,))
        self._db.execute("DELETE FROM completions WHERE trajectory = ?", (one.id,))
        if one.thread_id is not None:
            self._link(one, one.thread_id)

    def _link(self, one: Trajectory, thread: str) -> None:
        """A node that an interrupt ended runs again when its thread is resumed: what it did before is void."""
        earlier = self._db.execute(
            "SELECT namespace, trajectory, attempt FROM interrupted WHERE thread = ?", (thread,)
        ).fetchall()
        mine = {node.namespace for node in one.nodes}
        self._db.executemany(
            "INSERT OR IGNORE INTO resumed VALUES (?, ?)",
            [(attempt, trajectory) for namespace, trajectory, attempt in earlier if namespace in mine],
        )
        self._db.executemany(
            "INSERT OR IGNORE INTO interrupted VALUES (?, ?, ?, ?)",
            [(thread, node.namespace, one.id, node.attempt) for node in one.nodes if node.interrupted],
        )


def _json(record: BaseModel) -> str:
    try:
        return record.model_dump_json()
    except PydanticSerializationError:  # half a surrogate pair, which models do emit: escaped, as JSON allows
        return json.dumps(plain(record))


def _read(db: sqlite3.Connection, record: str) -> Trajectory:
    one = Trajectory.model_validate(json.loads(record))
    resumed = {attempt for (attempt,) in db.execute("SELECT attempt FROM resumed WHERE trajectory = ?", (one.id,))}
    for call in one.completions:
        if call.attempt in resumed and call.superseded is None:
            call.superseded = "resume"
    query = (
        "SELECT reward, error, parts, source FROM scores WHERE trajectory = ? ORDER BY time DESC, rowid DESC LIMIT 1"
    )
    if score := db.execute(query, (one.id,)).fetchone():
        one.reward, one.reward_error = score[0], score[1]
        one.metrics |= json.loads(score[2])
        one.reward_source = score[3]
    return one


def _unfinished(db: sqlite3.Connection, record: str) -> Trajectory:
    one = Trajectory.model_validate(json.loads(record))
    rows: Iterable[tuple[str]] = db.execute("SELECT record FROM completions WHERE trajectory = ?", (one.id,))
    one.completions = [CompletionCall.model_validate_json(row) for (row,) in rows]
    one.error = "the run has not ended"
    return one
