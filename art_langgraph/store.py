"""TrajectoryStore: every recorded run, in SQLite (WAL). Several processes may write at once.

The record of a finished run is never changed. What becomes known later, such as a score or the run that resumed it, is
a row of another table. `TrajectoryStore` merges these rows into the trajectory when it reads it: a run that stopped at
an interrupt and the runs that resumed its thread are read as a single trajectory, with the id of the first.
"""

from __future__ import annotations

import json
import logging
import math
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from art_langgraph.notices import warn_once
from art_langgraph.redaction import redacted
from art_langgraph.trajectory import CompletionCall, Trajectory, TrajectoryGroup
from trainer_server.wire import ConfigError, Home
from trainer_server.wire.home import create_private, overwrite_deleted
from trainer_server.wire.jsonl import from_json, to_json
from trainer_server.wire.schemas import DatabaseSchema, script
from trainer_server.wire.text import writable

log = logging.getLogger("art_langgraph")

_FIRST_TABLES = """
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
CREATE INDEX IF NOT EXISTS trajectories_scenario ON trajectories (scenario);
CREATE INDEX IF NOT EXISTS trajectories_run ON trajectories (run);
CREATE INDEX IF NOT EXISTS trajectories_thread ON trajectories (thread);
CREATE TABLE IF NOT EXISTS begun (id TEXT PRIMARY KEY, started REAL NOT NULL, record TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS completions (trajectory TEXT NOT NULL, record TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS completions_trajectory ON completions (trajectory);
CREATE TABLE IF NOT EXISTS resumed (trajectory TEXT PRIMARY KEY, first TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS resumed_first ON resumed (first);
CREATE TABLE IF NOT EXISTS scores (trajectory TEXT NOT NULL, time REAL NOT NULL, record TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS scores_trajectory ON scores (trajectory);
CREATE TABLE IF NOT EXISTS steps (
    policy TEXT NOT NULL, step TEXT NOT NULL, trajectory TEXT NOT NULL, ended INTEGER NOT NULL DEFAULT 0,
    version INTEGER, PRIMARY KEY (policy, step, trajectory)
) STRICT;
CREATE TABLE IF NOT EXISTS evaluations (
    key TEXT NOT NULL, version INTEGER NOT NULL, trajectories TEXT NOT NULL, PRIMARY KEY (key, version)
) STRICT;
CREATE TABLE IF NOT EXISTS autopilots (policy TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS autopilot_history (policy TEXT NOT NULL, record TEXT NOT NULL) STRICT;
"""
SCHEMA = DatabaseSchema(script(_FIRST_TABLES))
"""The file's tables, those of the autopilot's memory (`auto_pilot/state_store.py`) included."""

_PATIENCE = 30.0
"""Seconds for which a connection waits while another process writes."""
_FIRST = "id NOT IN (SELECT trajectory FROM resumed)"
"""Holds for the runs that are read: not for those that resumed another run, and are read with it."""

_TRAINABLE = """
SELECT max(json_extract(record, '$.evaluation') = 1 OR json_extract(record, '$.imported') IS NOT NULL
OR coalesce(json_extract(record, '$.hints'), '{}') <> '{}' OR EXISTS (
    SELECT 1 FROM json_each(record, '$.completions') WHERE json_extract(value, '$.id') IS NOT NULL
)) FROM trajectories WHERE id = :id OR id IN (SELECT trajectory FROM resumed WHERE first = :id)
"""
"""1 for a run that has completions of the gateway, and for an evaluation or an imported run, which need none; else 0.
NULL: no run."""


