"""Sets of scenarios: saved, edited, loaded, split."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from art_langgraph import load_scenarios
from art_mcp import MCPScenario, ScenarioSet
from art_mcp.scenarios.plan import Plan, Step
from art_mcp.scenarios.scenario_set import Dropped, combination
from trainer_server.wire import ConfigError


def scenario(number: int, *tools: str, **plan: object) -> MCPScenario:
    steps = [Step(tool=tool, arguments={"n": number}) for tool in tools]
    return MCPScenario.make(f"Task {number} with {tools}", Plan.model_validate({"reference": steps, **plan}))


def many() -> ScenarioSet:
    kinds = [("a",), ("b",), ("a", "b"), ("c",), ("a", "c"), ("b", "c")]
    return ScenarioSet([scenario(i, *kinds[i % 6]) for i in range(36)], offered=["a", "b", "c", "d"])


def test_a_set_survives_the_disk_and_its_lines_are_plain_scenarios(tmp_path: Path) -> None:
    given = many().split(seed=1)
    given.dropped = [Dropped(task="x", tools=["a"], kind="error", reason="why")]
    given.save(tmp_path / "set.jsonl")
    assert ScenarioSet.load(tmp_path / "set.jsonl") == given
    assert [one.id for one in load_scenarios(tmp_path / "set.jsonl")] == [one.id for one in given.scenarios]
    assert "dropped: 1, error: 1\nerror: why (1 ×)" in given.report()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda line: line[:-5], "line 2"),
        (lambda line: line.replace('"difficulty": 1', '"difficulty": 9'), "line 2 .*: the plan .* difficulty"),
        (lambda line: line.replace('"reference"', '"refrence"'), "line 2 .*: the plan .*ref"),
        (lambda line: json.dumps({"input": "x"}), "line 2 .*: .* has no plan"),
    ],
)
def test_an_edit_gone_wrong_is_named_by_its_line(tmp_path: Path, change: object, reason: str) -> None:
    path = tmp_path / "set.jsonl"
    many().save(path)
    lines = path.read_text().splitlines()
    lines[1] = change(lines[1])  # type: ignore[operator]
    path.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=reason):
        ScenarioSet.load(path)


def test_whole_combinations_are_held_out_whose_tools_are_all_trained() -> None:
    divided = many().split(0.25, seed=4)
    trained = {combination(one) for one in divided.train}
    held = {combination(one) for one in divided.validation}
    assert held
    assert not held & trained
    assert {tool for one in held for tool in one} <= {tool for one in trained for tool in one}
    assert 0.15 <= len(divided.validation) / len(divided) <= 0.4
    assert divided == many().split(0.25, seed=4)
    assert any(many().split(0.25, seed=seed) != divided for seed in range(5))
    assert [note for note in divided.notes if note.startswith("held out by tool combination")]


@pytest.mark.parametrize("seed", range(4))
def test_a_tool_that_is_trained_in_one_company_alone_is_split_by_arguments(seed: int) -> None:
    kinds = [("first",), ("second",), ("first", "second")]
    divided = ScenarioSet([scenario(i, *kinds[i % 3]) for i in range(36)]).split(0.25, seed)
    assert len(divided.validation) == 9
    assert {combination(one) for one in divided.train} == set(kinds)
    assert any("held out by arguments" in note for note in divided.notes)


def test_one_combination_is_split_by_arguments_and_the_set_says_so() -> None:
    divided = ScenarioSet([scenario(i, "a") for i in range(12)]).split(0.25)
    assert (len(divided.train), len(divided.validation)) == (9, 3)
    assert divided.notes[0].startswith("held out by arguments")
    assert ScenarioSet([scenario(1, "a")]).split().validation == []


def test_what_is_always_or_never_solved_is_not_learnable() -> None:
    rates = [0.0, 0.25, 1.0, None]
    found = ScenarioSet([scenario(i, "a", measured=rate) for i, rate in enumerate(rates)]).keep_learnable()
    assert [one.plan.measured for one in found.scenarios] == [0.25, None]
    assert [one.reason for one in found.dropped] == [
        "the policy solves it in 0% of its rollouts",
        "the policy solves it in 100% of its rollouts",
    ]


def test_coverage_counts_every_tool_on_offer() -> None:
    assert many().coverage == {"a": 18, "b": 18, "c": 18, "d": 0}
