"""Reinforcement learning within a time: as many steps as fit."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from art_langgraph.client.client import TrainerClient
from art_langgraph.judge.ruler import Ruler
from art_langgraph.loop.hints.rescue import Hints
from art_langgraph.loop.rollout import Graph
from art_langgraph.loop.train import train
from art_langgraph.loop.watch.held_out import HeldOut
from art_langgraph.loop.watch.record import StepRecord
from art_langgraph.loop.watch.stopping import Plateau, StopRule
from art_langgraph.rewards import group_sum
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import TrajectoryGroup
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.specialization.calls import Schema
from art_mcp.specialization.settings import STEPS, RunSettings, TrainingSettings
from art_mcp.specialization.stages.hints import schema_hints
from art_mcp.specialization.verify import solved, verify
from trainer_server.wire import GRPOConfig

TEMPERATURE = 0.7
"""Sampling temperature of the runs that are trained on, and of those that measure difficulty. At 1 a policy that was
warmed up fails by slips that it does not make at temperature 0, at which it is measured."""
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
        left = self.seconds - (time.monotonic() - self._began)
        return f"{left:.0f} s of its time are left, and a step takes {took:.0f} s" if left < took else None


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


def reinforce(
    agent: Graph,
    scenarios: Sequence[MCPScenario],
    *,
    policy: str,
    client: TrainerClient,
    training: TrainingSettings,
    runs: RunSettings,
    schemas: Mapping[str, Schema],
    seconds: float | None,
    first_step: int = 1,
    run: str = "",
    ruler: Ruler | None = None,
    selection: Sequence[MCPScenario] = (),
    measured_groups: Sequence[TrajectoryGroup] = (),
    store: TrajectoryStore | None = None,
    seed: int = 0,
    progress: bool = False,
) -> AsyncIterator[StepRecord]:
    """Trains the policy, yielding after each step.

    Args:
        agent: Asks the policy.
        scenarios: The scenarios to train on.
        policy: The policy.
        client: The trainer server.
        training: How it is trained.
        runs: How the agent is run.
        schemas: The schemas of the agent's tools, for hints.
        seconds: The time. None: there is no limit but the number of steps.
        first_step: Number of the first step.
        run: Name of the training, which makes its steps idempotent.
        ruler: Compares the runs of a scenario. With a judge, rewards differ from the measured ones, which are then left
            out.
        selection: Scenarios to measure on during the training.
        measured_groups: Runs of the scenarios that were made and scored before.
        store: Where the runs are stored.
        seed: Seed of the choice of scenarios.
        progress: Whether to show progress bars on a terminal.
    """
    steps = training.steps if training.steps is not None else STEPS if seconds is None else _MOST
    clock = TrainingTime(seconds)
    rules: list[StopRule] = [clock.is_over, nothing_left]
    if training.patience is not None and selection:
        rules.append(Plateau(training.patience))
    return train(
        agent,
        scenarios,
        policy=policy,
        reward=verify(),
        group_reward=group_sum(judge=(training.judge_weight, ruler)) if ruler else None,
        steps=steps,
        client=client,
        groups_per_step=training.groups_per_step,
        n=training.n,
        config=settings_of(training),
        sampler="learnable",
        measured=() if ruler else measured_groups,
        explore=training.explore,
        dynamic_sampling=training.dynamic_sampling,
        hints=Hints(schema_hints(schemas), success=_FULL, patience=_HINTS_IN_VAIN)
        if training.hints and not ruler
        else None,
        temperature=TEMPERATURE,
        max_concurrency=runs.max_concurrency,
        timeout=runs.timeout,
        store=store,
        seed=seed,
        run=run,
        first_step=first_step,
        held_out=HeldOut(selection, verify(), solved) if training.watched and selection else None,
        evaluate_every=(training.evaluate_every or (1 if training.patience else None)) if selection else None,
        stop_when=rules,
        progress=progress,
    )
