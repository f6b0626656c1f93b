"""`--json`: every command that prints facts has it, and prints nothing else on the standard output then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from art_langgraph import Scenario, Trajectory, TrajectoryStore
from art_langgraph.cli.main import build
from tests.support.cli import art
from tests.support.servers.trainer_server import TrainerServer

WITHOUT = {
    "engine command",  # prints a line for the shell
    "engine install",
    "quickstart",
    "serve",
}
"""Commands that print no facts."""


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path}{name} ")
        else:
            yield path + name, command


def test_every_command_that_prints_facts_prints_json() -> None:
    found = dict(commands(typer.main.get_command(build())))
    assert len(found) > 30
    lacking = {name for name, command in found.items() if not any("--json" in one.opts for one in command.params)}
    assert lacking == WITHOUT


def test_commands_of_the_store_print_json_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "json_reward.py").write_text("def reward(run):\n    return 0.25\n")
    TrajectoryStore().add(Trajectory(id="tr-1", scenario=Scenario(input="x")))
    file = str(tmp_path / "runs.jsonl")
    other = str(tmp_path / "other.sqlite")
    for words, facts in (
        (["score", "--reward", "json_reward:reward"], {"scored": 1, "failed": 0, "had_a_reward": 0, "waiting": 0}),
        (["feedback", "tr-1", "--score", "1"], {"id": "tr-1", "reward": 1.0}),
        (["trajectories", "export", file], {"file": file, "trajectories": 1}),
        (["trajectories", "import", file, "--store", other], {"added": 1, "known": 0}),
        (["plan", "--model", "Qwen/Qwen3-8B"], {"fits": True, "why_not": None}),
    ):
        told = json.loads(art(*words, "--json").stdout)
        assert facts.items() <= told.items(), words


def test_commands_of_the_server_print_json_alone(connected: TrainerServer) -> None:
    with connected.http() as http:
        http.post("/api/policies", json={"name": "json-cli"})
    for words, facts in (
        (["score-version", "json-cli@0", "0.5"], {"policy": "json-cli", "version": 0, "score": 0.5}),
        (["promote", "json-cli@0"], {"name": "json-cli", "promoted": 0}),
        (["fork", "json-cli@0", "json-fork"], {"name": "json-fork", "latest": 0}),
    ):
        told = json.loads(art(*words, "--json").stdout)
        assert facts.items() <= told.items(), words
