"""The result of the benchmark as JSON."""

from __future__ import annotations

import json

from art_langgraph import Evaluation, Trajectory
from art_mcp import MCPScenario, Measurement, ScenarioSet, Specialization
from art_mcp.scenarios.plan import Kind, Plan, Step
from art_mcp.specialization.verify import solved
from benchmarks.specialize import SHOWN, Coverage, as_markdown, result_of, sample


def test_sets_that_do_not_exist_and_stages_that_were_left_out_are_null() -> None:
    made = Specialization(server="mcp-x", server_version="1", policy="p", base_model="b", scenarios=ScenarioSet())
    for stage, reward in (("before", 0.0), ("after", 1.0)):
        plan = Plan(reference=[Step(tool="look")], split="values")
        runs = [
            Trajectory(scenario=MCPScenario.make(f"task {at}", plan), reward=reward, metrics={"success": 0.2 * reward})
            for at in range(7)
        ]
        made.measurements[stage] = Measurement(stage, Evaluation(runs, int(reward), solved))
    made.steps.append({"step": 1, "version": 1, "reward": 0.5, "skipped": None})
    result = json.loads(json.dumps(result_of(made, "x", 3, 61.24)))
    assert result["before"] == {"values": 0.0, "phrasings": None, "combinations": None, "headline": 0.0}
    assert (result["after"]["headline"], result["prompted"], result["after_sft"]) == (1.0, None, None)
    assert result["n"] == {"before": {"values": 7}, "after": {"values": 7}}
    assert (result["server"], result["seed"], result["seconds"], result["steps"]) == ("x", 3, 61.2, [0.5])
    assert result["gain"]["significant"]
    assert result["gain"]["p"] == 2 / 128
    assert result["gain_on_all_sets"] == result["gain"]


def test_the_scenarios_that_are_shown_are_of_all_kinds() -> None:
    kinds: list[Kind] = ["single"] * 60 + ["pair"] * 20 + ["chain"] * 2
    steps = [Step(tool="look")]
    scenarios = [MCPScenario.make(f"{at}", Plan(reference=steps, kind=kind)) for at, kind in enumerate(kinds)]
    shown = [one.plan.kind for one in sample(scenarios, 0)]
    assert len(shown) == SHOWN
    assert {kind: shown.count(kind) for kind in set(shown)} == {"single": 4, "pair": 4, "chain": 2}
    assert sample(scenarios, 0) == sample(scenarios, 0) != sample(scenarios, 1)


def test_a_scenario_is_a_row_of_a_table() -> None:
    plan = Plan(reference=[Step(tool="look"), Step(tool="look")], split="values", kind="pair", answer="a | b\nc")
    row = as_markdown(MCPScenario.make("What is\nthere?", plan))
    assert row == "| pair | values | What is there? | look, look | a \\| b c |"


def test_a_tool_is_covered_if_a_scenario_with_a_result_calls_it() -> None:
    scenarios = [
        MCPScenario.make("one", Plan(reference=[Step(tool="look"), Step(tool="look")])),
        MCPScenario.make("two", Plan(reference=[Step(tool="look")])),
        MCPScenario.make("three", Plan(reference=[Step(tool="write")], reply="refusal")),
        MCPScenario.make("four", Plan(reply="talk")),
    ]
    coverage = Coverage.of(["look", "write", "erase"], scenarios, 12.34)
    assert coverage.uses == {"look": 2, "write": 0, "erase": 0}
    assert coverage.summary() == {"tools": 3, "covered": 1, "scenarios": 4, "seconds": 12.3}
    assert str(coverage).splitlines()[1:] == [
        "write  not covered",
        "erase  not covered",
        "1 of 3 tools, 4 scenarios, 12.3 s",
    ]
    assert Coverage.of(["look"], [], 1.0).summary() == {"tools": 1, "covered": 0, "scenarios": 0, "seconds": 1.0}
