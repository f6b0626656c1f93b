"""The picture that README begins with shows a run whose figures are kept, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from art_examples.quickstart import picture
from art_examples.quickstart.run_directory import evaluation_file

from art_langgraph import Evaluation, Scenario, Trajectory
from art_langgraph.trajectory import CompletionCall, ToolCall
from trainer_server.wire import ConfigError

SVG = "{http://www.w3.org/2000/svg}"
KEPT: dict[str, Any] = json.loads(picture.KEPT.read_text())


def texts() -> set[str]:
    drawn = ElementTree.fromstring(picture.PICTURE.read_text())
    return {element.text or "" for element in drawn.iter(f"{SVG}text")}


def test_the_picture_is_what_the_kept_run_gives() -> None:
    assert picture.PICTURE.read_text() == picture.draw(KEPT), "run `python -m art_examples.quickstart.picture`"


def test_the_picture_has_the_figures_and_the_calls_of_the_run() -> None:
    shown = texts()
    assert {f"{KEPT[when]['success']:.3f}" for when in ("before", "after")} <= shown
    assert {f"{run['call']} → {run['result']}" for run in KEPT["runs"]} <= shown
    assert {run["answer"] for run in KEPT["runs"]} | {KEPT["question"]} <= shown


def test_the_run_learned_and_its_question_was_answered_wrong_and_then_right() -> None:
    assert [row["step"] for row in KEPT["steps"]] == list(range(1, 11))
    assert KEPT["before"]["interval"][1] < KEPT["after"]["interval"][0]
    wrong, right = KEPT["runs"]
    assert KEPT["wanted"] not in wrong["answer"]
    assert KEPT["wanted"] in right["answer"]


def run_of(city: str, value: str, text: str, *, calls: bool = True) -> Trajectory:
    wanted = {"tool": "get_bus_fare", "arguments": {"city": "Oslo"}, "value": "7 euros"}
    call = ToolCall(started=0, tool="get_bus_fare", arguments={"city": city}, result=value, server="cities")
    said = CompletionCall(id="one", started=0, node="model", message={"role": "assistant", "content": text})
    scenario = Scenario(input={"messages": [["user", f"A bus in Oslo? {text}"]]}, metadata=wanted)
    return Trajectory(scenario=scenario, tool_calls=[call] if calls else [], completions=[said], reward=1.0)


def test_what_is_kept_of_a_run(tmp_path: Path) -> None:
    right = run_of("Oslo", "7 euros", "It costs 7 euros.")
    silent, wrong = run_of("", "", "No idea.", calls=False), run_of("Rome", "9 euros", "It costs 9 euros.")
    rows = [{"step": step, "version": step, "reward": 1 / 3, "success": None} for step in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.json").write_text('{"seed": 7}')
    Evaluation([right, silent, wrong], version=0).save(evaluation_file(tmp_path, 0))
    Evaluation([right, right, right], version=2).save(evaluation_file(tmp_path, 2))
    kept = picture.kept(tmp_path)
    assert (kept["seed"], kept["steps"][1]) == (7, {"step": 2, "reward": 0.3333, "success": None})
    assert [kept[when]["success"] for when in ("before", "after")] == [0.3333, 1.0]
    assert kept["question"] == "A bus in Oslo? It costs 9 euros.", "of those that improved, one that called a tool"
    assert kept["runs"] == [
        {"call": 'get_bus_fare("Rome")', "result": "9 euros", "answer": "It costs 9 euros."},
        {"call": 'get_bus_fare("Oslo")', "result": "7 euros", "answer": "It costs 7 euros."},
    ]
    ElementTree.fromstring(picture.draw(kept))


def test_a_run_that_has_not_ended_has_no_picture(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.jsonl"):
        picture.kept(tmp_path)
