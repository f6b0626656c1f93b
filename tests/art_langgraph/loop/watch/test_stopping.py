"""Rules that end a run: each says why, and none is fooled by chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from art_langgraph import Evaluation, Plateau, StepRecord, StepResult, TargetReached, TimeBudget, TokenBudget
from art_langgraph.loop.watch.stopping import StopRule, check_rules, reason_of
from tests.support.runs.evaluations import evaluation
from trainer_server.wire import ConfigError


def history(*solved: int | None, baseline: int = 5, **record: Any) -> list[StepRecord]:
    """Records whose evaluations solved so many of 60 scenarios; None: no evaluation."""
    first = evaluation(range(baseline), 60)
    return [
        StepRecord(
            step,
            StepResult(version=step, metrics={"tokens_sampled": 100}),
            baseline=first,
            evaluation=None if count is None else evaluation(range(count), 60, step),
            **record,
        )
        for step, count in enumerate(solved, start=1)
    ]


def test_a_target_is_reached_by_the_lower_bound() -> None:
    rule = TargetReached(0.8)
    assert rule(history(48)) is None, "0.8 measured is not 0.8 for sure"
    assert rule(history(58, None)) is None, "no evaluation, nothing new"
    assert "success 0.967 (0.886 to 0.991) has reached 0.8" in str(rule(history(None, 58)))


def test_a_plateau_is_no_gain_beyond_chance_in_several_evaluations() -> None:
    rule = Plateau(2)
    assert rule(history(20)) is None, "too few evaluations"
    assert rule(history(20, 22)) is None, "the baseline was worse"
    assert "at most +0.033" in str(rule(history(20, 22, 21)))
    assert rule(history(20, 22, 21, None)) is None, "asked where an evaluation was made, once"
    assert rule(history(20, 24, 29)) is None, "small gains that add up are a gain"
    assert "gained nothing" in str(rule(history(20, None, 10, None, 12)))


def test_a_version_that_was_measured_once_counts_once() -> None:
    records = history(20, 21)
    records.append(StepRecord(3, StepResult(version=2), baseline=records[0].baseline, evaluation=records[1].evaluation))
    assert Plateau(2)(records) is None


def test_budgets_of_time_and_tokens() -> None:
    assert TimeBudget(minutes=1, seconds=30)(history(None, elapsed=89.0)) is None
    assert TimeBudget(minutes=1, seconds=30)(history(None, elapsed=90.0)) == "90 s are over the time budget of 90 s"
    assert TokenBudget(300)(history(None, None)) is None
    assert "300 sampled tokens" in str(TokenBudget(300)(history(None, None, None)))


def test_a_function_is_a_rule_too() -> None:
    def never(records: Sequence[StepRecord]) -> bool:
        return False

    def enough(records: Sequence[StepRecord]) -> bool:
        return len(records) > 1

    assert reason_of(never, history(None, None)) is None
    assert reason_of(enough, history(None)) is None
    assert reason_of(enough, history(None, None)) == "enough said so"
    assert reason_of(lambda records: "done", history(None)) == "done"


@pytest.mark.parametrize(
    "make",
    [
        lambda: TargetReached(1.0),
        lambda: TargetReached(0.0),
        lambda: Plateau(0),
        lambda: TimeBudget(),
        lambda: TokenBudget(0),
    ],
)
def test_a_rule_that_could_never_hold_or_always_holds_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


def test_a_rule_that_needs_held_out_scenarios_says_so() -> None:
    rules: list[StopRule] = [TimeBudget(minutes=1), Plateau()]
    check_rules(rules, held_out=True)
    with pytest.raises(ConfigError, match=r"stop_when=Plateau\(patience=3\) looks at held-out success: give held_out"):
        check_rules(rules, held_out=False)


def test_a_gain_is_of_the_same_scenarios() -> None:
    before, after = evaluation(range(60), 120), evaluation(range(6, 72), 120)
    gain = after.gain_over(before)
    assert gain is not None
    assert gain.mean == pytest.approx(0.05)
    assert gain.interval[0] < 0 < gain.interval[1], "six were lost and twelve gained"
    six, five = (evaluation(range(60 + more), 120).gain_over(before) for more in (6, 5))
    assert six is not None
    assert five is not None
    assert six.interval[0] > 0 > five.interval[0], "as in McNemar's exact test: p is 0.03 and 0.06"
    assert before.gain_over(Evaluation([])) is None
    same = before.gain_over(before)
    assert same is not None
    assert same.mean == 0
    assert same.interval[0] == pytest.approx(-same.interval[1])
