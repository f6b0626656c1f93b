"""TrajectoryStore: every recorded run. Several processes may write at once.

The record of a finished run is never changed. What becomes known later, such as a score or the run that resumed it, is
a row of another table. `TrajectoryStore` merges these rows into the trajectory when it reads it: a run that stopped at
an interrupt and the runs that resumed its thread are read as a single trajectory, with the id of the first.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from art_langgraph.store.database import PATIENCE, Connection, Database, json_array
from art_langgraph.store.filter import FIRST, Filter
from art_langgraph.store.reading import ids_of_parts, read_runs, read_unfinished
from art_langgraph.store.score import Score, add_score
from art_langgraph.store.session import Session
from art_langgraph.store.sqlite import SQLiteDatabase
from art_langgraph.trajectory import Trajectory, TrajectoryGroup
from trainer_server.common import Home
from trainer_server.common.extensions import load
from trainer_server.common.jsonl import from_json
from trainer_server.wire import ConfigError

log = logging.getLogger("art_langgraph")

_AT_ONCE = 32
"""Runs that are read by one query."""


class TrajectoryStore:
    """Trajectories in a SQLite file, or in a PostgreSQL database.

    Only the user may read a file, since it has what people and models wrote. A file that exists keeps its permissions.
    A database needs psycopg: `pip install 'art-langgraph[postgres]'`.

    Args:
        path: The file, created if it is missing, for its owner only; or `postgresql://…`, as libpq reads it. None:
            what ART_STORE names, or `trajectories.sqlite` under ART_HOME.

    Attributes:
        name: The store, as messages name it: the file, or the database without user and password.
        path: The file; None: the store is in PostgreSQL.

    Raises:
        ConfigError: The file or the tables cannot be made or opened, the database does not answer, psycopg is missing,
            or a newer release wrote the store (NewerSchema).
    """

    def __init__(self, path: str | Path | None = None) -> None:
        path = path if path is not None else os.environ.get("ART_STORE") or None
        self.database: Database
        self.path: Path | None = None
        if isinstance(path, str) and (url := _address(path)):
            self.database = _postgres(url)
        else:
            self.path = _file_of(Home.find()) if path is None else Path(path)
            self.database = SQLiteDatabase(self.path)
        self.name = self.database.name

    @contextmanager
    def session(self, *, patience: float = PATIENCE) -> Iterator[Session]:
        """Opens a connection for several batches of writes. Use it in the thread that opened it.

        Args:
            patience: Seconds to wait while another process writes, before a write raises StoreUnavailable.
        """
        with self.database.connect(patience) as db:
            yield Session(self.database, db)

    def add(self, trajectory: Trajectory, *, replaces: Iterable[str] = ()) -> None:
        """Appends a finished run. When this returns, the run survives a kill of the process.

        Args:
            trajectory: The run.
            replaces: Ids of runs that this run contains, and that are removed: those of its remote graphs, whose
                process may have recorded them in the same store.

        Raises:
            DuplicateRun: The store has another run with this id. The same run may be added again.
            StoreUnavailable: The store cannot be used, as on a full disk. All methods that read or write raise it.
        """
        with self.session() as session, session.batch() as batch:
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
        score = Score(reward=reward, reward_error=error, parts=dict(parts or {}), reward_source=source)
        self._add_scores({trajectory_id: score})

    def score_run(self, run: Trajectory, source: str) -> None:
        """Stores all rewards that a run has, in place of those that it had in the store; or why it has none.

        Args:
            run: A stored run that was scored.
            source: Origin of the rewards, read back as `Trajectory.reward_source`.

        Raises:
            ConfigError: A reward is not finite.
            KeyError: The store has no finished run with this id.
        """
        self._add_scores({run.id: Score.of(run, source)})

    def score_group(self, group: TrajectoryGroup, source: str = "group") -> None:
        """Stores the rewards of all runs of a group, as `score_run` does: of all of them, or of none.

        Args:
            group: Trajectories that were scored together.
            source: Origin of the rewards, read back as `Trajectory.reward_source`.

        Raises:
            ConfigError: A reward is not finite.
            KeyError: The store lacks a trajectory of the group.
        """
        self._add_scores({run.id: Score.of(run, source) for run in group.trajectories})

    def _add_scores(self, scores: Mapping[str, Score]) -> None:
        with self.database.connect() as db, db.transaction():
            for trajectory_id, score in scores.items():
                add_score(db, trajectory_id, score)

    def begin_step(
        self, policy: str, step: str, trajectory_ids: Iterable[str], *, again: bool = True
    ) -> frozenset[str]:
        """Records which runs a training step trains. Call it before the step is sent, and `end_step` after it.

        A step that was begun before under the same key is replaced, because the server did not accept it.

        A process that is killed in between leaves the step open, and its runs count as trained: the server may have
        accepted it. `open_steps` names such steps, `TrainerClient.find_step` has their jobs.

        Args:
            policy: Name of the trained policy.
            step: The idempotency key that the step is sent with.
            trajectory_ids: Ids of the runs.
            again: Also those of other steps. False: these are left out, also those of a step that another process
                begins now.

        Returns:
            Ids of the runs that the step may train.
        """
        with self.database.connect() as db, db.transaction():
            db.execute("DELETE FROM steps WHERE policy = ? AND step = ?", (policy, step))
            ids = frozenset(trajectory_ids)
            if not again:
                ids -= _find_trained_ids(db, policy)
            rows = [(policy, step, trajectory_id) for trajectory_id in sorted(ids)]
            query = "INSERT INTO steps (policy, step, trajectory) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
            db.executemany(query, rows)
        return ids

    def end_step(self, policy: str, step: str, version: int | None) -> None:
        """Records what became of a step that `begin_step` recorded. The last record counts. Unknown steps are ignored.

        Args:
            policy: Name of the policy.
            step: The step's idempotency key.
            version: The version that it made; None: it made none, so that its runs do not count as trained.
        """
        with self.database.connect() as db, db.transaction():
            db.execute("UPDATE steps SET ended = 1, version = ? WHERE policy = ? AND step = ?", (version, policy, step))

    def open_steps(self, policy: str) -> list[str]:
        """Idempotency keys of the policy's steps that were begun and not ended."""
        with self.database.connect() as db:
            query = "SELECT step FROM steps WHERE policy = ? AND ended = 0 GROUP BY step ORDER BY min(rowid)"
            return [step for (step,) in db.execute(query, (policy,))]

    def runs_of_step(self, policy: str, step: str) -> set[str]:
        """Ids of the runs that a step was begun with, whatever became of it; none where it is unknown.

        Args:
            policy: Name of the policy.
            step: The step's idempotency key.
        """
        with self.database.connect() as db:
            query = "SELECT trajectory FROM steps WHERE policy = ? AND step = ?"
            return {trajectory_id for (trajectory_id,) in db.execute(query, (policy, step))}

    def trained(self, policy: str) -> set[str]:
        """Ids of the runs of the steps of `policy` that made a version, and of open steps.

        A run that resumed another run has the id of that one, as everywhere.
        """
        with self.database.connect() as db:
            return _find_trained_ids(db, policy)

    def add_evaluation(self, key: str, version: int, trajectory_ids: Sequence[str]) -> None:
        """Records which runs are the evaluation of a version. A version that was evaluated keeps its first evaluation.

        Args:
            key: What the evaluation belongs to: policy, scenarios, and how they were measured.
            version: The version that was evaluated.
            trajectory_ids: Ids of its runs.
        """
        row = key, version, json_array(trajectory_ids)
        with self.database.connect() as db, db.transaction():
            query = "INSERT INTO evaluations (key, version, trajectories) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
            db.execute(query, row)

    def evaluations(self, key: str) -> dict[int, list[str]]:
        """Ids of the runs that evaluate versions: by version, in the order in which they were recorded.

        Args:
            key: What the evaluations belong to: policy, scenarios, and how they were measured.
        """
        query = "SELECT version, trajectories FROM evaluations WHERE key = ? ORDER BY rowid"
        with self.database.connect() as db:
            return {version: json.loads(ids) for version, ids in db.execute(query, (key,))}

    def set_tuning(self, key: str, max_concurrency: int) -> None:
        """Records how many runs at once a training found for itself. The last record counts.

        Args:
            key: What the record belongs to: policy and training run.
            max_concurrency: Runs at once.
        """
        query = """
            INSERT INTO tunings (key, max_concurrency) VALUES (?, ?)
            ON CONFLICT (key) DO UPDATE SET max_concurrency = excluded.max_concurrency
        """
        with self.database.connect() as db, db.transaction():
            db.execute(query, (key, max_concurrency))

    def tuning(self, key: str) -> int | None:
        """The runs at once of `set_tuning`; None: there is no record.

        Args:
            key: What the record belongs to: policy and training run.
        """
        with self.database.connect() as db:
            row = db.execute("SELECT max_concurrency FROM tunings WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def get(self, trajectory_id: str) -> Trajectory | None:
        """A run by its id, finished or not; None where the store has no such run.

        A run that resumed another run is read with it.
        """
        with self.database.connect() as db:
            first = db.execute("SELECT first FROM resumed WHERE trajectory = ?", (trajectory_id,)).fetchone()
            if runs := read_runs(self.database, db, [first[0] if first else trajectory_id]):
                return runs[0]
            row = db.execute("SELECT record FROM begun WHERE id = ?", (trajectory_id,)).fetchone()
            return read_unfinished(db, row[0]) if row else None

    def revision(self) -> tuple[int | str | None, ...]:
        """What differs whenever a run or a score was added. Cheap: nothing is parsed."""
        # The last id too: SQLite gives the number of a row that was deleted to the next one.
        tables = {"trajectories": "id", "scores": "trajectory", "resumed": "trajectory"}
        last = [
            f"(SELECT {column} FROM {table} ORDER BY rowid DESC LIMIT 1)"
            for table, key in tables.items()
            for column in ("rowid", key)
        ]
        with self.database.connect() as db:
            return tuple(db.execute(f"SELECT {', '.join(last)}").fetchone())

    def rewards(self, trajectory_ids: Sequence[str]) -> dict[str, float | None]:
        """The rewards of those of these runs that the store has, finished ones. None: such a run has no reward.

        A run that resumed another run has the reward of the whole.

        Args:
            trajectory_ids: Ids of trajectories.
        """
        query = f"""
            SELECT value, coalesce(first, value) FROM {self.database.texts("?")} AS ids
            LEFT JOIN resumed ON trajectory = value
        """
        with self.database.connect() as db:
            firsts = dict(db.execute(query, (json_array(trajectory_ids),)).fetchall())
            runs = read_runs(self.database, db, list(dict.fromkeys(firsts.values())))
        rewards = {run.id: run.reward for run in runs}
        return {run_id: rewards[first] for run_id, first in firsts.items() if first in rewards}

    def parts(self, trajectory_id: str) -> Sequence[Trajectory]:
        """The records of a run and of all runs that are read with it, because they resumed it; unfinished ones too.

        Args:
            trajectory_id: Id of any of them.
        """
        with self.database.connect() as db:
            records = []
            for part in ids_of_parts(self.database, db, [trajectory_id]):
                if row := db.execute("SELECT record FROM trajectories WHERE id = ?", (part,)).fetchone():
                    records.append(from_json(Trajectory, row[0]))
                elif row := db.execute("SELECT record FROM begun WHERE id = ?", (part,)).fetchone():
                    records.append(read_unfinished(db, row[0]))
        return records

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
        with self.database.connect() as db, db.transaction():
            ids = json_array(ids_of_parts(self.database, db, trajectory_ids))
            among_ids = f"IN {self.database.texts('?')}"
            count = 0
            for table in ("trajectories", "begun"):
                count += db.execute(f"DELETE FROM {table} WHERE id {among_ids}", (ids,)).rowcount
            for table in ("completions", "resumed", "scores", "steps"):
                db.execute(f"DELETE FROM {table} WHERE trajectory {among_ids}", (ids,))
            with_one = (
                f"EXISTS (SELECT 1 FROM {self.database.texts('trajectories')} AS run WHERE run.value {among_ids})"
            )
            db.execute(f"DELETE FROM evaluations WHERE {with_one}", (ids,))
        self.database.overwrite()
        return count

    def prune(self, *, days: float | None = None, most_bytes: int | None = None) -> int:
        """Deletes the oldest runs, as `delete` does.

        Args:
            days: Runs that began longer ago are deleted; None: none for their age.
            most_bytes: Bytes that the records of all runs may take, finished or not; the oldest runs are deleted until
                they do not take more. The files are larger, by indexes and free space. None: none for its size.

        Returns:
            How many records were deleted.
        """
        count = 0
        if days is not None:
            before = time.time() - days * 86400
            query = "SELECT id FROM trajectories WHERE started < ? UNION SELECT id FROM begun WHERE started < ?"
            with self.database.connect() as db:
                rows = db.execute(query, (before, before)).fetchall()
            count += self.delete([trajectory_id for (trajectory_id,) in rows]) if rows else 0
        if most_bytes is not None:
            sizes = self._sizes()
            excess = sum(sizes.values()) - most_bytes
            oldest = list[str]()
            for trajectory_id, size in sizes.items():
                if excess <= 0:
                    break
                oldest.append(trajectory_id)
                excess -= size
            count += self.delete(oldest) if oldest else 0
        return count

    def _sizes(self) -> dict[str, int]:
        """The bytes that the records of each run take, oldest run first. Those that are read with it are counted."""
        size = self.database.record_size
        query = f"""
            SELECT coalesce(first, run), sum(size), coalesce(min(started), 0) FROM (
                SELECT id AS run, started, {size} AS size FROM trajectories
                UNION ALL SELECT id, started, {size} FROM begun
                UNION ALL SELECT trajectory, NULL, {size} FROM completions
                UNION ALL SELECT trajectory, NULL, {size} FROM scores
            ) AS records LEFT JOIN resumed ON trajectory = run GROUP BY 1 ORDER BY 3
        """
        with self.database.connect() as db:
            return {run: int(size) for run, size, _ in db.execute(query)}

    def find(self, run_id: str) -> Trajectory | None:
        """The newest run with an id: the trajectory's, or that of LangGraph's run. None where no run has this id."""
        if trajectory := self.get(run_id):
            return trajectory
        return next(iter(self.list(run=run_id, limit=1)), None)

    def ids_with_prefix(self, prefix: str) -> list[str]:
        """Ids of trajectories and of LangGraph's runs that begin with `prefix`, sorted."""
        query = """
            SELECT id FROM trajectories WHERE id >= ? AND id < ?
            UNION SELECT run FROM trajectories WHERE run >= ? AND run < ?
            UNION SELECT id FROM begun WHERE id >= ? AND id < ? ORDER BY 1
        """
        with self.database.connect() as db:
            return [run_id for (run_id,) in db.execute(query, (prefix, prefix + chr(0x10FFFF)) * 3)]

    def list(self, *, limit: int | None = None, **filters: Any) -> list[Trajectory]:
        """Finished runs, newest first.

        Args:
            limit: How many at most; None: all.
            filters: Fields of `Filter`.
        """
        return list(self._select(Filter(**filters), limit))

    def unfinished(self) -> Sequence[Trajectory]:
        """Runs that have begun and not ended: they still run, or their process was killed. Newest first.

        Each has the completions that were recorded until now.
        """
        query = "SELECT record FROM begun WHERE id NOT IN (SELECT id FROM trajectories) ORDER BY started DESC"
        with self.database.connect() as db:
            return [read_unfinished(db, record) for (record,) in db.execute(query).fetchall()]

    def __iter__(self) -> Iterator[Trajectory]:
        return self._select(Filter(), None)

    def __len__(self) -> int:
        with self.database.connect() as db:
            return int(db.execute(f"SELECT count(*) FROM trajectories WHERE {FIRST}").fetchone()[0])

    def _select(self, run_filter: Filter, limit: int | None) -> Iterator[Trajectory]:
        """Finished runs, newest first. No query is open while the caller works with a run."""
        condition, values = run_filter.condition(self.database)
        query = f"SELECT id FROM trajectories WHERE {condition} ORDER BY started DESC, rowid DESC"
        if limit is not None and run_filter.admits_all:
            query += f" LIMIT {max(limit, 0):d}"
        with self.database.connect() as db:
            ids = [trajectory_id for (trajectory_id,) in db.execute(query, values)]
        return itertools.islice(self._read_few(ids, run_filter), None if limit is None else max(limit, 0))

    def _read_few(self, ids: Sequence[str], run_filter: Filter) -> Iterator[Trajectory]:
        for start in range(0, len(ids), _AT_ONCE):
            with self.database.connect() as db:
                runs = read_runs(self.database, db, ids[start : start + _AT_ONCE])
            yield from filter(run_filter.admits, runs)


def _find_trained_ids(db: Connection, policy: str) -> set[str]:
    """Ids of the runs of a policy's steps that made a version, and of open steps."""
    query = """
        SELECT DISTINCT coalesce(first, steps.trajectory)
        FROM steps LEFT JOIN resumed ON resumed.trajectory = steps.trajectory
        WHERE policy = ? AND (version IS NOT NULL OR ended = 0)
    """
    return {trajectory_id for (trajectory_id,) in db.execute(query, (policy,))}


def _file_of(home: Home) -> Path:
    """The store's file in a home, which is made for its owner only."""
    try:
        if warning := home.make_private():
            log.warning("%s", warning)
    except OSError as error:
        raise ConfigError(
            f"the trajectory store {home.store} cannot be opened: {error}. Name another directory with ART_HOME"
        ) from error
    return home.store


def _address(text: str) -> str | None:
    """The address that a text is; None: it is a path. Raises ConfigError for an address that the store cannot use."""
    scheme, mark, rest = text.partition("://")
    if mark and scheme.lower() in ("postgresql", "postgres"):
        return f"{scheme.lower()}://{rest}"  # libpq knows small letters only
    if mark or re.search(r"password\s*=", text, re.IGNORECASE):  # it may have a password: it is not shown
        raise ConfigError(
            "a trajectory store (ART_STORE, --store) is the path of a SQLite file, or "
            "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, without the name of a driver. What was given is neither, "
            "and is not shown, since it may have a password"
        )
    return None


def _postgres(url: str) -> Database:
    try:
        database: Database = load("art_langgraph.store.postgres").PostgresDatabase(url)
    except ImportError as error:
        raise ConfigError(
            f"a trajectory store in PostgreSQL needs psycopg ({error}): pip install 'art-langgraph[postgres]'"
        ) from None
    return database
