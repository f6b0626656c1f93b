"""AlarmRules: when the figures of the last steps are an alarm, and what to do about it."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from art_langgraph.loop.evaluate import SuccessGain
from art_langgraph.loop.watch.alarm import Alarm
from art_langgraph.loop.watch.signals import Signals
from trainer_server.wire import ConfigError

log = logging.getLogger("art_langgraph")

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

    def __post_init__(self) -> None:
        if self.window < 1 or self.dead_steps < 1:
            raise ConfigError(f"window={self.window} and dead_steps={self.dead_steps} must be at least 1")

    def findings(self, signals: Sequence[Signals]) -> list[_Finding]:
        """What the steps until now give cause for: name, evidence and remedy.

        Args:
            signals: Those of the baseline and of all steps, in their order.
        """
        checks = (self._held_out, self._entropy, self._length, self._dead, self._judge, self._gap)
        return [finding for check in checks for finding in check(signals)]

    def _held_out(self, signals: Sequence[Signals]) -> Iterator[_Finding]:
        measured = [
            signal for signal in signals if signal.evaluation is not None and signal.evaluation.success_rate is not None
        ]
        if len(measured) < 2:
            return
        last, best = measured[-1], max(measured[:-1], key=_rate)
        gain = _gain(best, last)
        rewarded = [signal for signal in signals if signal.reward is not None]
        before = [signal for signal in rewarded if signal.step <= best.step][-self.window :]
        later = [signal for signal in rewarded if signal.step > best.step]
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
        known = [signal for signal in signals if signal.entropy is not None]
        if (ends := self._ends(known)) is None or self._is_solved(signals):
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
        rewarded = [signal for signal in signals if signal.reward is not None]
        now, before = rewarded[-self.window :], rewarded[-2 * self.window : -self.window]
        return bool(before) and _mean_reward(now) > _mean_reward(before)

    def _length(self, signals: Sequence[Signals]) -> Iterator[_Finding]:
        known = [signal for signal in signals if signal.length is not None]
        if (ends := self._ends(known)) is None:
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
        ranked = [signal for signal in signals if signal.judge_agreement is not None][-self.window :]
        if len(ranked) == self.window:
            agreement = statistics.fmean(signal.judge_agreement or 0.0 for signal in ranked)
            if agreement < self.judge_agreement:
                yield (
                    "judge_disagreement",
                    f"the rank correlation of the judge's scores with the runs' own rewards is {agreement:.2f} "
                    f"({_steps(ranked)})",
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

    def _ends(self, signals: Sequence[Signals]) -> tuple[Sequence[Signals], Sequence[Signals]] | None:
        """The first and the last steps of the run; None where they overlap."""
        return None if len(signals) < 2 * self.window else (signals[: self.window], signals[-self.window :])

    def _is_solved(self, signals: Sequence[Signals]) -> bool:
        measured = [signal for signal in signals if signal.evaluation is not None]
        return bool(measured) and _rate(measured[-1]) >= self.solved

    def _has_gained(self, signals: Sequence[Signals]) -> bool:
        """Whether held-out success rose beyond its interval since the first evaluation."""
        measured = [signal for signal in signals if signal.evaluation is not None]
        gain = _gain(measured[0], measured[-1]) if len(measured) > 1 else None
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
