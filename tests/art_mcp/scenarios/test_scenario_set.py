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
    assert "dropped: 1, error: 1\n" in given.report()
    assert "\nerror: why (1 ×)\n" in given.report()


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


@pytest.mark.parametrize("text", ["", '{"notes": []}\n', '{"offered": [], "notes": []}\n{"task": "x"}\n'])
def test_a_damaged_file_of_dropped_tasks_is_named(tmp_path: Path, text: str) -> None:
    many().save(tmp_path / "set.jsonl")
    (tmp_path / "set.dropped.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=r"set\.dropped\.jsonl is not what `save` wrote"):
        ScenarioSet.load(tmp_path / "set.jsonl")


def worded() -> ScenarioSet:
    """Three tools, alone and in pairs, in twelve forms, with 47 values."""
    kinds = [("a",), ("b",), ("c",), ("a", "b"), ("a", "c"), ("b", "c")]
    return ScenarioSet([scenario(i % 47, *kinds[i % 6], phrasing=f"form {i // 6 % 12}") for i in range(240)])


def test_held_out_values_forms_and_combinations_do_not_occur_in_training() -> None:
    divided = worded().split(0.3, seed=4)
    held = divided.held_out
    assert list(held) == ["values", "phrasings", "combinations"]
    assert sum(map(len, held.values())) == len(divided.validation)
    trained = {combination(one) for one in divided.train}
    assert not {combination(one) for one in held["combinations"]} & trained
    assert {tool for one in held["combinations"] for tool in one.tools} <= {
        tools[0] for tools in trained if not tools[1:]
    }
    assert not {one.plan.phrasing for one in held["phrasings"]} & {one.plan.phrasing for one in divided.train}
    values = {step.arguments["n"] for one in divided.train for step in one.plan.reference}
    assert all(step.arguments["n"] not in values for one in held["values"] for step in one.plan.reference)
    assert 0.15 <= len(divided.validation) / len(divided) <= 0.45
    assert divided == worded().split(0.3, seed=4)
    assert any(worded().split(0.3, seed=seed) != divided for seed in range(5))


def test_a_set_that_cannot_be_held_out_is_missing_and_the_notes_say_why() -> None:
    divided = ScenarioSet([scenario(i, "a") for i in range(12)]).split(0.25)
    assert list(divided.held_out) == ["values"]
    assert [note.partition(":")[0] for note in divided.notes] == [
        "no held-out phrasings",
        "no held-out combinations",
    ]
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
