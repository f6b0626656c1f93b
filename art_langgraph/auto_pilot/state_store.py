"""The autopilot's memory: its state and its history, in the SQLite file of the trajectory store.

A state and the entries that led to it are written in one transaction, so that a process that is killed has done both or
neither.
"""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from art_langgraph.auto_pilot.state import Entry, Phase, State
from art_langgraph.store import SCHEMA
from trainer_server.wire import NAME_PATTERN, ConfigError
from trainer_server.wire.jsonl import from_json, to_json


class StateStore:
    """State and history of one policy's autopilot.

    Args:
        path: The file of the trajectory store.
        policy: Name of the policy.

    Raises:
        ConfigError: The name is none of a policy, or the file cannot be used. All methods raise it.
    """

    def __init__(self, path: Path, policy: str) -> None:
        if not re.fullmatch(NAME_PATTERN, policy):
            raise ConfigError(f"{policy!r} is no name of a policy: letters, digits, `.`, `_` and `-`")
        self._path, self._policy = path, policy
        with self._opened() as db:
            SCHEMA.bring_up(db, path)

    def state(self) -> State | None:
        """The state; None: the policy has had no autopilot."""
        with self._opened() as db:
            row = db.execute("SELECT record FROM autopilots WHERE policy = ?", (self._policy,)).fetchone()
        return from_json(State, row[0]) if row else None

    def write(self, state: State, *entries: Entry) -> None:
        """Records a state, and what led to it. When this returns, it survives a kill of the process."""
        with self._opened() as db, db:
            db.execute("INSERT OR REPLACE INTO autopilots VALUES (?, ?)", (self._policy, to_json(state)))
            rows = [(self._policy, to_json(entry)) for entry in entries]
            db.executemany("INSERT INTO autopilot_history VALUES (?, ?)", rows)

    def history(self) -> Sequence[Entry]:
        """All that the autopilot did, oldest first."""
        with self._opened() as db:
            query = "SELECT record FROM autopilot_history WHERE policy = ? ORDER BY rowid"
            return [from_json(Entry, record) for (record,) in db.execute(query, (self._policy,))]

    def step_of_a_running_autopilot(self) -> str | None:
        """Key of the step that another process is sending, or waits for; None: there is none."""
        state = self.state()
        if state is None or state.phase != Phase.training:
            return None
        try:
            with self.alone():
                return None
        except ConfigError:
            return state.key

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other processes from flying the same policy. A process that is killed keeps nobody from it.

        Raises:
            ConfigError: Another one does.
        """
        path = self._path.with_name(f"{self._path.name}.autopilot-{self._policy}.lock")
        lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another autopilot of {self._policy!r} runs on {self._path}: there can be one; `--status` and "
                    "`--log` show what it does"
                ) from None
            yield
        finally:
            os.close(lock)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._path, timeout=30)) as db:
                yield db
        except sqlite3.Error as error:
            raise ConfigError(f"the autopilot's state in {self._path} cannot be read or written: {error}") from error
