"""StepRecord: what the training loop did in a step, and what it saw of itself: alarms, the best version."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from art_langgraph.costs.cost import Cost
from art_langgraph.costs.meter import RunCost
from art_langgraph.loop.evaluate import Evaluation, SuccessGain
from art_langgraph.loop.failures import failures_of, runs_of, versions_of
from art_langgraph.loop.hints import HintCounts
from art_langgraph.loop.sampling.informative import informative
from art_langgraph.loop.tuning import Tuning
from art_langgraph.trajectory import Trajectory, TrajectoryGroup
from trainer_server.wire import StepResult
from trainer_server.wire.text import quantity


@dataclass(frozen=True, slots=True)
class Alarm:
    """A finding about the last steps of a run.

    Args:
        name: What it is, such as `entropy_collapse`.
        since: The step at which it began. It is logged at that step, and not again until it has ended.
        evidence: The numbers that it was found by.
        remedy: What to do.
    """

    name: str
    since: int
    evidence: str
    remedy: str

    def summary(self) -> dict[str, Any]:
        """The alarm as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.name}: {self.evidence}. {self.remedy}"


@dataclass(frozen=True, slots=True)
class Best:
    """The version with the highest held-out success, of all that were evaluated. Of equal ones it is the earliest.

    The highest of several measurements is too high on average, because chance chose it too. `again` was not chosen, so
    that it is free of the chance within a scenario; of the choice of the scenarios it is not.

    Args:
        policy: Name of the policy, which means this version from now on.
        version: The version.
        evaluation: By which it was chosen.
        again: Its evaluation after the promotion, on the same scenarios. None: it failed, and a warning says why.
        gain: `evaluation` against the baseline. None: it is the baseline, or they have no scenario in common.
    """

    policy: str
    version: int
    evaluation: Evaluation
    again: Evaluation | None
    gain: SuccessGain | None

    def summary(self) -> dict[str, Any]:
        """The numbers as JSON."""
        return {
            "version": self.version,
            "evaluation": self.evaluation.summary(),
            "again": self.again and self.again.summary(),
            "gain": None if self.gain is None else {"mean": self.gain.mean, "interval": list(self.gain.interval)},
        }

    def __str__(self) -> str:
        gain = "it is the version that the run began with" if self.gain is None else f"{self.gain} over the baseline"
        if self.gain is not None and self.gain.interval[0] <= 0.0:
            gain += ", which may be chance"
        again = f"; scored by itself once more: {self.again.success_text}" if self.again else ""
        return (
            f"best version {self.policy}@{self.version}: held-out {self.evaluation.success_text}, {gain}{again}; "
            f"promoted: {self.policy!r} is {self.policy}@{self.version}"
        )


