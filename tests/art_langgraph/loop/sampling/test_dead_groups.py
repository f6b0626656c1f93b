"""The report of dead groups."""

from __future__ import annotations

import json

import pytest

from art_langgraph import Scenario, TrajectoryGroup, dead_groups
from art_langgraph.loop.sampling.dead_groups import groups_by_version
from tests.support.runs.groups import group, run


def named(name: str, *rewards: float | None, **fields: object) -> TrajectoryGroup:
    return group(Scenario(id=name, input=f"question of {name}"), *rewards, **fields)


def test_only_scenarios_that_never_taught_anything_are_in_it() -> None:
    groups = [named("late", 0.0, 0.0), named("never", 0.0, 0.0), named("late", 0.0, 1.0), named("never", 0.0, 0.0)]
    report = dead_groups(groups)
    assert [(one.scenario.id, one.groups, one.runs) for one in report.scenarios] == [("never", 2, 4)]
    assert (report.groups, report.dead, report.tried) == (4, 3, 2)
    assert "each of 1 scenarios taught something" in str(dead_groups([named("good", 0.0, 1.0)]))
    assert str(dead_groups([])).startswith("0 of 0 groups")


def test_why_follows_from_the_rewards_of_all() -> None:
    groups = [
        named("solved", 2.0, 2.0), named("failed", -1.0, -1.0), named("between", 0.5, 0.5), named("none", None, None),
        named("raised", 0.0, 0.0, error="OSError: gone"), named("alive", -1.0, 2.0), named("learnt", -1.0, -1.0),
        named("learnt", 2.0, 2.0),
    ]  # fmt: skip
    why = {one.scenario.id: one.why for one in dead_groups(groups).scenarios}
    assert why == {
        "raised": "raised", "none": "unscored", "failed": "failed", "between": "equal", "solved": "solved",
        "learnt": "solved",
    }  # fmt: skip
    assert list(why) == ["raised", "none", "failed", "between", "solved", "learnt"]


@pytest.mark.parametrize(("reward", "why"), [(0.0, "failed"), (1.0, "solved"), (0.5, "equal")])
def test_where_all_rewards_are_equal_one_is_success_and_zero_failure(reward: float, why: str) -> None:
    assert dead_groups([named("a", reward, reward)]).scenarios[0].why == why


def test_success_can_be_told() -> None:
    groups = [named("a", 0.5, 0.5), named("b", 0.2, 0.2)]
    report = dead_groups(groups, success=lambda run: (run.reward or 0.0) >= 0.5)
    assert {one.scenario.id: one.why for one in report.scenarios} == {"a": "solved", "b": "failed"}


def test_the_report_names_the_tool_that_does_not_exist_and_the_remedy() -> None:
    told = "Error: get_town is not a valid tool, try one of [city]."
    groups = [named(name, 0.0, 0.0, calls=[("get_town", told)]) for name in ("a", "b")]
    report = dead_groups([*groups, named("c", 0.0, 1.0)])
    text = str(report)
    assert "2 × all runs failed: called the tool 'get_town', which does not exist (4 runs)" in text
    assert "a 'question of a'" in text
    assert "tell the policy the names of the tools" in text
    (first, _) = json.loads(json.dumps(report.summary()))["scenarios"]
    assert first["symptoms"][0] == {
        "kind": "missing tool", "text": "called the tool 'get_town', which does not exist", "runs": 2,
    }  # fmt: skip
    assert (first["why"], first["question"], first["reward"]) == ("failed", "question of a", 0.0)


def test_the_text_is_short_whatever_happened_and_the_summary_is_whole() -> None:
    lost = [named(f"s{at}", None, None, reward_error=f"KeyError: {at // 2}") for at in range(20)]
    report = dead_groups([*lost, *(named(f"t{at}", 1.0, 1.0) for at in range(5))])
    lines = str(report).splitlines()
    assert len(lines) == 1 + 3 * 2 + 1 + 2
    assert "- 14 × no run has a reward, for 7 other causes" in lines
    assert lines[-2].endswith("and 2 more")
    assert len(report.summary()["scenarios"]) == 25


def test_remedies_fit_the_cause() -> None:
    same = dead_groups([named("a", 0.0, 0.0, output="42"), named("b", 0.0, 1.0)]).scenarios[0]
    assert "higher temperature" in same.remedy
    solved = dead_groups([named("a", 1.0, 1.0)]).scenarios[0]
    assert (solved.symptoms, "drop it from training" in solved.remedy) == ((), True)


def test_stored_runs_are_grouped_as_steps_compared_them() -> None:
    scenario = Scenario(id="a", input="a")
    runs = [run(scenario, 0.0, version=version) for version in (1, 0, 1, 0)]
    left_out = [
        run(scenario, 1.0, evaluation=True), run(scenario, 1.0, policy="other"), run(scenario, 1.0, imported="otel"),
    ]  # fmt: skip
    groups = groups_by_version([*runs, *left_out], "agent")
    assert [[one.id for one in found.trajectories] for found in groups] == [
        [runs[0].id, runs[2].id], [runs[1].id, runs[3].id],
    ]  # fmt: skip
