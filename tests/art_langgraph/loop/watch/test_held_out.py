"""Held-out scenarios are never trained on, by whatever they are known."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage

from art_langgraph import HeldOut, Scenario
from trainer_server.wire import ConfigError

TRAINING = [Scenario(id="a", input="2 + 2"), Scenario(input="3 + 3", metadata={"answer": "6"})]


@pytest.mark.parametrize(
    ("scenario", "shared"),
    [
        (Scenario(id="a", input="9 + 9"), True),
        (Scenario(id="b", input="2 + 2"), True),
        (Scenario(id="c", input="3 + 3", metadata={"answer": "6"}), True),
        (Scenario(input="3 + 3", metadata={"answer": "6", "split": "test"}), True),
        ("3 + 3", True),
        (Scenario(input={"messages": [{"role": "user", "content": "3 + 3"}]}), True),
        (Scenario(input={"messages": [("user", "3 + 3")]}, metadata={"answer": "6"}), True),
        (Scenario(input={"messages": [HumanMessage("2 + 2")]}), True),
        (Scenario(input={"messages": [HumanMessage("4 + 4")]}), False),
        ("4 + 4", False),
        (Scenario(id="d", input="4 + 4", metadata={"answer": "6"}), False),
    ],
)
def test_a_scenario_that_is_trained_on_is_refused(scenario: Scenario | str, shared: bool) -> None:
    held = HeldOut.of([scenario, "5 + 5"])
    if not shared:
        assert len(held.resolve_scenarios(TRAINING)) == 2
        return
    with pytest.raises(ConfigError, match="1 of 2 held-out scenarios are trained on too") as error:
        held.resolve_scenarios(TRAINING)
    assert repr(Scenario.of(scenario).id) in str(error.value)


def test_an_input_that_many_tasks_share_tells_none_of_them() -> None:
    games = [Scenario(input="play", metadata={"seed": seed}) for seed in range(6)]
    assert HeldOut(games[4:]).resolve_scenarios(games[:4]) == games[4:]
    with pytest.raises(ConfigError, match="2 of 3"):
        HeldOut(games[2:5]).resolve_scenarios(games[:4])
    assert HeldOut(games[1:]).resolve_scenarios(games[:1]) == games[1:], "the held-out games alone tell it, too"


def test_a_path_is_a_file_of_scenarios(tmp_path: Path) -> None:
    (tmp_path / "held.jsonl").write_text('"4 + 4"\n{"id": "x", "input": "5 + 5"}\n')
    for path in (tmp_path / "held.jsonl", str(tmp_path / "held.jsonl")):
        assert [scenario.input for scenario in HeldOut.of(path).resolve_scenarios(TRAINING)] == ["4 + 4", "5 + 5"]
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        HeldOut("none.jsonl").resolve_scenarios(TRAINING)


def test_many_shared_scenarios_are_counted() -> None:
    tasks = [Scenario(input=f"task {number}") for number in range(9)]
    with pytest.raises(ConfigError, match=r"9 of 9 .* and 4 more"):
        HeldOut(tasks).resolve_scenarios(tasks)


@pytest.mark.parametrize(("held", "message"), [(HeldOut([]), "no scenarios"), (HeldOut(["x"], n=0), "n=0")])
def test_what_measures_nothing_is_refused(held: HeldOut, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        held.resolve_scenarios(TRAINING)