@dataclass(slots=True)
class StepRecord:
    """What a turn of the training loop did.

    Args:
        step: Number of the step.
        result: The version that the step made, and its metrics; `metrics["skipped"]` says why it made none.
        groups: The runs that were sent; empty where the server accepted the step before a crash.
        seconds: Wall time by phase: `rollout`, `train`, `swap`, `evaluation`. Where groups are made during training,
            `rollout` is from the first begin of a group that the step took to the last end, `wait` is how long the
            step waited for groups, and `slots` how long its runs waited for slots, on average. `engines_idle`: how long
            engines had no request since the step before.
        replaced: How many groups were added because others have equal rewards, which teach nothing.
        explored: How many runs were added at a higher temperature to groups with equal rewards.
        hints: What hints did; None: `train` gives none.
        hinted: The runs with a hint, which were not sent.
        measured: How many of the groups were made before the first step.
        ages: How many of the groups are so many versions old, where groups are made during training.
        bound: What bounds the speed of the run until now, and what to change, where groups are made during training;
            None in the first step.
        drops: How many complete groups were too old for the step, and were left out.
        timeouts: How many runs were left out of groups because they ran over `timeout`.
        elapsed: Seconds since the call of `train`.
        baseline: The evaluation of the version that the run began with. None: no scenarios are held out.
        evaluation: The held-out evaluation of `result.version`. None: none was due after this step.
        alarms: What a user should act upon; those that go on from earlier steps as well.
        stopped: Why the loop ends with this step, before its last one. None: it does not.
        best: The version that was promoted. None: this is not the last step, or `keep_best` is off.
        tuning: How many runs at once `tune` found, with the step that completed the search; None in all others.
        cost: What was paid since the step before, or since the call of `train`.
        spent: What was paid since the call of `train`, with its parts by scenario and model.
        reward: Mean over the runs that have a reward. Where there are no runs, or where single completions have the
            rewards, it is the step's metric `reward_mean`. None: there is none.
    """

    step: int
    result: StepResult
    groups: list[TrajectoryGroup] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    replaced: int = 0
    explored: int = 0
    measured: int = 0
    ages: Mapping[int, int] = field(default_factory=dict)
    bound: str | None = None
    drops: int = 0
    timeouts: int = 0
    hints: HintCounts | None = None
    hinted: list[Trajectory] = field(default_factory=list)
    elapsed: float = 0.0
    baseline: Evaluation | None = None
    evaluation: Evaluation | None = None
    alarms: list[Alarm] = field(default_factory=list)
    stopped: str | None = None
    best: Best | None = None
    tuning: Tuning | None = None
    cost: Cost | None = None
    spent: RunCost | None = None
    reward: float | None = None

    def __post_init__(self) -> None:
        if self.reward is None:  # kept by a copy without its runs
            rewards = [run.reward for run in runs_of(self.groups) if run.reward is not None]
            self.reward = statistics.fmean(rewards) if rewards else self.result.metrics.get("reward_mean")

    @property
    def informative(self) -> int:
        """How many groups teach something: their rewards differ."""
        return sum(map(informative, self.groups))

    @property
    def runs(self) -> list[Trajectory]:
        """All runs that the step knows of: those that were sent, those with a hint, and those of evaluations."""
        evaluations = (self.baseline, self.evaluation, self.best.again if self.best else None)
        return [
            *runs_of(self.groups),
            *self.hinted,
            *(run for evaluation in evaluations if evaluation is not None for run in evaluation.trajectories),
        ]

    @property
    def trained(self) -> int | None:
        """Tokens that the trainer computed for the step; None: the server took it for an earlier process."""
        tokens: int | None = self.result.metrics.get("tokens_unique")
        return tokens if self.groups else None

    @property
    def success(self) -> tuple[float | None, float | None]:
        """Held-out success of the version that the run began with, and of this step's; None: it is not measured."""
        evaluations = (self.baseline, self.evaluation)
        before, now = (None if evaluation is None else evaluation.success_rate for evaluation in evaluations)
        return before, now

    @property
    def prefix_drift(self) -> float | None:
        """Share of the sampled tokens that the next prompt of their run does not have; None where no run has turns."""
        share: float | None = self.result.metrics.get("prefix_drift")
        return share

    @property
    def teacher_kl(self) -> float | None:
        """Mean of log π − log teacher over the tokens that a teacher scored, in nats; None where there is none."""
        mean: float | None = self.result.metrics.get("teacher_kl")
        return mean

    @property
    def skipped(self) -> str | None:
        """Why the step made no new version; None where it made a version."""
        reason: str | None = self.result.metrics.get("skipped")
        return reason

    @property
    def versions(self) -> dict[str, list[int]]:
        """The versions that answered in the step's runs, by policy."""
        return versions_of(runs_of(self.groups))

    @property
    def failures(self) -> str | None:
        """How many of the step's runs raised and how many have no reward, each with the first error. None: no run."""
        return failures_of(runs_of(self.groups))

    def summary(self) -> dict[str, Any]:
        """The step as JSON, without its runs: a row of the metrics of a training run."""
        return {
            "step": self.step,
            "version": self.result.version,
            "reward": self.reward,
            "skipped": self.skipped,
            "groups": {"sent": len(self.groups), "informative": self.informative, "replaced": self.replaced},
            "explored": self.explored,
            "ages": {str(age): count for age, count in self.ages.items()},
            "bound": self.bound,
            "drops": self.drops,
            "timeouts": self.timeouts,
            "hints": self.hints and asdict(self.hints),
            "seconds": self.seconds,
            "elapsed": self.elapsed,
            "baseline": self.baseline and self.baseline.summary(),
            "evaluation": self.evaluation and self.evaluation.summary(),
            "alarms": [alarm.summary() for alarm in self.alarms],
            "stopped": self.stopped,
            "best": self.best and self.best.summary(),
            "tuning": self.tuning and self.tuning.summary(),
            "cost": self.cost and self.cost.summary(),
            "metrics": self.result.metrics,
        }

    def __str__(self) -> str:
        reward = "no reward" if self.reward is None else f"mean reward {self.reward:.3f}"
        head = f"step {self.step}: version {self.result.version}, {reward}"
        if (drift := self.prefix_drift) is not None:
            head += f", prefix drift {drift:.1%}"
        if self.groups:
            head += f", {self.informative} of {len(self.groups)} groups informative"
        if self.explored:
            head += f", {quantity(self.explored, 'run')} to explore"
        if self.drops:
            head += f", {self.drops} more left out as too old"
        if self.timeouts:
            head += f", {self.timeouts} runs over the timeout left out"
        hints = str(self.hints) if self.hints is not None and self.hints.failed else None
        parts = [head, hints, self._held_out(), self.skipped, self.failures]
        parts.append("alarms: " + ", ".join(alarm.name for alarm in self.alarms) if self.alarms else None)
        parts.append(f"stopped: {self.stopped}" if self.stopped else None)
        return "\n".join(str(part) for part in ("; ".join(filter(None, parts)), self.tuning, self.best) if part)

    def _held_out(self) -> str | None:
        if self.evaluation is None:
            return None
        text = f"held-out {self.evaluation.success_text}"
        if self.baseline is not None and self.baseline.success_rate is not None:
            text += f", {self.baseline.success_rate:.3f} before"
        return text
