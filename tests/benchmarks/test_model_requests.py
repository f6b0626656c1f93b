"""Requests of a base model as a set of foreign wordings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from art_mcp import MCPScenario, ScenarioSet
from art_mcp.scenarios.plan import Plan, Reading, Step
from benchmarks import model_requests
from benchmarks.model_requests import requests_of
from tests.support.mcp.base_model import CHAIN, price
from trainer_server.wire import ConfigError


def test_only_whole_requests_of_the_model_are_taken() -> None:
    step = Step(tool="get_clock")
    clock = Plan(reference=[step], readings=[Reading(step=0, path=["shown"])], phrasing="org/base fragment")
    gone = Plan(
        kind="impossible", reply="refusal", reference=[step], about=["x"], answer="There is no x.", phrasing="b hint"
    )
    history = [("before", "said")]
    scenarios = [
        price(7),
        CHAIN.with_plan(phrasing="org/base turn"),
        MCPScenario.make("clock now", clock),
        MCPScenario.make("and now?", clock, history),
        MCPScenario.make("wonder about x", gone),
        MCPScenario.make("Thanks!", Plan(kind="talk", reply="talk", phrasing="org/base chat")),
    ]
    entries = {entry["task"]: entry for entry in requests_of(scenarios, 15)}
    assert set(entries) == {CHAIN.task, "clock now", "wonder about x"}
    assert entries["clock now"] == {
        "task": "clock now",
        "calls": [{"tool": "get_clock", "arguments": {}}],
        "asks": [{"call": 0, "path": ["shown"]}],
    }
    assert entries["wonder about x"]["reply"] == "refusal"
    assert entries[CHAIN.task]["facts"] == ["20"]
    assert entries[CHAIN.task]["calls"][1]["arguments"] == {"item_id": {"$step": 0, "path": [0, "item_id"]}}
    assert len(requests_of(scenarios, 2)) == 2


def test_a_file_is_written_and_a_set_without_such_requests_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ScenarioSet([price(7).with_plan(phrasing="org/base chat")]).save(tmp_path / "set.jsonl")
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "set.jsonl"), str(tmp_path / "shop.model.jsonl")])
    model_requests.main()
    (line,) = (tmp_path / "shop.model.jsonl").read_text().splitlines()
    assert json.loads(line)["task"] == price(7).task
    ScenarioSet([price(7)]).save(tmp_path / "set.jsonl")
    with pytest.raises(ConfigError, match="no request that a model wrote"):
        model_requests.main()
