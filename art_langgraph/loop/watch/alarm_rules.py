"""Alarms: the figures of a step, when those of the last steps are an alarm, and what to do about it."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from art_langgraph.loop.evaluate import Evaluation, SuccessGain
from art_langgraph.loop.failures import TEXT_CALLS, runs_of, text_calls_of
from art_langgraph.loop.watch.record import Alarm, StepRecord
from art_langgraph.trajectory import TrajectoryGroup
from trainer_server.common.text_call import TEXT_CALL_REMEDY
from trainer_server.wire import ConfigError

log = logging.getLogger("art_langgraph")


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
        answers: How many answers the training runs have.
        text_calls: How many of them call a tool in their text, which the parser did not take.
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
    answers: int = 0
    text_calls: int = 0
    evaluation: Evaluation | None = None

    @classmethod
    def of(cls, record: StepRecord) -> Signals:
        """The figures of a step that has its runs."""
        metrics = record.result.metrics
        skip_counts = metrics.get("groups_skipped_by") or {}
        text_calls, answers = text_calls_of(runs_of(record.groups))
        return cls(
            step=record.step,
            version=record.result.version,
            reward=record.reward,
            reward_error=_step_reward_error(record),
            entropy=metrics.get("entropy"),
            length=metrics.get("completion_length_mean"),
            truncated=metrics.get("completions_truncated"),
            groups=metrics.get("groups", 0),
            dead=skip_counts.get("equal_rewards", 0) + skip_counts.get("zero_advantages", 0),
            gap=metrics.get("logp_gap"),
            votes_apart=_mean(
                run.metrics["ruler_disagreement"]
                for run in runs_of(record.groups)
                if "ruler_disagreement" in run.metrics
            ),
            judge_agreement=_mean(map(_agreement, record.groups)),
            answers=answers,
            text_calls=text_calls,
            evaluation=record.evaluation,
        )


def _step_reward_error(record: StepRecord) -> float | None:
    """Standard error of `StepRecord.reward`: over the runs, or over what the step's metrics count."""
    rewards = [run.reward for run in runs_of(record.groups) if run.reward is not None]
    if len(rewards) > 1:
        return statistics.stdev(rewards) / math.sqrt(len(rewards))
    metrics = record.result.metrics
    spread, run_count = metrics.get("reward_std"), metrics.get("trajectories", 0)
    run_count -= (metrics.get("trajectories_skipped") or {}).get("no_reward", 0)
    return None if rewards or spread is None or run_count < 2 else spread / math.sqrt(run_count)


def _agreement(group: TrajectoryGroup) -> float | None:
    """Rank correlation of a judge's scores and the rewards that the runs of a group had before; None: it has none."""
    both = [run.metrics for run in group.trajectories if {"ruler_score", "independent_reward"} <= run.metrics.keys()]
    scores, rewards = ([metrics[name] for metrics in both] for name in ("ruler_score", "independent_reward"))
    if len(set(scores)) < 2 or len(set(rewards)) < 2:
        return None
    return statistics.correlation(_ranks(scores), _ranks(rewards))


