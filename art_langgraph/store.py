"""TrajectoryStore: every recorded run, in SQLite (WAL). Append-only; several processes may write at once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from art_langgraph.trajectory import Trajectory
from trainer_server.wire import Home

_SCHEMA = """
CREATE TABLE IF NOT EXISTS trajectories (
    id TEXT PRIMARY KEY,
    started REAL NOT NULL,
    scenario TEXT NOT NULL,
    reward REAL,
    error TEXT,
    record TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS trajectories_started ON trajectories (started);
"""


class TrajectoryStore:
    """A file of trajectories; by default `trajectories.sqlite` under ART_HOME."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else Home.find().store
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with closing(self._open()) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.executescript(_SCHEMA)

    def add(self, trajectory: Trajectory) -> None:
        """Appends a trajectory; when this returns, a kill of the process cannot lose it.

        Raises sqlite3.IntegrityError for an id that is there already.
        """
        row = (
            trajectory.id,
            trajectory.started,
            trajectory.scenario.id,
            trajectory.reward,
            trajectory.error,
            trajectory.model_dump_json(),
        )
        with closing(self._open()) as db, db:
            db.execute("INSERT INTO trajectories VALUES (?, ?, ?, ?, ?, ?)", row)

    def get(self, trajectory_id: str) -> Trajectory | None:
        with closing(self._open()) as db:
            found = db.execute("SELECT record FROM trajectories WHERE id = ?", (trajectory_id,)).fetchone()
        return Trajectory.model_validate(json.loads(found[0])) if found else None

    def list(
        self, *, scenario: str | None = None, since: float | None = None, limit: int | None = None
    ) -> list[Trajectory]:
        """Trajectories, newest first."""
        return list(self._select(scenario, since, limit))

    def __iter__(self) -> Iterator[Trajectory]:
        return self._select(None, None, None)

    def __len__(self) -> int:
        with closing(self._open()) as db:
            return int(db.execute("SELECT count(*) FROM trajectories").fetchone()[0])

    def _select(self, scenario: str | None, since: float | None, limit: int | None) -> Iterator[Trajectory]:
        query = "SELECT record FROM trajectories WHERE (?1 IS NULL OR scenario = ?1) AND (?2 IS NULL OR started >= ?2)"
        query += " ORDER BY started DESC LIMIT ?3"
        with closing(self._open()) as db:
            for (record,) in db.execute(query, (scenario, since, -1 if limit is None else limit)):
                yield Trajectory.model_validate(json.loads(record))

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=30)
