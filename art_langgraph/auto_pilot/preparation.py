"""Preparation of a candidate: runs are collected, a step is trained on them, its version is measured on the gate."""

from __future__ import annotations

import asyncio
import time
import uuid
from datetime import datetime
from typing import Any

from art_langgraph.auto_pilot.decision import Verdict, gate
from art_langgraph.auto_pilot.gate import Gate
from art_langgraph.auto_pilot.runs import RunSource, trainable
from art_langgraph.auto_pilot.settings import AutopilotOptions
from art_langgraph.auto_pilot.state import Entry, Pause, Phase, State, to_record
from art_langgraph.auto_pilot.state_store import Journal
from art_langgraph.client.step_marks import StepMarks
from art_langgraph.credit import Comparison, compare
from art_langgraph.loop.failures import RolloutsFailed
from art_langgraph.loop.pins import PinIgnored
from art_langgraph.loop.watch.alarm_rules import Signals
from art_langgraph.loop.watch.record import StepRecord
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import TrajectoryGroup
from trainer_server.wire import Job, JobFailed, Policy, ServerError, StepResult

_BATCHES = 4
"""A step takes at most so many times `train_every` runs: the newest, and those first that no step was given yet. The
others wait for the next one."""
_DAY = 86400.0


class Preparation:
    """The phases collecting, training and gate of one policy.

    Args:
        options: Of the autopilot.
        store: Where runs are marked as trained.
        journal: Where states are written.
        run_source: The runs of the deployment.
        gate: Scenarios that a candidate is measured on.
    """

    def __init__(
        self,
        options: AutopilotOptions,
        store: TrajectoryStore,
        journal: Journal,
        run_source: RunSource,
        gate: Gate,
    ) -> None:
        self._options, self._policy, self._client = options, options.policy, options.client
        self._store, self._journal, self._run_source, self._gate = store, journal, run_source, gate

    async def collect(self, state: State) -> None:
        """Begins a step once there are enough new runs."""
        history = await self._run_source.runs(time.time() - self._options.max_age * _DAY)
        trained_ids = await asyncio.to_thread(self._store.trained, self._policy)
        fresh = [run for run in history if run.id not in trained_ids and trainable(run, self._policy, self._gate.tasks)]
        repeats = {run.id for run in fresh}.intersection(state.tried)
        new = len(fresh) - len(repeats)
        if new < self._options.train_every:
            return
        batch = sorted(fresh, key=lambda run: run.id in repeats)[: _BATCHES * self._options.train_every]
        state.phase, state.key, state.runs = Phase.training, uuid.uuid4().hex, [run.id for run in batch]
        state.tried = sorted(repeats)
        waiting = len(fresh) - len(batch)
        reason = f"a candidate is trained from {self._policy}@{state.champion} on {len(batch)} runs"
        reason += f", {waiting} others wait" if waiting else ""
        untrainable = sum(run.scored and not trainable(run, self._policy, self._gate.tasks) for run in history)
        await self._journal.note(
            state, "training", reason, runs=len(batch), new=new, waiting=waiting, left_out=untrainable
        )

    async def train(self, state: State, policy: Policy) -> None:
        """Sends the step, or finds it again, and waits for its version."""
        runs = await self._run_source.read(state.runs)
        job = await self._client.find_step(self._policy, state.key)
        if job is None:  # another command may have taken runs meanwhile: `train --from-store`, say
            ids = [run.id for run in runs]
            free = await asyncio.to_thread(self._store.begin_step, self._policy, state.key, ids, again=False)
            runs = [run for run in runs if run.id in free]
        history = await self._run_source.runs(time.time() - self._options.max_age * _DAY)
        comparison = compare(runs, self._policy, history=history, nodes=self._options.nodes)
        try:
            result = await self._take_step(state, comparison, job)
        except JobFailed as error:
            state.collect()
            remedy = "See why (`art-langgraph jobs list`, the server's log); after --resume the runs are used again"
            return await self._journal.pause(state, Pause(cause="step_failed", reason=str(error), remedy=remedy))
        state.tried = sorted({*state.tried, *state.runs})
        if result is None or (skip_reason := result.metrics.get("skipped")):
            why = "none of the runs can be compared with another" if result is None else str(skip_reason)
            counts = {"unscored": comparison.unscored_count, "no_baseline": comparison.no_baseline}
            state.collect()
            reason = f"nothing to learn from {len(runs)} runs: {why}. It waits for {self._options.train_every} more"
            return await self._journal.note(state, "skipped", reason, runs=len(runs), **counts)
        state.steps += 1
        groups = TrajectoryGroup.by_scenario(comparison.trained_runs)
        figures = Signals.of(StepRecord(state.steps, result, groups))
        state.signals.append(to_record(figures))
        state.phase, state.candidate = Phase.gate, result.version
        reason = f"trained from {self._policy}@{state.champion} on {len(comparison.trained_runs)} runs"
        numbers = {"runs": len(comparison.trained_runs), "job": result.metrics["job"]["id"], **to_record(figures)}
        entry = self._journal.entry(state, "trained", reason, **numbers)
        await self._write_unless_alarm(state, policy, entry)

    async def _take_step(self, state: State, comparison: Comparison, job: Job | None) -> StepResult | None:
        """Sends the step once, whatever happens, or waits for the one that an earlier process has sent.

        Args:
            state: Has the step's key, for which `begin_step` was called, and the version that the step goes on from.
            comparison: The runs of the step.
            job: The step, where the server has accepted it before.

        Returns:
            The version that it made, or why it made none; None where there is nothing to compare.

        Raises:
            JobFailed: The step failed, or the server refused it. Its runs are free for another one.
        """
        store, policy, key = self._store, self._policy, state.key
        if job is None and not comparison.groups:
            await asyncio.to_thread(store.end_step, policy, key, None)
            return None
        async with StepMarks(store, policy, key, comparison.trained_runs if job is None else []) as marks:
            if job is None:
                try:
                    job = await self._client.submit(
                        policy,
                        comparison.groups,
                        self._options.config,
                        from_version=state.champion,
                        idempotency_key=key,
                    )
                except ServerError as error:
                    if may_succeed_later(error):
                        raise
                    raise JobFailed(f"the server refused the step: {error}", job_id="") from error
            marks.result = result = await self._client.result(job)
        return result

    async def measure(self, state: State, policy: Policy) -> None:
        """Measures the candidate and the promoted version on the gate, where that can be done."""
        assert state.candidate is not None
        numbers: dict[str, Any] = {}
        if missing := self._gate.missing:
            reason = f"not measured: {missing}. The canary alone decides"
        else:
            try:
                earlier = await self._gate.find_evaluation(policy, state.champion)
                champion = earlier or await self._gate.evaluation(policy, state.champion)
                candidate = await self._gate.evaluation(policy, state.candidate)
            except (RolloutsFailed, PinIgnored) as error:
                remedy = "Repair the graph or the reward of the gate, and go on with --resume: it is measured again"
                return await self._journal.pause(state, Pause(cause="gate_failed", reason=str(error), remedy=remedy))
            decision = gate(candidate.gain_over(champion), self._options.rules)
            reason = f"{decision.reason}; {candidate.success_text}, promoted: {champion.success_text}"
            numbers = {"candidate": candidate.summary(), "champion": champion.summary()}
            if earlier is not None:
                numbers["champion"]["measured"] = first_start = min(run.started for run in earlier.trajectories)
                reason += f", measured before, at {datetime.fromtimestamp(first_start):%Y-%m-%d %H:%M:%S}"
            if decision.verdict == Verdict.roll_back:
                state.decide(decision.verdict, reason, numbers)
                return await self._journal.note(state, "gate", reason, **numbers)
        state.phase = Phase.canary
        await self._write_unless_alarm(state, policy, self._journal.entry(state, "gate", reason, **numbers))

    async def _write_unless_alarm(self, state: State, policy: Policy, entry: Entry) -> None:
        """Records what was done, and a pause where the figures until now are an alarm that did not go on before."""
        findings = self._options.alarms.findings(await self._signals(state, policy))
        names = {name for name, _, _ in findings}
        state.accepted = [name for name in state.accepted if name in names]
        fresh = [finding for finding in findings if finding[0] not in state.accepted]
        if not fresh:
            return await self._journal.write(state, entry)
        (name, evidence, remedy), *others = fresh
        state.accepted += [other for other, _, _ in others]
        reason = "; ".join([evidence, *(f"{other}: {text}" for other, text, _ in others)])
        await self._journal.pause(state, Pause(cause=name, reason=reason, remedy=remedy), entry)

    async def _signals(self, state: State, policy: Policy) -> list[Signals]:
        """Figures of the steps, with their evaluations on the gate."""
        return [
            Signals(**record, evaluation=await self._gate.find_evaluation(policy, record["version"]))
            for record in state.signals
        ]


def may_succeed_later(error: ServerError) -> bool:
    """Whether the same request may succeed later: the server is busy or has a fault."""
    return error.status == 429 or error.status >= 500
