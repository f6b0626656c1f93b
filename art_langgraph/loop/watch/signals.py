"""Signals: the figures of one step that alarms are raised by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.loop.failures import runs_of
from art_langgraph.loop.watch.record import StepRecord
from art_langgraph.trajectory import TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Signals:
    """The figures of one step. None: the step does not have it.

    Args:
        step: Number of the step; that of the first step less 1 for the baseline, which has an evaluation alone.
        version: The version after it.
        reward: Mean reward of the training runs.
        reward_error: Standard error of that mean.
        entropy: In nats per trained token.
        length: Mean number of sampled tokens of a completion.
        truncated: Share of the completions that the limit of tokens cut.
        groups: How many groups there were.
        dead: How many of them teach nothing, because their rewards are equal.
        gap: Mean distance of the trainer's and the sampler's log-probs, in nats per token.
        votes_apart: Mean standard deviation of a judge's votes on one run.
        judge_agreement: Mean over the groups of Spearman's rank correlation between the judge's scores and the rewards
            that the runs had before.
        evaluation: The held-out evaluation of `version`.
    """

    step: int
    version: int
    reward: float | None = None
    reward_error: float | None = None
    entropy: float | None = None
    length: float | None = None
    truncated: float | None = None
    groups: int = 0
    dead: int = 0
    gap: float | None = None
    votes_apart: float | None = None
    judge_agreement: float | None = None
    evaluation: Evaluation | None = None

    @classmethod
    def of(cls, record: StepRecord) -> Signals:
        """The figures of a step that has its runs."""
        metrics = record.result.metrics
        skipped = metrics.get("groups_skipped_by") or {}
        return cls(
            step=record.step,
            version=record.result.version,
            reward=record.reward,
            reward_error=_reward_error(record),
            entropy=metrics.get("entropy"),
            length=metrics.get("completion_length_mean"),
            truncated=metrics.get("completions_truncated"),
            groups=metrics.get("groups", 0),
            dead=skipped.get("equal_rewards", 0),
            gap=metrics.get("logp_gap"),
            votes_apart=_mean(
                run.metrics["ruler_disagreement"]
                for run in runs_of(record.groups)
                if "ruler_disagreement" in run.metrics
            ),
            judge_agreement=_mean(map(_agreement, record.groups)),
            evaluation=record.evaluation,
        )


def _reward_error(record: StepRecord) -> float | None:
    """Standard error of `StepRecord.reward`: over the runs, or over what the step's metrics count."""
    rewards = [run.reward for run in runs_of(record.groups) if run.reward is not None]
    if len(rewards) > 1:
        return statistics.stdev(rewards) / math.sqrt(len(rewards))
    metrics = record.result.metrics
    spread, scored = metrics.get("reward_std"), metrics.get("trajectories", 0)
    scored -= (metrics.get("trajectories_skipped") or {}).get("no_reward", 0)
    return None if rewards or spread is None or scored < 2 else spread / math.sqrt(scored)


def _agreement(group: TrajectoryGroup) -> float | None:
    """Rank correlation of a judge's scores and the rewards that the runs of a group had before; None: it has none."""
    both = [run.metrics for run in group.trajectories if {"ruler_score", "independent_reward"} <= run.metrics.keys()]
    scores, rewards = ([metrics[name] for metrics in both] for name in ("ruler_score", "independent_reward"))
    if len(set(scores)) < 2 or len(set(rewards)) < 2:
        return None
    return statistics.correlation(_ranks(scores), _ranks(rewards))


def _ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value; equal values share the mean of their ranks."""
    ordered = sorted(values)
    first = {value: ordered.index(value) for value in set(values)}
    return [first[value] + (ordered.count(value) - 1) / 2 for value in values]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
