"""How many scenarios a measurement takes."""

from __future__ import annotations

from art_mcp import MCPScenario
from art_mcp.scenarios.plan import Plan, Step
from art_mcp.specialization.measurer import LEAST, Measurer, interleave_sets
from art_mcp.specialization.settings import RunSettings


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
