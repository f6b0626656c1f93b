"""Scenarios in files and from past runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from art_langgraph import ARTError, Scenario, Trajectory, TrajectoryStore, load_scenarios, save_scenarios
from art_langgraph.datasets import stored_scenarios


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    scenarios = [Scenario(id="a", input={"q": "ö"}, metadata={"k": 1}), Scenario(input="x")]
    save_scenarios(tmp_path / "s.jsonl", scenarios)
    assert load_scenarios(tmp_path / "s.jsonl") == scenarios


def test_langsmith_exports_plain_inputs_and_strings(tmp_path: Path) -> None:
    lines = [{"id": "1", "inputs": {"q": 1}, "outputs": {"a": 2}, "metadata": {"m": 3}}, {"q": 4}, "hello"]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    first, second, third = load_scenarios(tmp_path / "s.jsonl")
    assert (first.id, first.input, first.metadata) == ("1", {"q": 1}, {"m": 3, "outputs": {"a": 2}})
    assert second.input == {"q": 4}
    assert third == Scenario(input="hello")


def test_a_line_needs_no_id(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text(
        '{"input": "two", "metadata": {"answer": "2"}}\n{"id": 7, "input": {"input": "x"}}\n'
    )
    first, second = load_scenarios(tmp_path / "s.jsonl")
    assert first == Scenario(input="two", metadata={"answer": "2"})
    assert (second.id, second.input) == ("7", {"input": "x"})


def test_a_trajectory_of_langsmith_is_no_task(tmp_path: Path) -> None:
    line = {"inputs": {"messages": []}, "metadata": {"trajectory_format": "messages"}}
    (tmp_path / "s.jsonl").write_text(json.dumps(line))
    with pytest.raises(ARTError, match="`art-langgraph import langsmith` makes scenarios of it"):
        load_scenarios(tmp_path / "s.jsonl")


@pytest.mark.parametrize("name", ["input", "inputs"])
def test_an_id_of_0_is_an_id(tmp_path: Path, name: str) -> None:
    (tmp_path / "s.jsonl").write_text(json.dumps({"id": 0, name: "x"}))
    assert [one.id for one in load_scenarios(tmp_path / "s.jsonl")] == ["0"]


def test_two_tasks_do_not_share_an_id(tmp_path: Path) -> None:
    lines = [{"id": "a", "input": "x"}, {"id": "a", "input": "x"}, {"id": "a", "input": "y"}]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(ARTError, match="line 3 is no scenario: an earlier scenario with another input has the id 'a'"):
        load_scenarios(tmp_path / "s.jsonl")


@pytest.mark.parametrize(
    ("line", "key", "meant"),
    [
        ({"input": "x", "metadat": {"answer": "1"}}, "metadat", "metadata"),
        ({"inputt": "x", "metadata": {}}, "inputt", "input"),
        ({"id": 1, "input": "x", "meta_data": {}}, "meta_data", "metadata"),
    ],
)
def test_a_misspelt_key_does_not_make_the_line_an_input(
    tmp_path: Path, line: dict[str, object], key: str, meant: str
) -> None:
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, ["fine", line])))
    with pytest.raises(ARTError, match=f"line 2 is no scenario: its key '{key}' looks like '{meant}', misspelt"):
        load_scenarios(tmp_path / "s.jsonl")


def test_other_keys_are_an_input_of_the_graph(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [{"input": "x", "chat_history": []}, {"question": "x"}, {"messages": []}]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert [one.input for one in load_scenarios(tmp_path / "s.jsonl")] == lines


@pytest.mark.parametrize("given", ["train.jsonl", Path("train.jsonl"), {"input": "x"}, Scenario(input="x")])
def test_a_single_task_or_a_file_is_no_list_of_scenarios(given: object) -> None:
    with pytest.raises(ARTError, match=r"is no list: give a list of tasks, .* load_scenarios\(path\) reads a file"):
        Scenario.each(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("line", ["{", "3", "[1]"])
def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "s.jsonl").write_text('"fine"\n' + line + "\n")
    with pytest.raises(ARTError, match="line 2"):
        load_scenarios(tmp_path / "s.jsonl")


def test_scenarios_of_past_runs_come_once(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    for one in ("a", "b", "a"):
        store.add(Trajectory(scenario=Scenario(id=one, input=one)))
    assert sorted(one.id for one in stored_scenarios(store)) == ["a", "b"]
