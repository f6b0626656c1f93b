"""Watch: what a training run sees of itself: held-out success, alarms, the reason to stop, the best version."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from art_langgraph.client.client import TrainerClient
from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.loop.failures import RolloutsFailed
from art_langgraph.loop.options import LoopOptions
from art_langgraph.loop.rollout import ScenarioLike
from art_langgraph.loop.watch.alarm_rules import AlarmLog, AlarmRules
from art_langgraph.loop.watch.best import Best
from art_langgraph.loop.watch.evaluations import Evaluations, Measure
from art_langgraph.loop.watch.held_out import HeldOut
from art_langgraph.loop.watch.record import StepRecord
from art_langgraph.loop.watch.signals import Signals
from art_langgraph.loop.watch.stopping import StopRule, check_rules, reason_of
from art_langgraph.rewards import GroupReward, RewardFunction
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario
from trainer_server.wire import ConfigError, ServerError

log = logging.getLogger("art_langgraph")


@dataclass(frozen=True, kw_only=True)
class WatchOptions(LoopOptions):
    """What a training loop sees of itself, and when it ends: keywords of `train`.

    Args:
        held_out: Scenarios that are never trained on, a JSONL file of them, or a HeldOut, which says how they are
            measured. The version that the run begins with is evaluated on them, and the last one. Kept in `store`, an
            evaluation is not made again by a run that is continued. None: nothing is measured.
        stop_when: Ends the run early: `TargetReached`, `Plateau`, `TimeBudget`, `TokenBudget`, a function of the
            records, or several of these, of which the first that holds ends it. `StepRecord.stopped` says why.
        alarms: Thresholds of `StepRecord.alarms`; None: the defaults.
        first_step: Number of the first step.
    """

    held_out: HeldOut | Sequence[ScenarioLike] | str | Path | None = None
    stop_when: StopRule | Sequence[StopRule] | None = None
    alarms: AlarmRules | None = None
    first_step: int = 1


@dataclass(slots=True)
class Watch:
    """Looks at a training run after each step: `async with` around the run, `after` for each record.

    Args:
        policy: Name of the policy.
        client: The trainer server.
        first_step: Number of the first step.
        last_step: Number of the last step.
        held_out: The scenarios to measure on; None: nothing is measured.
        every: Steps between two evaluations; None: before the first and after the last step alone.
        rules: Any of them ends the run.
        keep_best: Whether the best version is promoted at the end.
        alarms: The alarms of the run.
    """

    policy: str
    client: TrainerClient
    first_step: int
    last_step: int
    held_out: HeldOut | None
    every: int | None
    rules: Sequence[StopRule]
    keep_best: bool
    alarms: AlarmLog
    _evaluations: Evaluations | None = None
    _baseline: Evaluation | None = None
    _history: list[StepRecord] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _concluded: bool = False

    @classmethod
    def of(cls, options: WatchOptions, policy: str, client: TrainerClient) -> Self:
        """The watch of a training loop.

        Args:
            options: What was asked for.
            policy: Name of the policy.
            client: The trainer server.

        Raises:
            ConfigError: The options cannot be met together.
        """
        held_out, stop_when, evaluate_every = options.held_out, options.stop_when, options.evaluate_every
        rules = list(stop_when) if isinstance(stop_when, Sequence) else [] if stop_when is None else [stop_when]
        check_rules(rules, held_out=held_out is not None)
        if held_out is None and (evaluate_every is not None or options.keep_best):
            wanted = "keep_best=True" if options.keep_best else f"evaluate_every={evaluate_every}"
            raise ConfigError(f"{wanted} needs held_out=…: scenarios to measure versions on, which are not trained on")
        if evaluate_every is not None and evaluate_every < 1:
            raise ConfigError(f"evaluate_every={evaluate_every} must be at least 1 step")
        return cls(
            policy,
            client,
            options.first_step,
            options.steps,
            None if held_out is None else HeldOut.of(held_out),
            evaluate_every,
            rules,
            options.keep_best,
            AlarmLog(options.alarms or AlarmRules()),
        )

    async def begin(
        self,
        measure: Measure,
        training: Sequence[Scenario],
        *,
        reward: RewardFunction | None,
        group_reward: GroupReward | None,
        store: TrajectoryStore | None,
        run: str,
        progress: bool,
    ) -> None:
        """Measures the version that the run begins with. Nothing happens where no scenarios are held out.

        Args:
            measure: `evaluate`, with the graph and all that the training run fixes.
            training: The scenarios that are trained on.
            reward: Of the training run.
            group_reward: Of the training run.
            store: Where evaluations are kept; None: in memory.
            run: Name of the training run.
            progress: Whether to show bars on a terminal.

        Raises:
            ConfigError: Scenarios are trained on and held out, nothing scores single runs, or the token may not promote
                what is to be kept.
            RolloutsFailed: As `evaluate`.
        """
        if self.held_out is None:
            return
        scenarios, reward = self.held_out.resolve_scenarios(training), self.held_out.reward or reward
        if reward is None and group_reward is not None:
            raise ConfigError(
                "held_out needs a reward for single runs: group_reward compares the runs of a scenario with one "
                "another, and says nothing of one version's success. Give reward=…, or held_out=HeldOut(scenarios, "
                "reward=…)"
            )
        if self.keep_best:
            await self.client.require_admin("keep_best=True promotes the best version")
        policy = await self.client.policy(self.policy)
        self._evaluations = await asyncio.to_thread(  # it asks the store
            Evaluations,
            measure,
            policy=policy,
            held_out=self.held_out,
            scenarios=scenarios,
            reward=reward,
            store=store,
            run=run,
            resumed=bool(run) or self.first_step > 1,
            progress=progress,
        )
        first = self._evaluations.first
        baseline = None if first is None else await self._evaluations.find_evaluation(first)
        version = policy.latest if baseline is None or first is None else first
        self._baseline = baseline or await self._evaluations.of(version)
        self.alarms.add(Signals(self.first_step - 1, version, evaluation=self._baseline))
        log.info("before step %d: %s@%d, held-out %s", self.first_step, self.policy, version, self._baseline)
        if self.keep_best:
            await self._score(version, self._baseline)
            for rival in await self._rivals(version):
                await self._score(rival, await self._evaluations.of(rival))

    async def after(self, record: StepRecord, *, taken: bool = False) -> None:
        """Looks at a step, and adds to its record what it sees.

        Args:
            record: What the step did.
            taken: Whether the server had accepted the step before, so that newer versions may be there.
        """
        record.baseline, version = self._baseline, record.result.version
        last = record.step == self.last_step
        if self._evaluations is not None and (last or (self.every is not None and record.step % self.every == 0)):
            await self._evaluate(record, taken=taken)
        record.elapsed = time.monotonic() - self._began
        record.alarms = self.alarms.add(Signals.of(record))
        self._history.append(replace(record, groups=[]))
        reasons = (reason_of(rule, self._history) for rule in self.rules)
        if not last and (reason := next(filter(None, reasons), None)) is not None:
            record.stopped = reason
            log.info("step %d: the run ends here: %s", record.step, reason)
            if self._evaluations is not None and version not in self._evaluations.by_version:
                await self._evaluate(record, taken=taken)
        if last or record.stopped:
            record.best = await self.conclude()

    async def conclude(self) -> Best | None:
        """Promotes the best version, and measures it once more. None: that is not asked for, or nothing is measured."""
        self._concluded = True
        if not self.keep_best or self._evaluations is None:
            return None
        there = {known.version for known in await self.client.versions(self.policy)}
        if (version := self._best(there)) is None:
            return None
        await self.client.promote(self.policy, version)
        evaluation, baseline = self._evaluations.by_version[version], self._baseline
        again = await self._once_more(version)
        gain = None if baseline is None or evaluation is baseline else evaluation.gain_over(baseline)
        best = Best(self.policy, version, evaluation, again, gain)
        log.info("%s", best)
        return best

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Says which version is the best where the run is left before its end: nothing is promoted then."""
        if self._concluded or not self.keep_best or self._evaluations is None or (version := self._best()) is None:
            return
        log.warning(
            "the run was left before its end, and promotes nothing. Until now %s@%d is the best (held-out %s), and "
            "stays on disk: continue the run, or `art-langgraph promote %s@%d`",
            self.policy,
            version,
            self._evaluations.by_version[version].success_text,
            self.policy,
            version,
        )

    async def _evaluate(self, record: StepRecord, *, taken: bool) -> None:
        """Evaluates a step's version. Of a step that was taken before, only the newest version is measured anew."""
        assert self._evaluations is not None
        version, began = record.result.version, time.monotonic()
        known = not taken or await self._evaluations.find_evaluation(version) is not None
        if not known and version != (await self.client.policy(self.policy)).latest:
            log.info("step %d was taken before, and no evaluation of its version is kept", record.step)
            return
        try:
            record.evaluation = await self._evaluations.of(version)
        except RolloutsFailed as error:  # the training must not be lost with a measurement
            log.warning("step %d: %s@%d could not be measured: %s", record.step, self.policy, version, error)
            return
        finally:
            record.seconds["evaluation"] = time.monotonic() - began
        await self._score(version, record.evaluation)

    async def _once_more(self, version: int) -> Evaluation | None:
        """Measures the promoted version by itself; None: that failed, and a warning says why."""
        assert self._evaluations is not None
        try:
            again = await self._evaluations.anew(version)
        except RolloutsFailed as error:
            log.warning("%s@%d is promoted, and could not be measured once more: %s", self.policy, version, error)
            return None
        await self._score(version, again)
        return again

    async def _score(self, version: int, evaluation: Evaluation) -> None:
        """Tells the server how good a version is, so that it never deletes the best one."""
        if not self.keep_best or (rate := evaluation.success_rate) is None:
            return
        try:
            await self.client.score_version(self.policy, version, rate)
        except ServerError as error:
            if error.status != 404:
                raise
            log.info("%s@%d has no score, because it was deleted: %s", self.policy, version, error)

    async def _rivals(self, newest: int) -> list[int]:
        """Versions that the run's best must be better than: the promoted one, and the best of earlier runs."""
        policy, versions = await self.client.policy(self.policy), await self.client.versions(self.policy)
        scored = [version for version in versions if version.scored_by == "evaluation" and version.score is not None]
        rivals = [policy.promoted] if policy.promoted is not None else []
        if scored:
            rivals.append(max(scored, key=lambda version: (version.score or 0.0, -version.version)).version)
        return [version for version in dict.fromkeys(rivals) if version != newest]

    def _best(self, among: Container[int] | None = None) -> int | None:
        """The version with the highest success, of equal ones the earliest; None: none has a scored run.

        Args:
            among: The versions that can be promoted; None: all.
        """
        made = self._evaluations.by_version if self._evaluations is not None else {}
        rates = {
            version: rate
            for version, evaluation in made.items()
            if (rate := evaluation.success_rate) is not None and (among is None or version in among)
        }
        return max(rates, key=lambda version: (rates[version], -version), default=None)
