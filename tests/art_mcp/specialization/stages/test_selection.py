"""Which version is taken, and the scenarios that decide it."""

from __future__ import annotations

from art_langgraph import Evaluation, Trajectory
from art_mcp import MCPScenario
from art_mcp.scenarios.plan import Plan, Step
from art_mcp.specialization.demonstrations import put_aside
from art_mcp.specialization.stages.selection import select_version
from art_mcp.specialization.verify import solved


def scenario(number: int) -> MCPScenario:
    return MCPScenario.make(f"task {number}", Plan(reference=[Step(tool="look")]))


def evaluation(version: int, letters: str) -> Evaluation:
    runs = [
        Trajectory(scenario=scenario(at), reward=float(one == "y"), metrics={"success": 0.2 * (one == "y")})
        for at, one in enumerate(letters)
    ]
    return Evaluation(runs, version, solved)


def test_selection_scenarios_are_not_trained_on() -> None:
    every = [scenario(number) for number in range(100)]
    training, selection = put_aside(every, seed=0)
    assert (len(training), len(selection)) == (90, 10)
    assert {one.id for one in training} | {one.id for one in selection} == {one.id for one in every}
    assert put_aside(every, seed=0) == (training, selection) != put_aside(every, seed=1)
    assert len(put_aside([scenario(number) for number in range(900)], 0)[1]) == 32
    assert put_aside(every[:30], seed=0) == (every[:30], [])


def test_the_best_version_is_taken() -> None:
    version, why = select_version({1: evaluation(1, "yyyyynnnnn"), 5: evaluation(5, "nyyyynnnnn")}, last=5)
    assert version == 1
    assert why == "version 1 solved 1 more of 10 selection scenarios than the last version, 5"
    best, _ = select_version(
        {1: evaluation(1, "yyyyynnnnn"), 3: evaluation(3, "yyyyyyyynn"), 5: evaluation(5, "nnnnnnnnnn")}, last=5
    )
    assert best == 3


def test_of_equals_the_one_with_more_reward_is_taken_and_then_the_last() -> None:
    assert select_version({1: evaluation(1, "yyyyy"), 5: evaluation(5, "yyyyy")}, last=5)[0] == 5
    richer = evaluation(1, "yyynn")
    richer.trajectories[-1].reward = 0.5
    version, why = select_version({1: richer, 5: evaluation(5, "yyynn")}, last=5)
    assert version == 1
    assert "as many" in why
    assert select_version({1: evaluation(1, "yyyyy")}, last=5)[0] == 5
    assert "could not be compared" in select_version({5: evaluation(5, "yyyyy")}, last=5)[1]
