"""Journal: what the autopilot did since it was last asked, written down before anybody is told."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from art_langgraph.auto_pilot.state import Entry, Pause, State
from art_langgraph.auto_pilot.state_store import StateStore


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
