"""`train --scenarios`: the loop from the command line, with a line for each step that says held-out success."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from art_langgraph import TrainerClient
from art_langgraph.loop.executors.base import RolloutResult
from art_langgraph.loop.executors.local import LocalExecutor
from tests.support.cli import art
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.wire import ConfigError

AGENT = """
from itertools import count
from langgraph.graph import START, MessagesState, StateGraph
from art_langgraph import ChatART

numbers = count()

def graph(scenario):
    async def node(state):
        return {"messages": [await ChatART(policy="cli-loop", max_tokens=9).ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()

def reward(trajectory):
    if trajectory.evaluation:
        return float(trajectory.completions[0].version > 0)
    return float(next(numbers) % 2)
"""


async def test_the_loop_prints_held_out_success_and_promotes_the_best(
    connected: TrainerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "watched_agent.py").write_text(AGENT)
    (tmp_path / "train.jsonl").write_text('"one"\n"two"\n')
    (tmp_path / "held.jsonl").write_text("".join(f'"question {at}"\n' for at in range(8)))
    words = [
        "train", "--policy", "cli-loop", "--scenarios", str(tmp_path / "train.jsonl"),
        "--graph-object", "watched_agent:graph", "--reward", "watched_agent:reward", "--groups-per-step", "1",
        "--n", "2", "--steps", "9", "--held-out", str(tmp_path / "held.jsonl"), "--evaluate-every", "1",
        "--stop-at", "0.5", "--keep-best", "--run", "mine", "--metrics", str(tmp_path / "metrics.jsonl"),
    ]  # fmt: skip
    try:
        done = art(*words)
        again = art(*words)
    finally:
        sys.modules.pop("watched_agent", None)
    lines = done.output.splitlines()
    assert lines[0].startswith("before: success 0.000")
    assert "held-out success 1.000 (0.676 to 1.000), 0.000 before" in lines[1]
    assert "stopped: held-out success 1.000 (0.676 to 1.000) has reached 0.5" in lines[1]
    assert lines[2].startswith("best version cli-loop@1: held-out success 1.000")
    assert lines[2].endswith("promoted: 'cli-loop' is cli-loop@1")
    assert lines[3].startswith("cost: ")
    assert len(lines) == 4
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["evaluation"]["success"], row["best"]["version"]) for row in rows] == [(1, 1.0, 1)] * 2
    assert again.output.splitlines()[0] == lines[0], "the same command continues the run"
    async with TrainerClient() as client:
        policy = await client.policy("cli-loop")
    assert (policy.latest, policy.promoted) == (1, 1)
    assert "cli-loop is cli-loop@0, cli-loop@latest is cli-loop@1" in art("promote", "cli-loop@0").output
    assert "cli-loop is cli-loop@1, as long as none is newer" in art("promote", "cli-loop", "--undo").output
    listed = {row["policy"]: row for row in json.loads(art("policies", "--json").output)}
    assert listed["cli-loop"]["promoted"] is None


async def test_the_loop_runs_graphs_where_executor_says(
    connected: TrainerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    class Counting(LocalExecutor):
        async def run(self, *args: Any, **options: Any) -> RolloutResult:
            runs.append(args)
            return await super().run(*args, **options)

    monkeypatch.setenv("ART_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("art_langgraph.loop.rollout._create_executor", {"processes": Counting()}.__getitem__)
    (tmp_path / "placed_agent.py").write_text(AGENT)
    (tmp_path / "train.jsonl").write_text('"one"\n')
    try:
        art(
            "train", "--policy", "cli-loop", "--scenarios", str(tmp_path / "train.jsonl"), "--graph-object",
            "placed_agent:graph", "--reward", "placed_agent:reward", "--groups-per-step", "1", "--n", "2",
            "--steps", "1", "--executor", "processes",
        )  # fmt: skip
    finally:
        sys.modules.pop("placed_agent", None)
    assert len(runs) == 2


async def test_the_loop_ends_with_what_taught_nothing(
    connected: TrainerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    hint = "def hint(scenario, failed):\n    return f'{len(failed)} runs failed'\n"
    never = "def reward(trajectory):\n    return float('one' in str(trajectory.scenario.input) and next(numbers) % 2)\n"
    (tmp_path / "dead_agent.py").write_text(
        AGENT[: AGENT.index("def reward")].replace("cli-loop", "cli-dead") + hint + never
    )
    (tmp_path / "train.jsonl").write_text('"one"\n"two"\n')
    try:
        done = art(
            "train", "--policy", "cli-dead", "--scenarios", str(tmp_path / "train.jsonl"), "--graph-object",
            "dead_agent:graph", "--reward", "dead_agent:reward", "--groups-per-step", "2", "--n", "2", "--steps", "1",
            "--sampler", "learnable", "--explore", "2", "--tracker", "jsonl",
            "--hints", "dead_agent:hint", "--distill", "base",
        )  # fmt: skip
    finally:
        sys.modules.pop("dead_agent", None)
    assert "1 of 2 groups informative, 2 runs to explore" in done.output
    assert "hints: 1 scenarios failed, 1 hinted, 0 rescued (0 of 1 runs)" in done.output
    assert "1 of 2 groups taught nothing; 1 of 2 scenarios never taught anything:\n- 1 × all runs failed" in done.output
    assert "What to do: " in done.output
    cost, rows = done.output.splitlines()[-2:]
    assert cost.startswith("cost: ")
    assert "GPU-hours unknown" in cost
    (file,) = (tmp_path / "progress").iterdir()
    assert rows == f"rows of the steps: {file}"
    assert json.loads(file.read_text())["cost"]["runs"] == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from-store", "--explore", "8"], "--explore cannot be used without --scenarios"),
        (["--from-store", "--executor", "ray"], "--executor cannot be used without --scenarios"),
        (["--from-store", "--hints", "a:b"], "--hints cannot be used without --scenarios"),
        (["--from-store", "--distill", "b@x"], "--distill: teacher='b@x' is no teacher"),
        (["--from-store", "--tracker", "wandb"], "--tracker cannot be used without --scenarios"),
        (["--from-store", "--keep-best"], "--keep-best cannot be used without --scenarios"),
        (["--scenarios", "x.jsonl", "--from-store"], "say where the runs come from"),
        (["--scenarios", "x.jsonl", "--since", "1d", "--again"], "--again, --since cannot be combined"),
        (["--scenarios", "x.jsonl"], "--scenarios needs --graph-object"),
        (["--scenarios", "x.jsonl", "--graph-object", "a:b"], "--scenarios needs --reward"),
        (["promote", "agent"], "write POLICY@N to promote a version, or POLICY --undo"),
        (["promote", "agent@1", "--undo"], "write POLICY@N to promote a version, or POLICY --undo"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    if words[0] != "promote":
        words = ["train", "--policy", "agent", *words]
    error = art(*words).exception
    assert isinstance(error, ConfigError)
    assert message in str(error)