class _Score(BaseModel):
    """All rewards of a run by one scoring. They replace all that the run had before."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    reward: float | None = None
    reward_error: str | None = None
    reward_reason: str | None = None
    reward_source: str
    independent_reward_error: str | None = None
    judgement: str | None = None
    node_rewards: dict[str, float] | None = None
    completions: dict[str, float] = {}
    """Rewards of single completions, by id."""
    parts: dict[str, float] = {}
    """Added to the trajectory's metrics."""

    @classmethod
    def of(cls, run: Trajectory, source: str) -> _Score:
        """The rewards that a run has. source: as that of `TrajectoryStore.score`."""
        own = {call.id: call.reward for call in run.completions if call.id is not None and call.reward is not None}
        return cls(
            reward=run.reward,
            reward_error=run.reward_error,
            reward_reason=run.reward_reason,
            reward_source=source,
            independent_reward_error=run.independent_reward_error,
            judgement=run.judgement,
            node_rewards=run.node_rewards,
            completions=own,
            parts=run.metrics,
        )

    def give(self, run: Trajectory) -> None:
        """Gives a run these rewards and no others."""
        run.reward, run.reward_error, run.reward_reason = self.reward, self.reward_error, self.reward_reason
        run.reward_source, run.independent_reward_error = self.reward_source, self.independent_reward_error
        run.judgement, run.node_rewards = self.judgement, self.node_rewards
        for call in run.completions:
            call.reward = self.completions.get(call.id or "")
        run.metrics |= self.parts


@dataclass(frozen=True, slots=True)
class Filter:
    """Which trajectories to read. None in a field does not restrict."""

    scenario: str | Collection[str] | None = None
    """Id of the scenario, or ids of several."""
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
        """Whether error and reward are as wanted. SQL checks all other fields; these may become known after the run."""
        if self.error is not None and self.error != (trajectory.error is not None):
            return False
        if self.min_reward is not None and (trajectory.reward is None or trajectory.reward < self.min_reward):
            return False
        return self.max_reward is None or (trajectory.reward is not None and trajectory.reward <= self.max_reward)


