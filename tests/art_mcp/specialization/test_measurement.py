"""How many scenarios a measurement takes, success by held-out set, the headline, and what a version gained."""

from __future__ import annotations

import pytest

from art_langgraph import Evaluation, Trajectory
from art_mcp import MCPScenario, ScenarioSet
from art_mcp.scenarios.plan import Plan, Split, Step
from art_mcp.specialization.measurement import (
    LEAST,
    Measurement,
    Measurer,
    PairedGain,
    interleave_sets,
    sign_test,
)
from art_mcp.specialization.settings import RunSettings
from art_mcp.specialization.specialization import Specialization
from art_mcp.specialization.verify import solved


def run(number: int, split: Split, success: bool) -> Trajectory:
    plan = Plan(reference=[Step(tool="look")], split=split)
    scenario = MCPScenario.make(f"{split} {number}", plan)
    return Trajectory(scenario=scenario, reward=float(success), metrics={"success": 0.2 * success})


def measured(stage: str, values: str, phrasings: str = "", combinations: str = "") -> Measurement:
    """Of each set, a letter for each scenario: y for solved."""
    sets: list[tuple[Split, str]] = [("values", values), ("phrasings", phrasings), ("combinations", combinations)]
    runs = [run(at, split, one == "y") for split, letters in sets for at, one in enumerate(letters)]
    return Measurement(stage, Evaluation(runs, 3, solved))


@pytest.mark.parametrize(
    ("cost", "at_once"), [(None, 48), (0.1, 48), (0.5, 48), (1.0, 24), (2.2, 10), (30.0, 4), (1000.0, 4)]
)
def test_as_few_runs_at_once_that_none_exceeds_its_time_because_of_the_others(cost: float | None, at_once: int) -> None:
    assert Measurer(RunSettings(max_concurrency=48, timeout=120.0), progress=False, cost=cost).concurrency == at_once
    assert Measurer(RunSettings(max_concurrency=2), progress=False, cost=cost).concurrency == 2


def test_the_headline_is_the_mean_of_two_sets_whatever_their_sizes() -> None:
    one = measured("after", "yyyn", "yn", "nnnn")
    assert one.rates() == {"values": 0.75, "phrasings": 0.5, "combinations": 0.0, "headline": 0.625}
    assert one.headline_interval is not None
    low, high = one.headline_interval
    assert 0 < low < 0.625 < high < 1
    assert str(one).startswith("headline 0.625 (95 %: ")
    assert measured("after", "", "yn").rates() == {
        "values": None, "phrasings": 0.5, "combinations": None, "headline": 0.5,
    }  # fmt: skip
    assert measured("after", "", "", "y").headline is None


def test_foreign_requests_are_reported_apart_and_count_in_no_headline() -> None:
    runs = [run(0, "values", True), run(0, "foreign", True), run(1, "foreign", False)]
    one = Measurement("after", Evaluation(runs, 3, solved))
    assert list(one.sets) == ["values", "foreign"]
    assert one.rates() == {"values": 1.0, "phrasings": None, "combinations": None, "foreign": 0.5, "headline": 1.0}
    assert one.on_headline.scenarios == 1
    assert "foreign 0.500 of 2" in str(one)
    order = interleave_sets(ScenarioSet([MCPScenario.of_scenario(run.scenario) for run in runs]).held_out_sets, 0)
    assert {scenario.plan.split for scenario in order[:2]} == {"values", "foreign"}


def test_the_interval_of_one_set_is_that_of_its_evaluation() -> None:
    one = measured("after", "yyyn")
    assert one.headline_interval == pytest.approx(one.sets["values"].success_interval)


def test_a_gain_compares_scenarios_with_themselves_and_leaves_combinations_out() -> None:
    before, after = measured("after_sft", "nnnnnnn", "yn", "nn"), measured("after", "yyyyyyn", "yn", "yy")
    gain = after.gain_over(before)
    assert gain is not None
    assert (gain.better, gain.worse, gain.scenarios) == (6, 0, 9)
    assert gain.mean == pytest.approx(6 / 9)
    assert gain.p == pytest.approx(2 / 64)
    assert gain.significant
    assert not PairedGain(0.5, (-0.1, 1.0), 5, 0, 9).significant
    assert after.gain_over(measured("before", "")) is None


def test_the_gain_on_all_sets_counts_combinations_too() -> None:
    made = Specialization(server="s", server_version="", policy="p", base_model="m", scenarios=ScenarioSet())
    assert made.gain_on_all_sets is None
    made.measurements["after_sft"], made.measurements["after"] = (
        measured("", "ny", "", "n"),
        measured("", "yy", "", "y"),
    )
    assert (made.gain, made.gain_on_all_sets) == (None, None), "no step was taken"
    made.steps.append({"step": 1, "reward": 0.5})
    assert made.gain is not None
    assert made.gain_on_all_sets is not None
    assert (made.gain.better, made.gain.scenarios) == (1, 2)
    assert (made.gain_on_all_sets.better, made.gain_on_all_sets.scenarios) == (2, 3)


@pytest.mark.parametrize(("better", "worse", "p"), [(0, 0, 1.0), (1, 1, 1.0), (8, 1, 20 / 512), (0, 6, 2 / 64)])
def test_the_p_value_is_that_of_a_fair_coin(better: int, worse: int, p: float) -> None:
    assert sign_test(better, worse) == pytest.approx(p)


def scenarios(name: str, count: int) -> list[MCPScenario]:
    return [MCPScenario.make(f"{name} {at}", Plan(reference=[Step(tool="look")])) for at in range(count)]


def test_every_beginning_of_the_order_has_as_many_of_each_set() -> None:
    sets = {"values": scenarios("v", 9), "phrasings": scenarios("p", 9), "combinations": scenarios("c", 2)}
    order = interleave_sets(sets, seed=1)
    assert sorted(one.id for one in order) == sorted(one.id for found in sets.values() for one in found)
    assert [one.task[0] for one in order[:8]] == list("vpcvpcvp")
    assert order == interleave_sets(sets, seed=1) != interleave_sets(sets, seed=2)


def test_the_cost_of_the_first_runs_tells_how_many_more_there_is_time_for() -> None:
    measurer = Measurer(RunSettings(max_concurrency=20), progress=False)
    assert measurer._part(0, 100, None, 0.0) == 100, "no limit"
    assert measurer._part(0, 100, 30.0, 0.0) == 20, "the cost is not known"
    measurer.cost = 0.5
    assert measurer._part(20, 100, 30.0, 10.0) == 40
    assert measurer._part(20, 50, 30.0, 10.0) == 30, "no more than there are"
    assert measurer._part(60, 100, 30.0, 29.0) == 0, "too few to be worth it"
    assert measurer._part(0, 100, 30.0, 0.0) == 60, "known from an earlier measurement"
    assert measurer._part(0, 100, 0.0, 0.0) == LEAST, "never none"
