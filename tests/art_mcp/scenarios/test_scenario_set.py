"""Sets of scenarios: saved, edited, loaded, split."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from art_langgraph import load_scenarios
from art_mcp import MCPScenario, ScenarioSet
from art_mcp.scenarios.plan import Plan, Step
from art_mcp.scenarios.scenario_set import DroppedTask
from art_mcp.scenarios.split import combination, values_of
from trainer_server.wire import ConfigError


def scenario(number: int, *tools: str, **plan: object) -> MCPScenario:
    steps = [Step(tool=tool, arguments={"n": number}) for tool in tools]
    return MCPScenario.make(f"Task {number} with {tools}", Plan.model_validate({"reference": steps, **plan}))


def many() -> ScenarioSet:
    kinds = [("a",), ("b",), ("a", "b"), ("c",), ("a", "c"), ("b", "c")]
    forms = [f"ask {at}" for at in range(12)]
    found = [scenario(i, *kinds[i % 6], phrasing=forms[(i // 6) % 12]) for i in range(72)]
    return ScenarioSet(found, offered=["a", "b", "c", "d"])


def test_a_set_survives_the_disk_and_its_lines_are_plain_scenarios(tmp_path: Path) -> None:
    given = many().split(seed=1)
    given.dropped = [DroppedTask(task="x", tools=["a"], kind="error", reason="why")]
    given.save(tmp_path / "set.jsonl")
    assert ScenarioSet.load(tmp_path / "set.jsonl") == given
    assert [one.id for one in load_scenarios(tmp_path / "set.jsonl")] == [one.id for one in given.scenarios]
    assert "dropped: 1, error: 1\n" in given.report()
    assert "error: why (1 ×)" in given.report()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda line: line[:-5], "line 2"),
        (lambda line: line.replace('"difficulty": 1', '"difficulty": 9'), "line 2 .*: the plan .* difficulty"),
        (lambda line: line.replace('"reference"', '"refrence"'), "line 2 .*: the plan .*"),
        (lambda line: json.dumps({"input": "x"}), "line 2 .*: .* has no plan"),
        (lambda line: line.replace('"split": "train"', '"split": "validation"'), "line 2 .*: the plan .* split"),
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


def test_no_split_moves_foreign_requests() -> None:
    whole = many()
    asked = [one.with_plan(split="foreign") for one in whole.scenarios[:3]]
    for share in (0.25, 0.0):
        divided = ScenarioSet([*whole.scenarios[3:], *asked]).split(share, seed=4)
        assert divided.held_out_sets["foreign"] == asked
        assert len(divided) == len(whole)


def test_three_sets_are_held_out_and_training_has_nothing_of_them() -> None:
    divided = many().split(0.25, seed=4)
    assert list(divided.held_out_sets) == ["values", "phrasings", "combinations"]
    assert divided.held_out == [one for listed in divided.held_out_sets.values() for one in listed]
    assert {one.id for one in divided.train} == {one.id for one in divided.scenarios} - {
        one.id for one in divided.held_out
    }
    trained = {combination(one) for one in divided.train}
    held = {combination(one) for one in divided.held_out_sets["combinations"]}
    assert not held & trained
    assert {(tool,) for tools in held for tool in tools} <= trained
    assert not {one.plan.phrasing for one in divided.held_out_sets["phrasings"]} & {
        one.plan.phrasing for one in divided.train
    }
    values = set().union(*(values_of(one.plan.reference) for one in divided.train))
    assert all(not values_of(one.plan.reference) <= values for one in divided.held_out_sets["values"])
    assert divided == many().split(0.25, seed=4)
    assert any(many().split(0.25, seed=seed) != divided for seed in range(5))


def test_a_set_that_cannot_be_made_is_named_with_the_reason() -> None:
    divided = ScenarioSet([scenario(i, "a") for i in range(24)]).split(0.25)
    assert list(divided.held_out_sets) == ["values"]
    assert [note.partition(":")[0] for note in divided.notes] == ["no held-out phrasings", "no held-out combinations"]
    same = ScenarioSet([scenario(1, "a") for _ in range(24)]).split(0.25)
    assert same.held_out == []
    assert len(same.notes) == 3
    assert ScenarioSet([scenario(1, "a")]).split().held_out == []
    assert divided.split(0.0).held_out == []


def test_sets_of_people_can_have_any_split(tmp_path: Path) -> None:
    given = ScenarioSet([scenario(1, "a", split="values"), scenario(2, "a", split="train")])
    given.save(tmp_path / "own.jsonl")
    assert [len(listed) for listed in ScenarioSet.load(tmp_path / "own.jsonl").held_out_sets.values()] == [1]


def test_what_is_always_or_never_solved_is_not_learnable() -> None:
    rates = [0.0, 0.25, 1.0, None]
    found = ScenarioSet([scenario(i, "a", measured=rate) for i, rate in enumerate(rates)]).keep_learnable()
    assert [one.plan.measured for one in found.scenarios] == [0.25, None]
    assert [one.reason for one in found.dropped] == [
        "the policy solves it in 0% of its rollouts",
        "the policy solves it in 100% of its rollouts",
    ]


def test_coverage_counts_every_tool_on_offer() -> None:
    assert many().coverage == {"a": 36, "b": 36, "c": 36, "d": 0}


def test_a_follow_up_on_a_held_out_task_is_held_out_too() -> None:
    tasks = many().scenarios
    plan = Plan(reference=[Step(tool="c", arguments={"n": 7})], kind="follow_up")
    asked = [MCPScenario.make(f"And then {at}?", plan, [(one.task, "It is 3.")]) for at, one in enumerate(tasks)]
    divided = ScenarioSet([*tasks, *asked]).split(0.25, seed=4)
    first = {one.task: one.plan.split for one in divided.scenarios if len(one.messages) == 1}
    assert {first[one.messages[0]["content"]] for one in divided.train} == {"train"}
    assert any(len(one.messages) > 1 for one in divided.held_out)
