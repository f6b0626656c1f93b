"""Reinforcement learning within a time: whether enough steps fit, and as many as fit."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from art_langgraph.costs.tokens import Tokens
from art_langgraph.loop.failures import RolloutsFailed, runs_of
from art_langgraph.loop.hints import Hints
from art_langgraph.loop.sampling.dead_groups import groups_by_version
from art_langgraph.loop.train import train
from art_langgraph.loop.watch.held_out import HeldOut
from art_langgraph.loop.watch.record import StepRecord
from art_langgraph.loop.watch.stopping import Plateau, StopRule
from art_langgraph.rewards import group_sum
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.specialization.calls import Schema, schema_hints
from art_mcp.specialization.context import RunContext
from art_mcp.specialization.demonstrations import to_train_on
from art_mcp.specialization.settings import STEPS, TEMPERATURE, TrainingSettings
from art_mcp.specialization.stage_runner import LEAST, Stage, StageRecord
from art_mcp.specialization.verify import solved, verify
from trainer_server.wire import GRPOConfig

_FEWEST_STEPS = 12
"""Steps of a training at least: fewer gained nothing beyond chance (docs/benchmarks/settings.md), and a warm start
makes better use of their time."""
_STEP_COST = 3.0
"""What a run of a step costs, compared with a measured one of as many calls: it is trained on, and some are
replaced."""
_STEPS_OF_NEW = 2
"""Steps for which there must be scenarios that the warm start has not imitated, so that these alone are trained on."""
_MOST = 10_000
"""Steps where time alone is the limit."""
_FULL = 0.999
"""A run with this reward has done everything right; rounding aside, that is 1."""
_IN_VAIN = 3
"""Steps in a row that had nothing to learn from, after which the training ends."""
_HINTS_IN_VAIN = 12
"""Hinted runs in a row that failed too, after which no more are made: they take a tenth of a step."""


@dataclass(slots=True)
class TrainingTime:
    """The time of the training, and whether what is left of it is enough for another step.

    Args:
        seconds: For the training, from now on. None: there is no limit.
    """

    seconds: float | None
    _began: float = field(default_factory=time.monotonic)

    def is_over(self, history: Sequence[StepRecord]) -> str | None:
        """A stop rule: another step, as long as the last ones, would not fit."""
        if self.seconds is None:
            return None
        ends = [0.0, *(record.elapsed for record in history)]
        took = statistics.fmean([later - before for before, later in pairwise(ends)][-3:])
        rest = self.seconds - (time.monotonic() - self._began)
        return f"{rest:.0f} s of its time are left, and a step takes {took:.0f} s" if rest < took else None


def nothing_left(history: Sequence[StepRecord]) -> str | None:
    """A stop rule: the last steps had nothing to learn from."""
    last = [record.skipped for record in history[-_IN_VAIN:]]
    if len(last) < _IN_VAIN or not all(last):
        return None
    return f"{_IN_VAIN} steps in a row had nothing to learn from: {last[-1]}"


def settings_of(training: TrainingSettings) -> GRPOConfig | Callable[[int], GRPOConfig]:
    """The settings of the steps: those that were asked for, or the same for all. Few steps fit into a short time, in
    which a learning rate that falls would hardly change the policy.

    Args:
        training: What was asked for.
    """
    if training.config is not None:
        return training.config
    return GRPOConfig(
        lr=training.lr,
        loss_aggregation=training.loss_aggregation,
        scale_rewards="none",  # groups that differ by a part of the reward alone must not count as much as others
    )


@dataclass(slots=True)
class TimeSplit(Stage):
    """Leaves the steps out, and gives their time to the warm start, where too few of them would fit. A number of steps
    that was asked for is kept. This has no time and no event of its own: each process of a run does it."""

    context: RunContext
    name = "time split"

    def skip_reason(self) -> str | None:
        """The steps were asked for, or there is nothing to imitate, or an earlier process decided that they fit."""
        settings, journal = self.context.options.imitation, self.context.runner.directory.journal
        if settings is None or self.context.options.training.steps is not None:
            return ""
        if settings.conversations is None and not any(scenario.plan.executed for scenario in self.context.training):
            return ""
        return "" if journal.of("begin", "warm start") and not journal.of("skip", "rl") else None

    async def run(self) -> None:
        """Decides it, or repeats what an earlier process of the run decided."""
        context, runner = self.context, self.context.runner
        earlier = runner.directory.journal.of("skip", "rl")
        why = earlier[0]["why"] if earlier else self._too_few_steps()
        if why is not None:
            context.options = replace(context.options, training=replace(context.options.training, steps=0))
            runner.budget.leave_out("difficulty", "rl", "selection", "after")
            runner.leave_out("rl", why, in_report=True)

    def _too_few_steps(self) -> str | None:
        """Why too few steps would fit; None: enough do, or nobody knows, or there is no limit."""
        training, cost = self.context.options.training, self.context.measurer.cost
        seconds = self.context.runner.budget.foresees("rl", now="warm start")
        if seconds is None or not cost:
            return None
        step = _STEP_COST * self.longer() * cost * training.groups_per_step * training.n
        if seconds >= _FEWEST_STEPS * step:
            return None
        return (
            f"a step takes about {step:.0f} s, {int(seconds / step)} fit into its {seconds:.0f} s, and fewer than "
            f"{_FEWEST_STEPS} rarely gain anything: the warm start gets the time (with more minutes more fit; "
            "--steps N makes N in any case)"
        )

    def longer(self) -> float:
        """How many times as many calls of the model a run of the training makes as a run of the last measurement: an
        untrained policy often calls no tool at all. 1 at least."""
        measurements = list(self.context.outcome.measurements.values())
        runs = measurements[-1].evaluation.trajectories if measurements else []
        if not runs or not self.context.training:
            return 1.0
        calls = statistics.fmean(len(run.completions) for run in runs)
        calls_per_run = statistics.fmean(len(scenario.plan.reference) + 1 for scenario in self.context.training)
        return max(1.0, calls_per_run / max(calls, 1.0))


@dataclass(slots=True)
class Reinforcement(Stage):
    """Trains with GRPO, for as long as there is time, and goes on with a training that was interrupted."""

    context: RunContext
    name = "rl"
    trains = True

    @property
    def weight(self) -> float:
        """None if no step is wanted."""
        return 0.0 if self.context.options.training.steps == 0 else 22.0

    def skip_reason(self) -> str | None:
        """No step is wanted, or there is too little time for one."""
        if self.context.options.training.steps == 0:
            return ""
        seconds = self.context.runner.budget.allows(self.name)
        if seconds is not None and seconds < LEAST and not self._step_events():
            return f"only {seconds:.0f} s are left for it"
        return None

    async def run(self) -> None:
        """Takes the steps that are left. If all runs of one fail, the training ends, and the next stage comes."""
        self._read_steps()
        context, runner, steps = self.context, self.context.runner, self.context.outcome.steps
        if self._is_over():
            with runner.stage(self.name, "no time is left for another step") as record:
                await self._finish(record)
            return
        training = context.options.training
        if training.watched and not context.selection:
            why = "too few training scenarios to put any aside: --evaluate-every and --patience measure nothing"
            context.note("selection scenarios", why)
        least = _STEPS_OF_NEW * training.groups_per_step
        scenarios = to_train_on(context.training, context.imitated_ids, least, context.options.seed)
        about = (
            f"steps of {training.groups_per_step} scenarios × {training.n} runs, from {len(scenarios)} of "
            f"{len(context.training)} scenarios"
        )
        with runner.stage(self.name, about) as record:
            try:
                at_once = context.measurer.concurrency
                async for step in reinforce(
                    context, scenarios, record.seconds, first_step=len(steps) + 1, max_concurrency=at_once
                ):
                    self._add_step(step)
            except RolloutsFailed as error:  # what was made until then must not be lost with a training
                context.note(self.name, f"the training ended: {error}")
            await self._finish(record)

    async def restore(self, end: Mapping[str, Any]) -> None:
        """Reads the steps, and takes the version that they made."""
        self._read_steps()
        self.context.outcome.version = end["version"]

    def _step_events(self) -> list[dict[str, Any]]:
        return self.context.runner.directory.journal.of("step", self.name)

    def _read_steps(self) -> None:
        """Reads the steps that earlier processes have taken."""
        outcome, directory = self.context.outcome, self.context.runner.directory
        for event in self._step_events():
            outcome.steps.append(event["row"])
            if (version := event["measured"]) is not None:
                evaluation = directory.measurement(f"rl-{version}", version)
                self.context.selection_evaluations[version] = evaluation
        if directory.store is not None and outcome.steps:
            outcome.groups = groups_by_version(directory.store.list(), outcome.policy)

    def _is_over(self) -> bool:
        """Whether an earlier process has taken the last step, or no other one fits."""
        if not (steps := self.context.outcome.steps):
            return False
        seconds = self.context.runner.budget.allows(self.name)
        too_late = seconds is not None and seconds < sum(steps[-1]["seconds"].values())
        return bool(steps[-1]["stopped"]) or too_late

    def _add_step(self, step: StepRecord) -> None:
        """Adds a step to the journal and to the outcome."""
        context, runner = self.context, self.context.runner
        runs = [*runs_of(step.groups), *step.hinted]
        tokens = Tokens.of(runs)
        tokens += Tokens(trained=step.result.metrics.get("tokens_unique", 0))
        row, version = step.summary(), None
        if step.evaluation is not None:
            version = step.result.version
            context.selection_evaluations[version] = step.evaluation
            runner.directory.save_measurement(f"rl-{version}", step.evaluation)
        facts = {"row": row, "runs": len(runs), "tokens": tokens.summary(), "measured": version}
        runner.directory.journal.note("step", stage=self.name, **facts, left=runner.budget.seconds_left)
        context.outcome.steps.append(row)
        context.outcome.groups += step.groups
        time_left = f" ({runner.budget.text()})" if runner.budget.text() else ""
        runner.on_stage(f"{step}{time_left}")

    async def _finish(self, record: StageRecord) -> None:
        """Notes the version that the training has made. A step that a killed process has sent is waited for."""
        context, steps = self.context, self._step_events()
        outcome, trainer = context.outcome, context.trainer
        job = await trainer.find_step(outcome.policy, f"{context.runner.directory.name}-step-{len(steps) + 1}")
        if job is not None and not job.status.final:
            await trainer.wait(job)
        outcome.version = (await trainer.policy(outcome.policy)).latest
        tokens = sum((Tokens(**event["tokens"]) for event in steps), Tokens())
        runs = sum(event.get("runs", 0) for event in steps)  # earlier releases wrote none
        facts = {"version": outcome.version, "steps": len(steps), "runs": runs, "tokens": tokens.summary()}
        record.facts |= facts


def hints_of(schemas: Mapping[str, Schema]) -> Hints:
    """The hints of the steps: what the server's errors say, or what its schemas ask for.

    Args:
        schemas: The input schemas of the tools, by their names.
    """
    return Hints(schema_hints(schemas), success=_FULL, patience=_HINTS_IN_VAIN)


def reinforce(
    context: RunContext,
    scenarios: Sequence[MCPScenario],
    seconds: float | None,
    *,
    first_step: int,
    max_concurrency: int | None = None,
) -> AsyncIterator[StepRecord]:
    """Trains the policy, yielding after each step.

    With a judge, rewards differ from those of the runs that measured the difficulty, which are then left out.

    Args:
        context: The run, whose name makes the steps idempotent.
        scenarios: The scenarios to train on.
        seconds: The time. None: there is no limit but the number of steps.
        first_step: Number of the first step.
        max_concurrency: Runs at the same time. None: those of the settings.
    """
    options, ruler, selection = context.options, context.ruler, context.selection
    training, runs = options.training, options.runs
    rules: list[StopRule] = [TrainingTime(seconds).is_over, nothing_left]
    if training.patience is not None and selection:
        rules.append(Plateau(training.patience))
    return train(
        context.agent,
        scenarios,
        policy=options.policy,
        reward=verify(),
        group_reward=group_sum(judge=(training.judge_weight, ruler)) if ruler else None,
        steps=training.steps if training.steps is not None else STEPS if seconds is None else _MOST,
        client=context.trainer,
        groups_per_step=training.groups_per_step,
        n=training.n,
        config=settings_of(training),
        sampler="learnable",
        measured=() if ruler else context.difficulty_groups,
        explore=training.explore,
        dynamic_sampling=training.dynamic_sampling,
        hints=hints_of(context.outcome.schemas) if training.hints and not ruler else None,
        temperature=TEMPERATURE,
        max_concurrency=max_concurrency or runs.max_concurrency,
        timeout=runs.timeout,
        store=context.runner.directory.store,
        seed=options.seed,
        run=context.runner.directory.name,
        first_step=first_step,
        held_out=HeldOut(selection, verify(), solved) if training.watched and selection else None,
        evaluate_every=(training.evaluate_every or (1 if training.patience else None)) if selection else None,
        stop_when=rules,
        progress=options.progress,
    )