def _ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value; equal values share the mean of their ranks."""
    in_order = sorted(values)
    first = {value: in_order.index(value) for value in set(values)}
    return [first[value] + (in_order.count(value) - 1) / 2 for value in values]


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.fmean(numbers) if numbers else None


_Finding = tuple[str, str, str]
"""Name, evidence and remedy of an alarm."""


@dataclass(frozen=True, slots=True)
class AlarmRules:
    """Thresholds of the alarms. The sources say why a figure matters; the numbers are this project's own choice.

    Args:
        window: Steps that a mean is over: the last ones, and those that they are compared with.
        reward_errors: `reward_up_held_out_down`: the mean training reward rose by more than this many standard errors,
            while held-out success fell below its best beyond the interval of paired scenarios. A reward that is
            optimised parts from the goal it stands for (Gao et al. 2022, arXiv:2210.10760).
        entropy_share: `entropy_collapse`: entropy per token is below this share of that of the first steps, and the
            mean training reward of the last steps is not above that of the steps before. Without entropy there is
            nothing left to explore, and success stops rising (Cui et al. 2025, arXiv:2505.22617; Yu et al. 2025,
            DAPO, arXiv:2503.14476).
        solved: No entropy alarm from this held-out success on: an agent that is always right may be sure of itself.
        length_ratio: `length_growth`: completions are longer than those of the first steps by more than this factor,
            and held-out success has not risen beyond its interval. Averaging a loss over each completion favours long
            wrong ones (Liu et al. 2025, arXiv:2503.20783).
        truncated_share: `length_growth` too: the limit of tokens cuts more than this share of the completions, and more
            than in the first steps.
        dead_steps: `dead_groups`: in this many steps in a row, no group had rewards that differ. Such groups have no
            gradient (DAPO).
        votes_apart: `judge_disagreement`: the votes of a judge (0 to 1) on the same run differ by more than this
            standard deviation. Judges change their verdict with the order of candidates (Zheng et al. 2023,
            arXiv:2306.05685).
        judge_agreement: `judge_disagreement` too: the rank correlation between the judge's scores and the rewards that
            the runs had before is below this.
        gap: `sampler_gap`: trainer and sampler differ by more than this, in nats per token. 0.02 is usual in bf16
            (docs/training/exactness.md).
        text_calls: `text_calls`: more than this share of the answers of a step call a tool in their text, where the
            engine's parser does not take it. A run ends with such an answer, without an error.
    """

    window: int = 3
    reward_errors: float = 2.0
    entropy_share: float = 0.2
    solved: float = 0.95
    length_ratio: float = 2.0
    truncated_share: float = 0.1
    dead_steps: int = 3
    votes_apart: float = 0.2
    judge_agreement: float = 0.2
    gap: float = 0.1
    text_calls: float = 0.1

    def __post_init__(self) -> None:
        if self.window < 1 or self.dead_steps < 1:
            raise ConfigError(f"window={self.window} and dead_steps={self.dead_steps} must be at least 1")

    def findings(self, signals: Sequence[Signals]) -> list[_Finding]:
        """What the steps until now give cause for: name, evidence and remedy.

        Args:
            signals: Those of the baseline and of all steps, in their order.
        """
        checks = (self._held_out, self._entropy, self._length, self._dead, self._judge, self._gap, self._text_calls)
        return [finding for check in checks for finding in check(signals)]

    def _held_out(self, signals: Sequence[Signals]) -> Iterator[_Finding]:
        evaluations = [
            signal for signal in signals if signal.evaluation is not None and signal.evaluation.success_rate is not None
        ]
        if len(evaluations) < 2:
            return
        last, best = evaluations[-1], max(evaluations[:-1], key=_rate)
        gain = _gain(best, last)
        with_reward = [signal for signal in signals if signal.reward is not None]
        before = [signal for signal in with_reward if signal.step <= best.step][-self.window :]
        later = [signal for signal in with_reward if signal.step > best.step]
        before = before or later[: self.window]
        now = [signal for signal in later if signal not in before][-self.window :]
        if gain is None or gain.interval[1] >= 0 or not before or not now:
            return
        rise = _mean_reward(now) - _mean_reward(before)
        if rise > self.reward_errors * math.hypot(_reward_error(now), _reward_error(before)) and rise > 0:
            yield (
                "reward_up_held_out_down",
                f"held-out success is {_rate(last):.3f} at version {last.version}, {gain} against version "
                f"{best.version}, while the mean training reward rose from {_mean_reward(before):.3f} "
                f"({_steps(before)}) to {_mean_reward(now):.3f} ({_steps(now)})",
                "The reward pays for something else than the task, or the training scenarios are learnt by heart: read "
                "the runs with the highest reward (`art-langgraph trajectories list --min-reward`), mend the reward, "
                "train on more scenarios, or go on with a lower lr or beta > 0; keep_best=True promotes the better "
                "version",
            )

    def _entropy(self, signals: Sequence[Signals]) -> Iterator[_Finding]:
        with_entropy = [signal for signal in signals if signal.entropy is not None]
        if (ends := self._ends(with_entropy)) is None or self._is_solved(signals):
            return
        first, last = (statistics.fmean(signal.entropy or 0.0 for signal in part) for part in ends)
        if last < self.entropy_share * first and not self._reward_rises(signals):
            yield (
                "entropy_collapse",
                f"{last:.4f} nats per token ({_steps(ends[1])}), {first:.4f} in the beginning ({_steps(ends[0])})",
                "The policy explores no more: go on from an earlier version (`art-langgraph fork`) with a higher "
                "epsilon_high, a lower lr or entropy_coef > 0, and see that temperature is 1",
            )

    def _reward_rises(self, signals: Sequence[Signals]) -> bool:
        """Whether the mean reward of the last steps is above that of as many steps before them."""
        with_reward = [signal for signal in signals if signal.reward is not None]
        now, before = with_reward[-self.window :], with_reward[-2 * self.window : -self.window]
        return bool(before) and _mean_reward(now) > _mean_reward(before)

    def _length(self, signals: Sequence[Signals]) -> Iterator[_Finding]:
        with_length = [signal for signal in signals if signal.length is not None]
        if (ends := self._ends(with_length)) is None:
            return
        first, last = (statistics.fmean(signal.length or 0.0 for signal in part) for part in ends)
        cut_first, cut = (statistics.fmean(signal.truncated or 0.0 for signal in part) for part in ends)
        grew = last > self.length_ratio * first and not self._has_gained(signals)
        if grew or (cut > self.truncated_share and cut > cut_first):
            yield (
                "length_growth",
                f"{last:.0f} tokens per completion, {cut:.0%} cut by the limit ({_steps(ends[1])}); {first:.0f} and "
                f"{cut_first:.0%} in the beginning ({_steps(ends[0])})",
                "Length pays without success: see what the runs repeat, make the reward fall with length, take "
                'loss_type="dr_grpo" or "dapo" rather than "grpo", or leave cut completions out '
                "(mask_truncated_completions)",
            )

    def _dead(self, signals: Sequence[Signals]) -> Iterator[_Finding]:
        last = [signal for signal in signals if signal.groups][-self.dead_steps :]
        if len(last) < self.dead_steps or any(signal.dead < signal.groups for signal in last):
            return
        rewards = [signal.reward for signal in last if signal.reward is not None]
        yield (
            "dead_groups",
            f"in {_steps(last)} the runs of each scenario all got the same reward "
            f"({sum(signal.groups for signal in last)} groups, mean reward {statistics.fmean(rewards):.3f})",
            "Where all fail: easier scenarios, hints, a warm start (`art-langgraph sft`), more runs (n) or a higher "
            "temperature. Where all succeed: harder scenarios, or stop. Some of each: sampler and dynamic_sampling "
            "choose scenarios that can teach",
        )

    def _judge(self, signals: Sequence[Signals]) -> Iterator[_Finding]:
        votes = [signal for signal in signals if signal.votes_apart is not None][-self.window :]
        if len(votes) == self.window:
            apart = statistics.fmean(signal.votes_apart or 0.0 for signal in votes)
            if apart > self.votes_apart:
                yield (
                    "judge_disagreement",
                    f"votes on the same run have a standard deviation of {apart:.2f} ({_steps(votes)})",
                    "The judge is unsure: write a more precise rubric, take more votes or a stronger judge",
                )
                return
        with_ranks = [signal for signal in signals if signal.judge_agreement is not None][-self.window :]
        if len(with_ranks) == self.window:
            agreement = statistics.fmean(signal.judge_agreement or 0.0 for signal in with_ranks)
            if agreement < self.judge_agreement:
                yield (
                    "judge_disagreement",
                    f"the rank correlation of the judge's scores with the runs' own rewards is {agreement:.2f} "
                    f"({_steps(with_ranks)})",
                    "Judge and reward function want different things: read some runs with both "
                    "(`art-langgraph trajectories show`), and mend the rubric or the reward",
                )

    def _gap(self, signals: Sequence[Signals]) -> Iterator[_Finding]:
        last = signals[-1]
        if last.gap is not None and last.gap > self.gap:
            yield (
                "sampler_gap",
                f"trainer and sampler differ by {last.gap:.3f} nats per token (step {last.step})",
                "They do not compute the same model: compare dtype, quantization, temperature and chat template of "
                "engine and trainer (`art-langgraph doctor`)",
            )

    def _text_calls(self, signals: Sequence[Signals]) -> Iterator[_Finding]:
        last = signals[-1]
        if last.text_calls > self.text_calls * last.answers:
            yield (
                "text_calls",
                f"{last.text_calls} of {last.answers} answers {TEXT_CALLS} (step {last.step})",
                f"{TEXT_CALL_REMEDY}; or a warm start (`art-langgraph sft`) teaches the format of the chat template",
            )

    def _ends(self, signals: Sequence[Signals]) -> tuple[Sequence[Signals], Sequence[Signals]] | None:
        """The first and the last steps of the run; None where they overlap."""
        return None if len(signals) < 2 * self.window else (signals[: self.window], signals[-self.window :])

    def _is_solved(self, signals: Sequence[Signals]) -> bool:
        evaluations = [signal for signal in signals if signal.evaluation is not None]
        return bool(evaluations) and _rate(evaluations[-1]) >= self.solved

    def _has_gained(self, signals: Sequence[Signals]) -> bool:
        """Whether held-out success rose beyond its interval since the first evaluation."""
        evaluations = [signal for signal in signals if signal.evaluation is not None]
        gain = _gain(evaluations[0], evaluations[-1]) if len(evaluations) > 1 else None
        return gain is not None and gain.interval[0] > 0


@dataclass(slots=True)
class AlarmLog:
    """The alarms of one training run: each is logged when it begins, and when it has ended.

    Args:
        rules: When a figure is an alarm.
        signals: Those of the baseline and of the steps until now.
        active: The alarms that go on, by name.
    """

    rules: AlarmRules
    signals: list[Signals] = field(default_factory=list)
    active: dict[str, Alarm] = field(default_factory=dict)

    def add(self, signals: Signals) -> list[Alarm]:
        """Takes the figures of a step. Returns the alarms that hold after it."""
        self.signals.append(signals)
        before, self.active = self.active, {}
        for name, evidence, remedy in self.rules.findings(self.signals):
            since = before[name].since if name in before else signals.step
            self.active[name] = Alarm(name, since, evidence, remedy)
            if name not in before:
                log.warning("step %d, alarm %s", signals.step, self.active[name])
        for name in before.keys() - self.active.keys():
            log.info("step %d: the alarm %s has ended", signals.step, name)
        return list(self.active.values())


def _rate(signal: Signals) -> float:
    rate = signal.evaluation.success_rate if signal.evaluation else None
    return 0.0 if rate is None else rate


def _gain(before: Signals, after: Signals) -> SuccessGain | None:
    assert before.evaluation is not None
    assert after.evaluation is not None
    return after.evaluation.gain_over(before.evaluation)


def _mean_reward(signals: Sequence[Signals]) -> float:
    return statistics.fmean(signal.reward or 0.0 for signal in signals)


def _reward_error(signals: Sequence[Signals]) -> float:
    """Standard error of the mean over steps."""
    return math.hypot(*(signal.reward_error or 0.0 for signal in signals)) / len(signals)


def _steps(signals: Sequence[Signals]) -> str:
    first, last = signals[0].step, signals[-1].step
    return f"step {first}" if first == last else f"steps {first} to {last}"
