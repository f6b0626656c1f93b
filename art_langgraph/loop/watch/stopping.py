"""Rules that end a training run early: functions of its history that say why, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.loop.watch.record import StepRecord
from trainer_server.wire import ConfigError

StopRule = Callable[[Sequence[StepRecord]], str | bool | None]
"""Takes the records of all steps of this process, the newest last and without their runs (`groups` is empty). Returns
why the run should end, or True; None or False: it goes on."""


def reason_of(rule: StopRule, history: Sequence[StepRecord]) -> str | None:
    """Why a rule ends the run; None: it does not."""
    reason = rule(history)
    if reason is True:
        return f"{getattr(rule, '__name__', None) or repr(rule)} said so"
    return reason or None


def check_rules(rules: Sequence[StopRule], *, held_out: bool) -> None:
    """Raises ConfigError for what is no rule, and for a rule that can never end the run."""
    if wrong := [rule for rule in rules if not callable(rule)]:
        raise ConfigError(
            f"stop_when={wrong[0]!r} is no rule: give TargetReached(0.9), Plateau(3), TimeBudget(minutes=30), "
            "TokenBudget(10**6), a function of the records, or a list of these"
        )
    if blind := [rule for rule in rules if getattr(rule, "needs_held_out", False) and not held_out]:
        raise ConfigError(
            f"stop_when={blind[0]} looks at held-out success: give held_out=…, scenarios to measure it on"
        )


@dataclass(frozen=True, slots=True)
class TargetReached:
    """Ends the run when held-out success is high enough, and not by chance.

    Args:
        success: The lower bound of the 95 % interval of held-out success must be at least this.
    """

    success: float
    needs_held_out: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.success < 1:
            raise ConfigError(
                f"TargetReached({self.success}): no lower bound of an interval reaches 1, and every one is at least 0; "
                "give a number between them"
            )

    def __call__(self, history: Sequence[StepRecord]) -> str | None:
        last = history[-1].evaluation
        if last is None or last.success_rate is None or last.success_interval[0] < self.success:
            return None
        return f"held-out {last.success_text} has reached {self.success:g}"


@dataclass(frozen=True, slots=True)
class Plateau:
    """Ends the run when the last evaluations are no better than the best one before them.

    Better means beyond chance: the 95 % interval of the gain, scenario by scenario, is above 0.

    Args:
        patience: How many evaluations in a row.
    """

    patience: int = 3
    needs_held_out: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ConfigError(f"Plateau({self.patience}): give at least 1 evaluation")

    def __call__(self, history: Sequence[StepRecord]) -> str | None:
        if history[-1].evaluation is None:
            return None
        evaluations = _evaluations(history)
        if len(evaluations) <= self.patience:
            return None
        earlier, last = evaluations[: -self.patience], evaluations[-self.patience :]
        best = max(earlier, key=lambda evaluation: evaluation.success_rate or 0.0)
        gains = [gain for evaluation in last if (gain := evaluation.gain_over(best)) is not None]
        if any(gain.interval[0] > 0 for gain in gains):
            return None
        return (
            f"the last {self.patience} evaluations gained nothing beyond chance on the best one before them "
            f"({best.success_text}): at most {max(gains)}"
            if gains
            else f"the last {self.patience} evaluations share no scored scenario with the best one before them"
        )


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """Ends the run after some time: after the step in which it is over. Evaluations count, those before it too.

    Args:
        minutes: Minutes since the call of `train`, added to `seconds`.
        seconds: Seconds.
    """

    minutes: float = 0.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.total <= 0:
            raise ConfigError(f"{self}: give minutes or seconds above 0")

    @property
    def total(self) -> float:
        """In seconds."""
        return 60 * self.minutes + self.seconds

    def __call__(self, history: Sequence[StepRecord]) -> str | None:
        seconds = history[-1].elapsed
        return f"{seconds:.0f} s are over the time budget of {self.total:.0f} s" if seconds >= self.total else None


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Ends the run when the policy has sampled some number of tokens for training steps.

    Args:
        tokens: Sampled tokens of all steps of this process; those of evaluations do not count.
    """

    tokens: int

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigError(f"TokenBudget({self.tokens}): give at least 1 token")

    def __call__(self, history: Sequence[StepRecord]) -> str | None:
        tokens = sum(record.result.metrics.get("tokens_sampled", 0) for record in history)
        return f"{tokens} sampled tokens are over the budget of {self.tokens}" if tokens >= self.tokens else None


def _evaluations(history: Sequence[StepRecord]) -> list[Evaluation]:
    """The baseline and all evaluations of steps, of one version each, in their order."""
    evaluations = [history[0].baseline, *(record.evaluation for record in history)]
    distinct = {
        id(evaluation): evaluation
        for evaluation in evaluations
        if evaluation is not None and evaluation.success_rate is not None
    }
    return list(distinct.values())
