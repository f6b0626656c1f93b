"""Watch: what a training run sees of itself: held-out success, alarms, the reason to stop, the best version."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Container, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.loop.failures import RolloutsFailed
from art_langgraph.loop.train_options import TrainOptions
from art_langgraph.loop.watch.alarm_rules import AlarmLog, AlarmRules, Signals
from art_langgraph.loop.watch.held_out import Evaluations, HeldOut, Measure
from art_langgraph.loop.watch.record import Best, StepRecord
from art_langgraph.loop.watch.stopping import reason_of
from art_langgraph.trajectory import Scenario
from trainer_server.wire import ConfigError, ServerError

log = logging.getLogger("art_langgraph")


class Watch:
    """Looks at a training run after each step: `async with` around the run, `after` for each record.

    Args:
        options: Of the training, which were checked (`TrainOptions.check`).
    """

    def __init__(self, options: TrainOptions) -> None:
        self._options, self._policy, self._client = options, options.policy, options.client
        self._alarms = AlarmLog(options.alarms or AlarmRules())
        self._evaluations: Evaluations | None = None
        """None: no scenarios are held out."""
        self._baseline: Evaluation | None = None
        self._history: list[StepRecord] = []
        self._start = time.monotonic()
        self._concluded = False

    async def begin(self, measure: Measure, training: Sequence[Scenario]) -> None:
        """Measures the version that the run begins with. Nothing happens where no scenarios are held out.

        Args:
            measure: `evaluate`, with the graph and all that the training run fixes.
            training: The scenarios that are trained on.

        Raises:
            ConfigError: Scenarios are trained on and held out, nothing scores single runs, or the token may not promote
                what is to be kept.
            RolloutsFailed: As `evaluate`.
        """
        options = self._options
        if options.held_out is None:
            return
        held_out = HeldOut.of(options.held_out).resolve(training, options.reward)
        if held_out.reward is None and options.group_reward is not None:
            raise ConfigError(
                "held_out needs a reward for single runs: group_reward compares the runs of a scenario with one "
                "another, and says nothing of one version's success. Give reward=…, or held_out=HeldOut(scenarios, "
                "reward=…)"
            )
        if options.keep_best:
            await self._client.require_admin("keep_best=True promotes the best version")
        policy = await self._client.policy(self._policy)
        self._evaluations = await asyncio.to_thread(  # it reads the store
            Evaluations,
            measure,
            policy,
            held_out,
            store=options.store,
            run=options.run,
            resumed=bool(options.run) or options.first_step > 1,
            progress=options.progress,
        )
        first = self._evaluations.first
        baseline = None if first is None else await self._evaluations.find_evaluation(first)
        version = policy.latest if baseline is None or first is None else first
        self._baseline = baseline or await self._evaluations.of(version)
        self._alarms.add(Signals(options.first_step - 1, version, evaluation=self._baseline))
        log.info("before step %d: %s@%d, held-out %s", options.first_step, self._policy, version, self._baseline)
        if options.keep_best:
            await self._score(version, self._baseline)
            for rival in await self._rivals(version):
                await self._score(rival, await self._evaluations.of(rival))

    async def after(self, record: StepRecord, *, accepted_before: bool) -> None:
        """Looks at a step, and adds to its record what it sees.

        Args:
            record: What the step did.
            accepted_before: Whether the server had accepted the step before this run, so that newer versions may be
                there.
        """
        record.baseline, version = self._baseline, record.result.version
        last, every = record.step == self._options.steps, self._options.evaluate_every
        if self._evaluations is not None and (last or (every is not None and record.step % every == 0)):
            await self._evaluate(record, accepted_before=accepted_before)
        record.elapsed = time.monotonic() - self._start
        record.alarms = self._alarms.add(Signals.of(record))
        self._history.append(replace(record, groups=[]))
        reasons = (reason_of(rule, self._history) for rule in self._options.stop_rules)
        if not last and (reason := next(filter(None, reasons), None)) is not None:
            record.stopped = reason
            log.info("step %d: the run ends here: %s", record.step, reason)
            if self._evaluations is not None and version not in self._evaluations.by_version:
                await self._evaluate(record, accepted_before=accepted_before)
        if last or record.stopped:
            record.best = await self.conclude()

    async def conclude(self) -> Best | None:
        """Promotes the best version, and measures it once more. None: that is not asked for, or nothing is measured."""
        self._concluded = True
        if not self._options.keep_best or self._evaluations is None:
            return None
        versions = {record.version for record in await self._client.versions(self._policy)}
        if (version := self._best(versions)) is None:
            return None
        await self._client.promote(self._policy, version)
        evaluation, baseline = self._evaluations.by_version[version], self._baseline
        again = await self._once_more(version)
        gain = None if baseline is None or evaluation is baseline else evaluation.gain_over(baseline)
        best = Best(self._policy, version, evaluation, again, gain)
        log.info("%s", best)
        return best

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Says which version is the best where the run is left before its end: nothing is promoted then."""
        if (
            self._concluded
            or not self._options.keep_best
            or self._evaluations is None
            or (version := self._best()) is None
        ):
            return
        log.warning(
            "the run was left before its end, and promotes nothing. Until now %s@%d is the best (held-out %s), and "
            "stays on disk: continue the run, or `art-langgraph promote %s@%d`",
            self._policy,
            version,
            self._evaluations.by_version[version].success_text,
            self._policy,
            version,
        )

    async def _evaluate(self, record: StepRecord, *, accepted_before: bool) -> None:
        """Evaluates a step's version. Of a step that was taken before, only the newest version is measured anew."""
        assert self._evaluations is not None
        version, start = record.result.version, time.monotonic()
        outdated = accepted_before and version != (await self._client.policy(self._policy)).latest
        if outdated and await self._evaluations.find_evaluation(version) is None:
            log.info("step %d was taken before, and no evaluation of its version is kept", record.step)
            return
        try:
            record.evaluation = await self._evaluations.of(version)
        except RolloutsFailed as error:  # the training must not be lost with a measurement
            log.warning("step %d: %s@%d could not be measured: %s", record.step, self._policy, version, error)
            return
        finally:
            record.seconds["evaluation"] = time.monotonic() - start
        await self._score(version, record.evaluation)

    async def _once_more(self, version: int) -> Evaluation | None:
        """Measures the promoted version by itself; None: that failed, and a warning says why."""
        assert self._evaluations is not None
        try:
            again = await self._evaluations.anew(version)
        except RolloutsFailed as error:
            log.warning("%s@%d is promoted, and could not be measured once more: %s", self._policy, version, error)
            return None
        await self._score(version, again)
        return again

    async def _score(self, version: int, evaluation: Evaluation) -> None:
        """Tells the server how good a version is, so that it never deletes the best one."""
        if not self._options.keep_best or (rate := evaluation.success_rate) is None:
            return
        try:
            await self._client.score_version(self._policy, version, rate)
        except ServerError as error:
            if error.status != 404:
                raise
            log.info("%s@%d has no score, because it was deleted: %s", self._policy, version, error)

    async def _rivals(self, newest: int) -> list[int]:
        """Versions that the run's best must be better than: the promoted one, and the best of earlier runs."""
        policy, versions = await self._client.policy(self._policy), await self._client.versions(self._policy)
        earlier = [version for version in versions if version.scored_by == "evaluation" and version.score is not None]
        rivals = [policy.promoted] if policy.promoted is not None else []
        if earlier:
            rivals.append(max(earlier, key=lambda version: (version.score or 0.0, -version.version)).version)
        return [version for version in dict.fromkeys(rivals) if version != newest]

    def _best(self, among: Container[int] | None = None) -> int | None:
        """The version with the highest success, of equal ones the earliest; None: none has a scored run.

        Args:
            among: The versions that can be promoted; None: all.
        """
        evaluations = self._evaluations.by_version if self._evaluations is not None else {}
        rates = {
            version: rate
            for version, evaluation in evaluations.items()
            if (rate := evaluation.success_rate) is not None and (among is None or version in among)
        }
        return max(rates, key=lambda version: (rates[version], -version), default=None)
