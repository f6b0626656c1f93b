"""Preparation of a candidate: runs are collected, a step is trained on them, its version is measured on the gate."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from art_langgraph.auto_pilot.candidate import step_figures, train_candidate
from art_langgraph.auto_pilot.decision import CanaryRules, Verdict, gate
from art_langgraph.auto_pilot.gate import Gate
from art_langgraph.auto_pilot.journal import Journal
from art_langgraph.auto_pilot.runs import RunSource, trainable
from art_langgraph.auto_pilot.state import Entry, Pause, Phase, State, to_record
from art_langgraph.client.client import TrainerClient
from art_langgraph.credit import compare
from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.loop.failures import RolloutsFailed
from art_langgraph.loop.pins import PinIgnored
from art_langgraph.loop.watch.alarm_rules import AlarmRules
from art_langgraph.loop.watch.signals import Signals
from art_langgraph.store import TrajectoryStore
from trainer_server.wire import GRPOConfig, JobFailed, Policy

_BATCHES = 4
"""A step takes at most so many times `train_every` runs: the newest, and those first that no step was given yet. The
others wait for the next one."""
_DAY = 86400.0


class Preparation:
    """The phases collecting, training and gate of one policy.

    Args:
        policy: Name of the policy.
        client: The trainer server.
        store: Where runs are marked as trained.
        journal: Where it is written down.
        run_source: The runs of the deployment.
        gate: What a candidate is measured on.
        train_every: New runs after which a step is taken.
        max_age: Days. Older runs are not trained on.
        rules: How much worse a candidate may be on the gate.
        alarms: When the figures of the steps are an alarm.
        config: Settings of the steps.
        nodes: The nodes to train; None: all.
    """

    def __init__(
        self,
        policy: str,
        *,
        client: TrainerClient,
        store: TrajectoryStore,
        journal: Journal,
        run_source: RunSource,
        gate: Gate,
        train_every: int,
        max_age: float,
        rules: CanaryRules,
        alarms: AlarmRules,
        config: GRPOConfig | None,
        nodes: Sequence[str] | None,
    ) -> None:
        self._policy, self._client, self._store, self._journal = policy, client, store, journal
        self._recorded, self._gate, self._train_every, self._max_age = run_source, gate, train_every, max_age
        self._rules, self._alarms, self._config, self._nodes = rules, alarms, config, nodes

    async def collect(self, state: State) -> None:
        """Begins a step once there are enough new runs."""
        recorded = await self._recorded.runs(time.time() - self._max_age * _DAY)
        trained = await asyncio.to_thread(self._store.trained, self._policy)
        fresh = [run for run in recorded if run.id not in trained and trainable(run, self._policy, self._gate.tasks)]
        tried = {run.id for run in fresh}.intersection(state.tried)
        new = len(fresh) - len(tried)
        if new < self._train_every:
            return
        chosen = sorted(fresh, key=lambda run: run.id in tried)[: _BATCHES * self._train_every]
        state.phase, state.key, state.runs = Phase.training, uuid.uuid4().hex, [run.id for run in chosen]
        state.tried = sorted(tried)
        held = sum(run.scored and not trainable(run, self._policy, self._gate.tasks) for run in recorded)
        left = f", {len(fresh) - len(chosen)} others wait" if len(fresh) > len(chosen) else ""
        said = f"a candidate is trained from {self._policy}@{state.champion} on {len(chosen)} runs{left}"
        await self._journal.note(
            state, "training", said, runs=len(chosen), new=new, waiting=len(fresh) - len(chosen), left_out=held
        )

    async def train(self, state: State, policy: Policy) -> None:
        """Sends the step, or finds it again, and waits for its version."""
        runs = await self._recorded.read(state.runs)
        job = await self._client.find_step(self._policy, state.key)
        if job is None:  # somebody else may have taken runs meanwhile: `train --from-store`, say
            ids = [run.id for run in runs]
            free = await asyncio.to_thread(self._store.begin_step, self._policy, state.key, ids, again=False)
            runs = [run for run in runs if run.id in free]
        recorded = await self._recorded.runs(time.time() - self._max_age * _DAY)
        comparison = compare(runs, self._policy, history=recorded, nodes=self._nodes)
        try:
            result = await train_candidate(self._client, self._store, state, comparison, job, config=self._config)
        except JobFailed as error:
            state.collect()
            remedy = "See why (`art-langgraph jobs list`, the server's log); after --resume the runs are used again"
            return await self._journal.pause(state, Pause(cause="step_failed", reason=str(error), remedy=remedy))
        state.tried = sorted({*state.tried, *state.runs})
        if result is None or (skipped := result.metrics.get("skipped")):
            why = "none of the runs can be compared with another" if result is None else str(skipped)
            counts = {"unscored": comparison.unscored_count, "no_baseline": comparison.no_baseline}
            state.collect()
            said = f"nothing to learn from {len(runs)} runs: {why}. It waits for {self._train_every} more"
            return await self._journal.note(state, "skipped", said, runs=len(runs), **counts)
        state.steps += 1
        figures = step_figures(state.steps, result, comparison.trained_runs)
        state.signals.append(to_record(figures))
        state.phase, state.candidate = Phase.gate, result.version
        said = f"trained from {self._policy}@{state.champion} on {len(comparison.trained_runs)} runs"
        numbers = {"runs": len(comparison.trained_runs), "job": result.metrics["job"]["id"], **to_record(figures)}
        entry = self._journal.entry(state, "trained", said, **numbers)
        await self._write_unless_alarm(state, policy, entry)

    async def measure(self, state: State, policy: Policy) -> None:
        """Measures the candidate and the promoted version on the gate, where that can be done."""
        assert state.candidate is not None
        numbers: dict[str, Any] = {}
        if missing := self._gate.missing:
            said = f"not measured: {missing}. The canary alone decides"
        else:
            try:
                earlier = await self._gate.find_evaluation(policy, state.champion)
                champion = earlier or await self._gate.evaluation(policy, state.champion)
                candidate = await self._gate.evaluation(policy, state.candidate)
            except (RolloutsFailed, PinIgnored) as error:
                remedy = "Repair the graph or the reward of the gate, and go on with --resume: it is measured again"
                return await self._journal.pause(state, Pause(cause="gate_failed", reason=str(error), remedy=remedy))
            decision = gate(candidate.gain_over(champion), self._rules)
            said = f"{decision.reason}; {candidate.success_text}, promoted: {champion.success_text}"
            numbers = {"candidate": candidate.summary(), "champion": champion.summary()}
            if earlier is not None:
                numbers["champion"]["measured"] = began = min(run.started for run in earlier.trajectories)
                said += f", measured before, at {datetime.fromtimestamp(began):%Y-%m-%d %H:%M:%S}"
            if decision.verdict == Verdict.roll_back:
                state.decide(decision.verdict, said, numbers)
                return await self._journal.note(state, "gate", said, **numbers)
        state.phase = Phase.canary
        await self._write_unless_alarm(state, policy, self._journal.entry(state, "gate", said, **numbers))

    async def _write_unless_alarm(self, state: State, policy: Policy, entry: Entry) -> None:
        """Records what was done, and a pause where the figures until now are an alarm that did not go on before."""
        findings = self._alarms.findings(await self._signals(state, policy))
        names = {name for name, _, _ in findings}
        state.accepted = [name for name in state.accepted if name in names]
        fresh = [finding for finding in findings if finding[0] not in state.accepted]
        if not fresh:
            return await self._journal.write(state, entry)
        (name, evidence, remedy), *others = fresh
        state.accepted += [other for other, _, _ in others]
        reason = "; ".join([evidence, *(f"{other}: {said}" for other, said, _ in others)])
        await self._journal.pause(state, Pause(cause=name, reason=reason, remedy=remedy), entry)

    async def _signals(self, state: State, policy: Policy) -> list[Signals]:
        """Figures of the steps, with their evaluations on the gate."""

        async def find_evaluation(version: int) -> Evaluation | None:
            return await self._gate.find_evaluation(policy, version)

        return [Signals(**record, evaluation=await find_evaluation(record["version"])) for record in state.signals]
