"""`art-langgraph evaluate`: success, and what several runs of a scenario tell."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.cli import art
from tests.support.servers.trainer_server import TrainerServer

AGENT = """
from itertools import count
from langgraph.graph import START, MessagesState, StateGraph
from art_langgraph import ChatART

numbers = count()

async def node(state):
    return {"messages": [await ChatART(policy="agent", max_tokens=9).ainvoke(state["messages"])]}

graph = StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()

def reward(trajectory):
    return float("always" in str(trajectory.scenario.input) or next(numbers) % 4 == 0)
"""


def test_several_runs_of_each_scenario(
    connected: TrainerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "measured_agent.py").write_text(AGENT)
    (tmp_path / "held.jsonl").write_text('"solve it always"\n"solve it at times"\n')
    words = [
        "evaluate", "--scenarios", str(tmp_path / "held.jsonl"), "--graph-object", "measured_agent:graph",
        "--reward", "measured_agent:reward", "--version", "0",
    ]  # fmt: skip
    try:
        facts = json.loads(art(*words, "--n", "4", "--json").stdout)
        shown = art(*words, "--n", "4").output
        once = json.loads(art(*words, "--json").stdout)
    finally:
        sys.modules.pop("measured_agent", None)
    assert (facts["n"], facts["scenarios"], facts["success"], facts["version"]) == (8, 2, 0.625, 0)
    assert facts["repeats"]["pass_at"] == {"1": 0.625, "2": 0.75, "4": 1.0}
    assert facts["repeats"]["variance"]["within"] == pytest.approx(0.125)
    assert sorted(row["successes"] for row in facts["by_scenario"]) == [1, 4]
    assert "repeats" not in once
    assert "success 0.625" in shown
    assert "one of k succeeds (pass@k)" in shown
    assert "scenarios solved always: 1, sometimes: 1, never: 0" in shown
    assert "variance within scenarios (chance): 0.125, between them (difficulty): 0.250" in shown
