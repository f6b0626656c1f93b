"""Alarms: each has numbers and a remedy, is logged once when it begins, and does not cry wolf."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from art_langgraph import AlarmRules, Scenario, StepRecord, StepResult, Trajectory, TrajectoryGroup
from art_langgraph.loop.watch.alarm_rules import AlarmLog, Signals
from art_langgraph.trajectory import CompletionCall
from tests.support.runs.evaluations import evaluation
from trainer_server.wire import ConfigError

RULES = AlarmRules(window=2)


def names(*steps: dict[str, Any], rules: AlarmRules = RULES) -> list[str]:
    """The alarms after steps with these figures."""
    signals = [Signals(step=at, version=at, **figures) for at, figures in enumerate(steps)]
    return [name for name, _, _ in rules.findings(signals)]


def series(**figures: list[float]) -> list[dict[str, Any]]:
    return [dict(zip(figures, values, strict=True)) for values in zip(*figures.values(), strict=True)]


def test_a_reward_that_rises_while_held_out_success_falls() -> None:
    good, bad = {"evaluation": evaluation(range(30), 60)}, {"evaluation": evaluation(range(12), 60)}
    low, high = {"reward": 0.4, "reward_error": 0.05}, {"reward": 0.7, "reward_error": 0.05}
    assert names(good, low, low, high, {**high, **bad}) == ["reward_up_held_out_down"]
    assert names(good, low, low, low, {**low, **bad}) == [], "the reward does not rise"
    assert names(good, low, low, high, {**high, "evaluation": evaluation(range(29), 60)}) == [], "it fell by chance"
    noisy = {"reward": 0.7, "reward_error": 0.3}
    assert names(good, low, low, noisy, {**noisy, **bad}) == [], "the reward rose by chance"
    assert names(good, {**high, **bad}) == [], "one step has nothing to rise from"
    better = {"evaluation": evaluation(range(40), 60)}
    assert names(good, low, {**low, **better}, high, {**high, **bad}) == ["reward_up_held_out_down"]


def test_entropy_that_is_gone() -> None:
    falling = series(entropy=[1.0, 0.9, 0.5, 0.12, 0.1])
    assert names(*falling) == ["entropy_collapse"]
    assert names(*falling[:4]) == [], "0.31 of the beginning"
    rising = series(entropy=[1.0, 0.9, 0.5, 0.12, 0.1], reward=[0.1, 0.2, 0.3, 0.5, 0.6])
    assert names(*rising) == [], "it becomes sure of what is right"
    still = series(entropy=[1.0, 0.9, 0.5, 0.12, 0.1], reward=[0.1, 0.4, 0.5, 0.45, 0.45])
    assert names(*still) == ["entropy_collapse"]
    solved = {"evaluation": evaluation(range(60), 60)}
    assert names(*falling[:-1], {**falling[-1], **solved}) == [], "who is always right may be sure of it"


def test_completions_that_grow_without_success() -> None:
    longer = series(length=[20.0, 22.0, 40.0, 60.0, 70.0])
    assert names(*longer) == ["length_growth"]
    assert names(*longer[:4], {"length": 20.0}) == []
    first, last = {"evaluation": evaluation(range(10), 60)}, {"evaluation": evaluation(range(40), 60)}
    assert names({**longer[0], **first}, *longer[1:-1], {**longer[-1], **last}) == [], "it thinks longer, and gains"
    assert names(*series(length=[20.0] * 4, truncated=[0.0, 0.0, 0.3, 0.2])) == ["length_growth"]
    assert names(*series(length=[20.0] * 4, truncated=[0.3, 0.3, 0.3, 0.3])) == [], "as in the beginning"


def test_groups_that_teach_nothing_step_after_step() -> None:
    dead, alive = {"groups": 4, "dead": 4, "reward": 0.0}, {"groups": 4, "dead": 3, "reward": 0.1}
    assert names({}, dead, dead, dead) == ["dead_groups"]
    assert names({}, dead, alive, dead, dead) == []
    assert names({}, dead, dead, rules=AlarmRules(dead_steps=2)) == ["dead_groups"]


def test_judges_that_disagree_with_themselves_or_with_the_reward() -> None:
    assert names(*series(votes_apart=[0.1, 0.3, 0.25])) == ["judge_disagreement"]
    assert names(*series(votes_apart=[0.1, 0.3, 0.05])) == []
    assert names(*series(judge_agreement=[0.9, 0.1, -0.2])) == ["judge_disagreement"]
    assert names(*series(judge_agreement=[0.1, 0.9, 0.8])) == []


def test_a_trainer_that_is_not_the_sampler() -> None:
    assert names(*series(gap=[0.02, 0.2])) == ["sampler_gap"]
    assert names(*series(gap=[0.2, 0.02])) == []


def test_answers_with_calls_that_the_parser_did_not_take() -> None:
    assert names(*series(answers=[8, 8], text_calls=[0, 1])) == ["text_calls"]
    assert names(*series(answers=[8, 10], text_calls=[8, 1])) == []
    assert names({}) == []


def test_an_alarm_is_logged_when_it_begins_and_holds_until_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    seen = AlarmLog(AlarmRules())
    raised = [seen.add(Signals(step, step, gap=gap)) for step, gap in enumerate((0.01, 0.3, 0.4, 0.01, 0.3))]
    assert [[alarm.since for alarm in alarms] for alarms in raised] == [[], [1], [1], [], [4]]
    assert "differ by 0.400" in raised[2][0].evidence
    assert "art-langgraph doctor" in raised[2][0].remedy
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]


def test_a_threshold_that_means_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="window=0"):
        AlarmRules(window=0)


def test_the_figures_of_a_step_are_read_from_its_metrics_and_runs() -> None:
    def run(score: float, own: float, apart: float) -> Trajectory:
        figures = {"ruler_score": score, "independent_reward": own, "ruler_disagreement": apart}
        call = CompletionCall(id="c", message={"content": "x"}, text_call="look" if own == 1.0 else None, started=0.0)
        return Trajectory(scenario=Scenario(id="s", input="x"), reward=score, metrics=figures, completions=[call])

    task = Scenario(id="s", input="x")
    opposed = TrajectoryGroup(scenario=task, trajectories=[run(0.9, 0.0, 0.1), run(0.5, 0.5, 0.2), run(0.1, 1.0, 0.3)])
    equal = TrajectoryGroup(scenario=task, trajectories=[run(0.5, 1.0, 0.2), run(0.5, 0.0, 0.2)])
    metrics = {
        "reward_mean": 0.5, "reward_std": 0.4, "trajectories": 18, "trajectories_skipped": {"no_reward": 2},
        "entropy": 0.3, "completion_length_mean": 12.0, "completions_truncated": 0.25, "groups": 2,
        "groups_skipped_by": {"equal_rewards": 1}, "logp_gap": 0.02,
    }  # fmt: skip
    found = Signals.of(StepRecord(3, StepResult(version=2, metrics=metrics), [opposed, equal]))
    assert (found.step, found.version, found.reward) == (3, 2, 0.5)
    assert found.reward_error == pytest.approx(math.sqrt(0.08 / 5)), "of the mean over the runs"
    lost = Signals.of(StepRecord(3, StepResult(version=2, metrics=metrics)))
    assert (lost.reward, lost.reward_error) == (0.5, pytest.approx(0.1)), "without runs, the step's own metrics count"
    assert (found.entropy, found.length, found.truncated, found.gap) == (0.3, 12.0, 0.25, 0.02)
    assert (found.groups, found.dead) == (2, 1)
    assert (found.answers, found.text_calls) == (5, 2)
    assert found.votes_apart == pytest.approx(0.2)
    assert found.judge_agreement == pytest.approx(-1.0), "the group of equal scores says nothing"
    nothing = Signals.of(StepRecord(1, StepResult(version=0, metrics={})))
    assert (nothing.reward, nothing.groups, nothing.judge_agreement) == (None, 0, None)
