"""Autopilot: trains a candidate on what a deployment's runs came to, tries it, and promotes it or rolls it back.

Each phase does one thing, writes down what it did, and returns. What a phase tells the server can be told again, so
that a process that is killed anywhere loses nothing: the next one reads the state and goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from art_langgraph.auto_pilot.candidate import may_succeed_later
from art_langgraph.auto_pilot.decision import CanaryRules, Verdict
from art_langgraph.auto_pilot.gate import Gate
from art_langgraph.auto_pilot.journal import Journal
from art_langgraph.auto_pilot.preparation import Preparation
from art_langgraph.auto_pilot.runs import LedgerRuns, StoredRuns
from art_langgraph.auto_pilot.state import Entry, Phase, State
from art_langgraph.auto_pilot.state_store import StateStore
from art_langgraph.auto_pilot.trial import BY_HAND, NOTHING_PROMOTED, PROMOTED_MEANWHILE, Trial
from art_langgraph.client.client import TrainerClient
from art_langgraph.loop.evaluate import Success, full_reward
from art_langgraph.loop.graphs import GraphSource
from art_langgraph.loop.rollout import Graph, ScenarioLike
from art_langgraph.loop.watch.alarm_rules import AlarmRules
from art_langgraph.loop.watch.held_out import HeldOut
from art_langgraph.rewards import RewardFunction
from art_langgraph.store import TrajectoryStore
from trainer_server.wire import ConfigError, GRPOConfig, Policy, ServerError, ServerUnreachable

log = logging.getLogger("art_langgraph")


@dataclass
class Autopilot:
    """Flies one policy beside production. `run` does it for good, `advance` does what can be done now.

    Args:
        policy: The policy. A version of it is promoted when the autopilot starts, so that no candidate reaches anybody
            before its canary.
        client: The trainer server.
        store: Where the deployment's runs are, and the autopilot's state; None: the store under ART_HOME.
        train_every: New runs with a reward after which a candidate is trained.
        gate: Held-out scenarios (or a JSONL file of them) that a candidate is measured on before it answers anybody. It
            goes on if it succeeds as often as the promoted version, less `rules.tolerance`. Runs that ask the same are
            never trained on. None: the canary alone decides.
        graph: Runs the scenarios of the gate. Without one they cannot be measured, and the canary alone decides.
        reward: Scores those runs.
        gate_name: Name of the gate's measurements. Versions are measured anew under another name: give one where the
            graph was changed, which is not noticed.
        canary: The candidate's share of new rollouts: `0.1` or `"10%"`.
        success: Whether a run of the deployment succeeded that has a reward; by default a reward of at least 1.
        rules: When a candidate is decided.
        alarms: Thresholds of the alarms, which pause the autopilot.
        config: Settings of the training steps; None: the defaults.
        nodes: Patterns of the node paths to train; None: all.
        from_ledger: Train on rollouts of the server that were given a reward by HTTP, instead of runs of the store.
        max_age: Days. Older runs are not trained on.
        poll: Seconds between two looks at the store.

    Raises:
        ConfigError: A setting is out of its range, or the gate cannot be read.
    """

    policy: str
    client: TrainerClient
    _: KW_ONLY
    store: TrajectoryStore | None = None
    train_every: int = 50
    gate: HeldOut | Sequence[ScenarioLike] | str | Path | None = None
    graph: Graph | GraphSource | None = None
    reward: RewardFunction | None = None
    gate_name: str = ""
    canary: float | str = 0.1
    success: Success = full_reward
    rules: CanaryRules = field(default_factory=CanaryRules)
    alarms: AlarmRules = field(default_factory=AlarmRules)
    config: GRPOConfig | None = None
    nodes: Sequence[str] | None = None
    from_ledger: bool = False
    max_age: float = 7.0
    poll: float = 10.0

    def __post_init__(self) -> None:
        if self.train_every < 1 or self.poll <= 0 or self.max_age <= 0:
            raise ConfigError(
                f"train_every={self.train_every} must be at least 1, poll={self.poll:g} and max_age={self.max_age:g} "
                "above 0"
            )
        share = share_of(self.canary)
        store = TrajectoryStore() if self.store is None else self.store
        self.state_store = StateStore(store, self.policy)
        self._journal = Journal(self.state_store)
        self._gate = Gate(
            self.gate,
            graph=self.graph,
            reward=self.reward,
            success=self.success,
            store=store,
            name=self.gate_name,
        )
        recorded = LedgerRuns(self.client, self.policy) if self.from_ledger else StoredRuns(store)
        self._preparation = Preparation(
            self.policy,
            client=self.client,
            store=store,
            journal=self._journal,
            run_source=recorded,
            gate=self._gate,
            train_every=self.train_every,
            max_age=self.max_age,
            rules=self.rules,
            alarms=self.alarms,
            config=self.config,
            nodes=self.nodes,
        )
        self._trial = Trial(
            self.policy,
            client=self.client,
            journal=self._journal,
            run_source=recorded,
            share=share,
            success=self.success,
            rules=self.rules,
        )

    async def run(self, *, resume: bool = False) -> AsyncIterator[Entry]:
        """Flies until it is paused. While the server cannot be reached it waits, and says so.

        Args:
            resume: Go on where it is paused.

        Yields:
            What it did, and why.

        Raises:
            ConfigError: Another process flies the policy, or the store cannot be used.
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
                    if isinstance(error, ServerError) and not _passes(error):
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
        told = {"policy", "phase", "champion", "candidate", "steps", "pause"}
        report = state.model_dump(mode="json", include=told)
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
        said = f"{self.policy}@{state.champion} {how}. After {self.train_every} new runs a candidate is trained"
        if missing := self._gate.missing:
            said += f"; {missing}: the canary alone decides"
        await self._journal.note(state, "started", said, champion=state.champion, canary=self.canary)


def _passes(error: ServerError) -> bool:
    """Whether the same phase may succeed later, also because somebody promoted while the request was under way."""
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


def share_of(text: float | str) -> float:
    """A share such as `0.1` or `"10%"`. Raises ConfigError for what is none, or leaves nothing to compare with."""
    try:
        share = float(text[:-1]) / 100 if isinstance(text, str) and text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ConfigError(f"canary={text!r} is no share of the rollouts: say 10%, or 0.1; it is above 0 and below 1")
    return share
