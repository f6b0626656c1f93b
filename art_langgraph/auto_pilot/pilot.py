"""Autopilot: trains a candidate on what a deployment's runs came to, tries it, and promotes it or rolls it back.

Each phase does one thing, writes down what it did, and returns. What a phase sends to the server can be sent again,
so that a process that is killed anywhere loses nothing: the next one reads the state and goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from art_langgraph.auto_pilot.decision import Verdict
from art_langgraph.auto_pilot.gate import Gate
from art_langgraph.auto_pilot.preparation import Preparation, may_succeed_later
from art_langgraph.auto_pilot.runs import LedgerRuns, StoredRuns
from art_langgraph.auto_pilot.settings import AutopilotOptions
from art_langgraph.auto_pilot.state import Entry, Phase, State
from art_langgraph.auto_pilot.state_store import Journal, StateStore
from art_langgraph.auto_pilot.trial import BY_HAND, NOTHING_PROMOTED, PROMOTED_MEANWHILE, Trial
from art_langgraph.client.client import TrainerClient
from art_langgraph.store import TrajectoryStore
from trainer_server.wire import Policy, ServerError, ServerUnreachable

log = logging.getLogger("art_langgraph")


@dataclass
class Autopilot(AutopilotOptions):
    """Trains and canaries one policy beside production. `run` does it for good, `advance` does what can be done now."""

    def __post_init__(self) -> None:
        super().__post_init__()
        store = TrajectoryStore() if self.store is None else self.store
        self.state_store = StateStore(store, self.policy)
        self._journal = Journal(self.state_store)
        run_source = LedgerRuns(self.client, self.policy) if self.from_ledger else StoredRuns(store)
        self._gate = Gate(self, store)
        self._preparation = Preparation(self, store, self._journal, run_source, self._gate)
        self._trial = Trial(self, self._journal, run_source)

    async def run(self, *, resume: bool = False) -> AsyncIterator[Entry]:
        """Trains and canaries until it is paused. While the server cannot be reached it waits, and says so.

        Args:
            resume: Go on where it is paused.

        Yields:
            What it did, and why.

        Raises:
            ConfigError: Another process runs the autopilot of the policy, or the store cannot be used.
            ServerError: The server has no such policy.
        """
        async with self.state_store.alone():
            for entry in await self.resume() if resume else ():
                yield entry
            checked = False
            while True:
                try:
                    if not checked:
                        await self.client.require_admin("the autopilot promotes versions")
                        checked = True
                    entries = await self.advance()
                except (ServerUnreachable, ServerError) as error:
                    if isinstance(error, ServerError) and not _may_pass(error):
                        raise
                    log.warning("autopilot of %s: %s; it goes on when the server answers", self.policy, error)
                    entries = self._journal.take_entries()
                for entry in entries:
                    yield entry
                if (state := await self._state()) and state.pause:
                    return
                if not entries:
                    await asyncio.sleep(self.poll)

    async def advance(self) -> list[Entry]:
        """Does what is to be done now in the present phase, and writes it down.

        Returns:
            What it did. Empty: there is nothing to do yet, or it is paused.
        """
        policy, state = await self.client.policy(self.policy), await self._state()
        if state is None or state.created != policy.created:
            await self._take_over(policy, None)
        elif state.pause is None:
            await self._do(state, policy)
        return self._journal.take_entries()

    async def resume(self) -> list[Entry]:
        """Goes on where it is paused. The alarms that paused it do not pause it again until they have ended."""
        state = await self._state()
        if state is not None and state.pause is not None:
            cause, state.pause = state.pause.cause, None
            if cause in (BY_HAND, NOTHING_PROMOTED):
                state.take_over = True
            else:
                state.accepted = [*state.accepted, cause]
            await self._journal.note(state, "resumed", f"it goes on after {cause}")
        return self._journal.take_entries()

    async def status(self) -> dict[str, Any]:
        """Where it is, as JSON: phase, versions, pause, and what the runs of both versions came to."""
        state, counts = await self._state(), await self.client.candidate(self.policy)
        if state is None:
            return {"policy": self.policy, "phase": None}
        report = state.model_dump(mode="json", include={"policy", "phase", "champion", "candidate", "steps", "pause"})
        if state.phase == Phase.canary and state.since is not None:
            report["canary"] = (await self._trial.outcomes(state, counts))[2]
        return report

    async def stop(self) -> bool:
        """Decides that the present candidate goes; `advance` carries it out. False: there is no candidate."""
        state = await self._state()
        if state is None or state.phase not in (Phase.gate, Phase.canary):
            return False
        state.pause = None
        state.decide(Verdict.roll_back, "it was stopped by hand")
        await self._journal.write(state)
        return True

    async def _state(self) -> State | None:
        return await asyncio.to_thread(self.state_store.state)

    async def _do(self, state: State, policy: Policy) -> None:
        if state.phase in (Phase.collecting, Phase.gate, Phase.canary):
            if state.take_over:
                return await self._take_over(policy, state)
            if policy.promotions != state.promotions:
                return await self._trial.accept_promotion(state, policy)
            if policy.promoted is None:
                return await self._trial.nothing_promoted(state, policy)
        match state.phase:
            case Phase.collecting:
                await self._preparation.collect(state)
            case Phase.training:
                await self._preparation.train(state, policy)
            case Phase.gate:
                await self._preparation.measure(state, policy)
            case Phase.canary:
                await self._trial.compare(state, policy)
            case Phase.deciding:
                await self._trial.carry_out(state)

    async def _take_over(self, policy: Policy, state: State | None) -> None:
        """Begins with a policy as it is: its name means the same version as before."""
        how = "is promoted"
        if policy.promoted is None:
            policy = await self.client.promote(self.policy, policy.latest, after=policy.promotions)
            how = "was its newest version, and is promoted: no candidate answers anybody before its canary"
        state = state or State(policy=self.policy, created=policy.created)
        state.champion, state.promotions, state.take_over = policy.served, policy.promotions, False
        reason = f"{self.policy}@{state.champion} {how}. After {self.train_every} new runs a candidate is trained"
        if missing := self._gate.missing:
            reason += f"; {missing}: the canary alone decides"
        await self._journal.note(state, "started", reason, champion=state.champion, canary=self.canary)


def _may_pass(error: ServerError) -> bool:
    """Whether the same phase may succeed later, also after a promotion by hand while the request was under way."""
    return may_succeed_later(error) or error.code == PROMOTED_MEANWHILE


async def autopilot(
    policy: str, client: TrainerClient, *, resume: bool = False, **settings: Any
) -> AsyncIterator[Entry]:
    """Trains, tries and promotes versions of a policy beside production, until it is paused.

    Args:
        policy: The policy.
        client: The trainer server.
        resume: Go on where it is paused.
        settings: Arguments of `Autopilot`: `train_every`, `gate`, `canary` and others.

    Yields:
        What it did, and why.

    Raises:
        ConfigError, ServerError: As `Autopilot` and its `run`.
    """
    async for entry in Autopilot(policy, client, **settings).run(resume=resume):
        yield entry
