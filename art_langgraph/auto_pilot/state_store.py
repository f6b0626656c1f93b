"""The autopilot's memory: its state and its history, in the database of the trajectory store.

A state and the entries that led to it are written in one transaction, so that a process that is killed has done both or
neither.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from typing import Any

from art_langgraph.auto_pilot.state import Entry, Pause, Phase, State
from art_langgraph.store import TrajectoryStore
from trainer_server.common.jsonl import from_json, to_json
from trainer_server.wire import NAME_PATTERN, ConfigError


class StateStore:
    """State and history of one policy's autopilot.

    Args:
        store: The trajectory store.
        policy: Name of the policy.

    Raises:
        ConfigError: The name is none of a policy, or the store cannot be used. All methods raise it.
    """

    def __init__(self, store: TrajectoryStore, policy: str) -> None:
        if not re.fullmatch(NAME_PATTERN, policy):
            raise ConfigError(f"{policy!r} is no name of a policy: letters, digits, `.`, `_` and `-`")
        self._store, self._policy = store, policy
        self._holds: Callable[[], bool] | None = None
        """Whether this process still has the lock of `alone`; None: it does not run the autopilot."""

    def state(self) -> State | None:
        """The state; None: the policy has had no autopilot."""
        with self._store.database.connect() as db:
            row = db.execute("SELECT record FROM autopilots WHERE policy = ?", (self._policy,)).fetchone()
        return from_json(State, row[0]) if row else None

    def write(self, state: State, *entries: Entry) -> None:
        """Records a state, and what led to it. When this returns, it survives a kill of the process.

        Raises:
            ConfigError: This process runs the autopilot, and has lost the lock that kept others from it.
        """
        if self._holds is not None and not self._holds():
            raise ConfigError(
                f"the lock of the autopilot of {self._policy!r} is lost, since the database {self._store.name} has "
                "ended the connection that held it: start the autopilot again"
            )
        query = """
            INSERT INTO autopilots (policy, record) VALUES (?, ?)
            ON CONFLICT (policy) DO UPDATE SET record = excluded.record
        """
        with self._store.database.connect() as db, db.transaction():
            db.execute(query, (self._policy, to_json(state)))
            rows = [(self._policy, to_json(entry)) for entry in entries]
            db.executemany("INSERT INTO autopilot_history (policy, record) VALUES (?, ?)", rows)

    def history(self) -> Sequence[Entry]:
        """All that the autopilot did, oldest first."""
        query = "SELECT record FROM autopilot_history WHERE policy = ? ORDER BY rowid"
        with self._store.database.connect() as db:
            return [from_json(Entry, record) for (record,) in db.execute(query, (self._policy,))]

    def step_of_a_running_autopilot(self) -> str | None:
        """Key of the step that another process is sending, or waits for; None: there is none."""
        state = self.state()
        if state is None or state.phase != Phase.training:
            return None
        with self._lock() as free:
            return None if free else state.key

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Keeps other processes from running an autopilot of the policy. A process that is killed gives the lock back.

        Raises:
            ConfigError: Another one does.
        """
        with ExitStack() as stack:
            holds = await asyncio.to_thread(stack.enter_context, self._lock())
            if holds is None:
                raise ConfigError(
                    f"another autopilot of {self._policy!r} runs on {self._store.name}: there can be one; `--status` "
                    "and `--log` show what it does"
                )
            self._holds = holds
            try:
                yield
            finally:
                self._holds = None

    def _lock(self) -> AbstractContextManager[Callable[[], bool] | None]:
        return self._store.database.alone(f"autopilot-{self._policy}")


class Journal:
    """Writes states with the entries that led to them.

    Args:
        states: Where they are kept.
    """

    def __init__(self, states: StateStore) -> None:
        self._states = states
        self._new: list[Entry] = []

    def entry(self, state: State, event: str, reason: str, **numbers: Any) -> Entry:
        """An entry about the candidate, where there is one. It is not written yet.

        Args:
            state: Of the policy.
            event: What happened, in a word: `gate`, `paused`.
            reason: Why, in words.
            numbers: What the reason rests on, as JSON.
        """
        return Entry(
            time=time.time(),
            policy=state.policy,
            event=event,
            version=state.candidate,
            reason=reason,
            numbers=numbers,
        )

    async def write(self, state: State, *entries: Entry) -> None:
        """Writes a state, and the entries that led to it."""
        await asyncio.to_thread(self._states.write, state, *entries)
        self._new += entries

    async def note(self, state: State, event: str, reason: str, **numbers: Any) -> None:
        """Writes a state with one entry.

        Args:
            state: Of the policy.
            event: What happened, in a word: `gate`, `paused`.
            reason: Why, in words.
            numbers: The numbers that the reason is based on, as JSON.
        """
        await self.write(state, self.entry(state, event, reason, **numbers))

    async def pause(self, state: State, pause: Pause, *entries: Entry) -> None:
        """Writes a state that is paused, and why.

        Args:
            state: Of the policy.
            pause: Cause, reason and remedy.
            entries: What led to the pause.
        """
        state.pause = pause
        await self.write(state, *entries, self.entry(state, "paused", str(pause), cause=pause.cause))

    def take_entries(self) -> list[Entry]:
        """The entries since the last call."""
        new, self._new = self._new, []
        return new