class TrajectoryStore:
    """A SQLite file of trajectories.

    Only the user may read the file, since it has what people and models wrote. A file that exists keeps its
    permissions.

    Args:
        path: The file, created if it is missing, for its owner only; None: `trajectories.sqlite` under ART_HOME.

    Raises:
        ConfigError: The file cannot be made or opened, or a newer release wrote it (NewerSchema).
    """

    def __init__(self, path: str | Path | None = None) -> None:
        home = Home.find()
        self.path = Path(path) if path is not None else home.store
        try:
            if path is None and (told := home.make_private()):
                log.warning("%s", told)
            create_private(self.path)
            with closing(self._open()) as db:
                SCHEMA.bring_up(db, self.path)
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

    def add(self, trajectory: Trajectory, *, replaces: Iterable[str] = ()) -> None:
        """Appends a finished run. When this returns, the run survives a kill of the process.

        Args:
            trajectory: The run.
            replaces: Ids of runs that this run contains, and that are removed: those of its remote graphs, whose
                process may have recorded them in the same store.

        Raises:
            sqlite3.IntegrityError: The store has a run with this id.
            ConfigError: The store cannot be used, as on a full disk. All methods that read or write raise it.
        """
        with self._connected() as db, Session(db).batch() as batch:
            batch.remove(replaces)
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
        """Gives a stored run a reward, in place of all its rewards, those by node and of single completions included.

        Args:
            trajectory_id: Id of the trajectory.
            reward: The reward; None: the run could not be scored.
            parts: Parts of the reward, added to the trajectory's metrics.
            error: Why there is no reward.
            source: Origin of the reward, read back as `Trajectory.reward_source`.

        Raises:
            ConfigError: The reward is not finite.
            KeyError: The store has no finished run with this id.
        """
        score = _Score(reward=reward, reward_error=error, parts=dict(parts or {}), reward_source=source)
        with self._connected() as db, db:
            _add_score(db, trajectory_id, score)

    def score_run(self, run: Trajectory, source: str) -> None:
        """Stores all rewards that a run has, in place of those that it had in the store; or why it has none.

        Args:
            run: A stored run that was scored.
            source: As that of `score`.

        Raises:
            ConfigError: A reward is not finite.
            KeyError: The store has no finished run with this id.
        """
        with self._connected() as db, db:
            _add_score(db, run.id, _Score.of(run, source))

    def score_group(self, group: TrajectoryGroup, source: str = "group") -> None:
        """Stores the rewards of all runs of a group, as `score_run` does: of all of them, or of none.

        Args:
            group: Trajectories that were scored together.
            source: As that of `score`.

        Raises:
            ConfigError: A reward is not finite.
            KeyError: The store lacks a trajectory of the group.
        """
        with self._connected() as db, db:
            for run in group.trajectories:
                _add_score(db, run.id, _Score.of(run, source))

    def begin_step(
        self, policy: str, step: str, trajectory_ids: Iterable[str], *, again: bool = True
    ) -> frozenset[str]:
        """Records which runs a training step is given. Call it before the step is sent, and `end_step` after it.

        A step that was begun before under the same key is replaced, because the server did not accept it.

        A process that is killed in between leaves the step open, and its runs count as trained: the server may have
        accepted it. `open_steps` names such steps, `TrainerClient.find_step` tells what became of them.

        Args:
            policy: Name of the trained policy.
            step: The idempotency key that the step is sent with.
            trajectory_ids: Ids of the runs.
            again: Also those that other steps were given. False: these are left out, whoever else begins a step now.

        Returns:
            Ids of the runs that the step may be given.
        """
        with self._connected() as db, db:
            db.execute("DELETE FROM steps WHERE policy = ? AND step = ?", (policy, step))  # no one else writes now
            ids = frozenset(trajectory_ids)
            if not again:
                ids -= _trained(db, policy)
            rows = [(policy, step, trajectory_id) for trajectory_id in ids]
            db.executemany("INSERT OR IGNORE INTO steps (policy, step, trajectory) VALUES (?, ?, ?)", rows)
        return ids

    def end_step(self, policy: str, step: str, version: int | None) -> None:
        """Records what became of a step that `begin_step` recorded. The last record counts. Unknown steps are ignored.

        Args:
            policy: Name of the policy.
            step: The step's idempotency key.
            version: The version that it made; None: it made none, so that its runs do not count as trained.
        """
        with self._connected() as db, db:
            db.execute("UPDATE steps SET ended = 1, version = ? WHERE policy = ? AND step = ?", (version, policy, step))

    def open_steps(self, policy: str) -> list[str]:
        """Idempotency keys of the policy's steps that were begun and not ended."""
        with self._connected() as db:
            query = "SELECT step FROM steps WHERE policy = ? AND NOT ended GROUP BY step ORDER BY min(rowid)"
            return [step for (step,) in db.execute(query, (policy,))]

    def trained(self, policy: str) -> set[str]:
        """Ids of the runs that steps of `policy` were given: steps that made a version, and open ones.

        A run that resumed another run has the id of that one, as everywhere.
        """
        with self._connected() as db:
            return _trained(db, policy)

    def add_evaluation(self, key: str, version: int, trajectory_ids: Sequence[str]) -> None:
        """Records which runs are the evaluation of a version. A version that was evaluated keeps its first evaluation.

        Args:
            key: What the evaluation belongs to: policy, scenarios, and how they were measured.
            version: The version that was evaluated.
            trajectory_ids: Ids of its runs.
        """
        row = key, version, json.dumps(list(trajectory_ids))
        with self._connected() as db, db:
            db.execute("INSERT OR IGNORE INTO evaluations VALUES (?, ?, ?)", row)

    def evaluations(self, key: str) -> dict[int, list[str]]:
        """Ids of the runs that evaluate versions: by version, in the order in which they were recorded.

        Args:
            key: As that of `add_evaluation`.
        """
        query = "SELECT version, trajectories FROM evaluations WHERE key = ? ORDER BY rowid"
        with self._connected() as db:
            return {version: json.loads(ids) for version, ids in db.execute(query, (key,))}

    def get(self, trajectory_id: str) -> Trajectory | None:
        """A run by its id, finished or not; None where the store has no such run.

        A run that resumed another run is read with it.
        """
        first = "coalesce((SELECT first FROM resumed WHERE trajectory = :id), :id)"
        with self._connected() as db:
            row = db.execute(f"SELECT record FROM trajectories WHERE id = {first}", {"id": trajectory_id}).fetchone()
            if row:
                return _read(db, row[0])
            begun = db.execute("SELECT record FROM begun WHERE id = ?", (trajectory_id,)).fetchone()
            return _unfinished(db, begun[0]) if begun else None

    def revision(self) -> tuple[int, ...]:
        """Numbers that differ whenever a run or a score was added. Cheap: nothing is parsed."""
        tables = ("trajectories", "scores", "resumed")
        query = f"SELECT {', '.join(f'(SELECT coalesce(max(rowid), 0) FROM {table})' for table in tables)}"
        with self._connected() as db:
            return tuple(db.execute(query).fetchone())

    def rewards(self, trajectory_ids: Sequence[str]) -> dict[str, float | None]:
        """The rewards of those of these runs that the store has, finished ones. None: such a run has no reward.

        Args:
            trajectory_ids: Ids of trajectories.
        """
        found: dict[str, float | None] = {}
        query = "SELECT record FROM trajectories WHERE id IN (SELECT value FROM json_each(?))"
        with self._connected() as db:
            for (record,) in db.execute(query, (json.dumps(list(trajectory_ids)),)).fetchall():
                run = _read(db, record)
                found[run.id] = run.reward
        return found

    def parts(self, trajectory_id: str) -> Sequence[Trajectory]:
        """The records of a run and of all runs that are read with it, because they resumed it; unfinished ones too.

        Args:
            trajectory_id: Id of any of them.
        """
        with self._connected() as db:
            found = []
            for one in _parts(db, [trajectory_id]):
                if row := db.execute("SELECT record FROM trajectories WHERE id = ?", (one,)).fetchone():
                    found.append(from_json(Trajectory, row[0]))
                elif row := db.execute("SELECT record FROM begun WHERE id = ?", (one,)).fetchone():
                    found.append(_unfinished(db, row[0]))
        return found

    def delete(self, trajectory_ids: Sequence[str]) -> int:
        """Deletes runs with their scores and steps, the runs that are read with them, and evaluations that they are in.

        When this returns, nothing of their text is in the store's files. A store above 1 GiB is not written anew: the
        text is overwritten where it stood.

        Args:
            trajectory_ids: Ids of runs, finished or not; unknown ids are ignored.

        Returns:
            How many records were deleted.

        Raises:
            ConfigError: The store cannot be used, or another process reads it for too long.
        """
        with self._connected() as db:
            db.execute("PRAGMA secure_delete=ON")
            with db:
                ids = json.dumps(_parts(db, trajectory_ids))
                named = "IN (SELECT value FROM json_each(:ids))"
                deleted = 0
                for table in ("trajectories", "begun"):
                    deleted += db.execute(f"DELETE FROM {table} WHERE id {named}", {"ids": ids}).rowcount
                for table in ("completions", "resumed", "scores", "steps"):
                    db.execute(f"DELETE FROM {table} WHERE trajectory {named}", {"ids": ids})
                has_one = f"EXISTS (SELECT 1 FROM json_each(trajectories) AS one WHERE one.value {named})"
                db.execute(f"DELETE FROM evaluations WHERE {has_one}", {"ids": ids})
            overwrite_deleted(db)
        return deleted

    def prune(self, *, days: float | None = None, most_bytes: int | None = None) -> int:
        """Deletes the oldest runs, as `delete` does.

        Args:
            days: Runs that began longer ago are deleted; None: none for their age.
            most_bytes: Size of the store above which the oldest runs are deleted, about; None: none for its size.

        Returns:
            How many records were deleted.
        """
        deleted = 0
        if days is not None:
            query = (
                "SELECT id FROM trajectories WHERE started < :before UNION SELECT id FROM begun WHERE started < :before"
            )
            with self._connected() as db:
                rows = db.execute(query, {"before": time.time() - days * 86400}).fetchall()
            deleted += self.delete([one for (one,) in rows]) if rows else 0
        while most_bytes is not None and self.path.stat().st_size > most_bytes:
            with self._connected() as db:
                rows = db.execute("SELECT id, length(record) FROM trajectories ORDER BY started LIMIT 1000").fetchall()
            if not rows:
                break
            excess, chosen = self.path.stat().st_size - most_bytes, list[str]()
            for one, size in rows:
                chosen.append(one)
                if (excess := excess - size) <= 0:
                    break
            deleted += self.delete(chosen)
        return deleted

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
            return int(db.execute(f"SELECT count(*) FROM trajectories WHERE {_FIRST}").fetchone()[0])

    def _select(self, wanted: Filter) -> Iterator[Trajectory]:
        clauses = [_FIRST]
        values: list[str | float] = []
        if wanted.scenario is not None:
            ids = [wanted.scenario] if isinstance(wanted.scenario, str) else wanted.scenario
            clauses.append("scenario IN (SELECT value FROM json_each(?))")
            values.append(json.dumps([writable(scenario_id) for scenario_id in ids]))
        for column in ("graph", "thread"):
            if (value := getattr(wanted, column)) is not None:
                clauses.append(f"{column} = ?")
                values.append(writable(value))
        if wanted.run is not None:
            resuming = "SELECT first FROM resumed JOIN trajectories ON id = trajectory WHERE run = ?"
            clauses.append(f"(run = ? OR id IN ({resuming}))")
            values += [writable(wanted.run)] * 2
        for bound, sign in ((wanted.since, ">="), (wanted.until, "<")):
            if bound is not None:
                clauses.append(f"started {sign} ?")
                values.append(bound)
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
        row = (trajectory.id, trajectory.started, to_json(redacted(trajectory)))
        self._db.execute("INSERT OR IGNORE INTO begun VALUES (?, ?, ?)", row)

    def completion(self, trajectory_id: str, call: CompletionCall) -> None:
        """Stores a model's answer in a run that has begun."""
        self._db.execute("INSERT INTO completions VALUES (?, ?)", (trajectory_id, to_json(redacted(call))))

    def add(self, trajectory: Trajectory) -> None:
        """Stores a run that has ended. Its record replaces what `begin` and `completion` stored.

        A run that goes on with its thread gets the scenario of the thread's run before it. Where that run had stopped
        at an interrupt or a breakpoint, the two are read as a single run from now on.
        """
        before = self._before(trajectory) if trajectory.resumes else None
        if before is not None:
            trajectory = trajectory.model_copy(update={"scenario": before.scenario})
        trajectory = redacted(trajectory)
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
        if before is not None and _goes_on(before, trajectory):
            self._db.execute("INSERT INTO resumed VALUES (?, ?)", (trajectory.id, before.id))

    def remove(self, trajectory_ids: Iterable[str]) -> None:
        """Removes runs that have ended, those that are not there aside."""
        ids = [(trajectory_id,) for trajectory_id in trajectory_ids]
        self._db.executemany("DELETE FROM resumed WHERE trajectory = ?", ids)
        self._db.executemany("DELETE FROM trajectories WHERE id = ?", ids)

    def _before(self, trajectory: Trajectory) -> Trajectory | None:
        """The newest run of a thread that began before another run of it."""
        query = f"SELECT record FROM trajectories WHERE thread = ? AND started < ? AND {_FIRST} ORDER BY started DESC"
        row = self._db.execute(query, (_text(trajectory.thread_id), trajectory.started)).fetchone()
        return _read(self._db, row[0]) if row else None


