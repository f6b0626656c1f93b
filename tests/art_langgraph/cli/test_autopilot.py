"""`art-langgraph autopilot`: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from art_langgraph import TrainerClient, TrajectoryStore
from art_langgraph.auto_pilot.state import Phase, State
from art_langgraph.auto_pilot.state_store import StateStore
from tests.support.cli import art
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.wire import ConfigError


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--once", "--stop"), "exclude one another"),
        (("--canary", "ten"), "no share of the rollouts"),
        (("--gate", "missing.jsonl"), "missing.jsonl"),
        (("--graph-object", "nothing"), "expected module:attribute"),
        (("--alpha", "2"), "alpha is between 0 and 1"),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: tuple[str, ...], error: str, connected: TrainerServer, tmp_path: Path
) -> None:
    done = art("autopilot", "--policy", "agent", "--store", str(tmp_path / "runs.sqlite"), *words)
    assert isinstance(done.exception, ConfigError)
    assert error in str(done.exception)


async def test_it_does_once_what_can_be_done_and_tells_its_history(connected: TrainerServer, tmp_path: Path) -> None:
    async with TrainerClient() as client:
        await client.create_policy("told")
    words = ("autopilot", "--policy", "told", "--store", str(tmp_path / "runs.sqlite"))
    assert "phase: None" in art(*words, "--status").stdout
    assert "told started: told@0 was its newest version, and is promoted" in art(*words, "--once").stdout
    assert art(*words, "--once").stdout == "", "there is nothing to do yet"
    (entry,) = map(json.loads, art(*words, "--log", "--json").stdout.splitlines())
    assert (entry["event"], entry["numbers"]["champion"]) == ("started", 0)
    assert json.loads(art(*words, "--status", "--json").stdout)["phase"] == "collecting"
    assert "there is no candidate" in art(*words, "--stop").stdout


@pytest.mark.parametrize(("phase", "said"), [("training", "a step is under way"), ("deciding", "is decided")])
def test_stop_says_why_there_is_no_candidate_to_roll_back(
    phase: Phase, said: str, connected: TrainerServer, tmp_path: Path
) -> None:
    path = tmp_path / "runs.sqlite"
    StateStore(TrajectoryStore(path), "agent").write(State(policy="agent", created=1.0, phase=phase))
    assert said in art("autopilot", "--policy", "agent", "--store", str(path), "--stop").stdout


def test_the_help_says_how_it_works() -> None:
    said = " ".join(art("autopilot", "--help").stdout.replace("│", " ").split())
    for words in ("Improve a policy beside production", "--canary", "--train-every", "--resume", "stays"):
        assert words in said