def _goes_on(before: Trajectory, later: Trajectory) -> bool:
    """Whether a run goes on where another stopped, rather than from a checkpoint before that."""
    if later.resumes == "checkpoint":
        return not before.waiting.isdisjoint(node.namespace for node in later.nodes)
    return bool(before.waiting) or before.error is None


def concerns_all(error: Exception) -> bool:
    """Whether an error is one of the store, which every other record would meet as well: a full disk, a lock."""
    return type(error) in (sqlite3.OperationalError, sqlite3.DatabaseError, sqlite3.InternalError)


def _text(text: str | None) -> str | None:
    """A text as a column of the store can hold it. The record keeps every character."""
    return None if text is None else writable(text)


def _parts(db: sqlite3.Connection, trajectory_ids: Sequence[str]) -> list[str]:
    """Ids of runs, and of those that are read with them."""
    query = """
        WITH firsts AS (
            SELECT coalesce((SELECT first FROM resumed WHERE trajectory = value), value) AS id FROM json_each(?)
        )
        SELECT id FROM firsts UNION SELECT trajectory FROM resumed WHERE first IN (SELECT id FROM firsts)
    """
    return [one for (one,) in db.execute(query, (json.dumps(list(trajectory_ids)),))]


def _trained(db: sqlite3.Connection, policy: str) -> set[str]:
    """See `TrajectoryStore.trained`."""
    query = """
        SELECT DISTINCT coalesce(first, steps.trajectory)
        FROM steps LEFT JOIN resumed ON resumed.trajectory = steps.trajectory
        WHERE policy = ? AND (version IS NOT NULL OR NOT ended)
    """
    return {trajectory_id for (trajectory_id,) in db.execute(query, (policy,))}


def _read(db: sqlite3.Connection, record: str) -> Trajectory:
    trajectory = from_json(Trajectory, record)
    rewarded = 0.0  # when the newest part with a reward began; a score of the first run is always newer than it
    query = "SELECT record FROM resumed JOIN trajectories ON id = trajectory WHERE first = ? ORDER BY started"
    for (later,) in db.execute(query, (trajectory.id,)):
        last = from_json(Trajectory, later)
        if last.scored or last.reward_error:
            rewarded = last.started
        trajectory = trajectory.resumed_by(last)
    query = """
        SELECT record, time FROM scores
        WHERE trajectory = :id OR trajectory IN (SELECT trajectory FROM resumed WHERE first = :id)
        ORDER BY rowid DESC LIMIT 1
    """
    score = db.execute(query, {"id": trajectory.id}).fetchone()
    if score and score[1] >= rewarded:
        from_json(_Score, score[0]).give(trajectory)
    return trajectory


def _add_score(db: sqlite3.Connection, trajectory_id: str, score: _Score) -> None:
    """Stores a score. Raises KeyError for a run that has not ended, ConfigError for a reward that is not finite."""
    given = [score.reward, *(score.node_rewards or {}).values(), *score.completions.values()]
    if wrong := [value for value in given if value is not None and not math.isfinite(value)]:
        raise ConfigError(f"the reward of {trajectory_id} is {wrong[0]}: give a finite number, or None and an error")
    (trainable,) = db.execute(_TRAINABLE, {"id": trajectory_id}).fetchone()
    if trainable is None:
        raise KeyError(trajectory_id)
    if score.reward is not None and not trainable:
        warn_once(
            "a run has a reward and no completion of the trainer server: no step can train it",
            "Let the graph ask the policy by ChatART, or by the server's address as base_url, in the process "
            "that records it",
            example=trajectory_id,
        )
    db.execute("INSERT INTO scores VALUES (?, ?, ?)", (trajectory_id, time.time(), to_json(redacted(score))))


def _unfinished(db: sqlite3.Connection, record: str) -> Trajectory:
    trajectory = from_json(Trajectory, record)
    rows: Iterable[tuple[str]] = db.execute("SELECT record FROM completions WHERE trajectory = ?", (trajectory.id,))
    trajectory.completions = [from_json(CompletionCall, row) for (row,) in rows]
    trajectory.error = "the run has not ended"
    return trajectory
