"""`art-langgraph import SYSTEM FILE`: its output, its files, its help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from art_langgraph import TrajectoryStore
from tests.support.cli import art
from tests.support.runs.foreign_runs import ASKED, CONVERSATION, WEATHER, write
from trainer_server.wire import ConfigError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ART_HOME", str(tmp_path / "home"))
    return tmp_path


def test_an_import_says_what_became_of_the_file(here: Path) -> None:
    write(here / "chats.jsonl", {"messages": CONVERSATION, "tools": [WEATHER]}, "oops", {"messages": ASKED})
    expected = [
        "2 runs read: 2 new, 0 known",
        "scenarios: 1 new, 1 known, in chats.scenarios.jsonl",
        "demonstrations: 1 new, 0 known, in chats.demonstrations.jsonl",
        "rewards: 0 new, 0 known",
    ]
    lines = art("import", "openai-jsonl", "chats.jsonl").output.splitlines()
    assert lines[:4] == expected
    assert [line.partition(";")[0] for line in lines[4:]] == [
        "left out: not JSON (1: line 2)",
        "left out: runs without an answer, which are no demonstrations (1: line 3)",
    ]
    again = art("import", "openai-jsonl", "chats.jsonl").output.splitlines()
    assert again[0] == "2 runs read: 0 new, 2 known"
    assert (again[1].split(",")[0], again[2].split(",")[0]) == ("scenarios: 0 new", "demonstrations: 0 new")
    listed = json.loads(art("trajectories", "list", "--json").output)
    assert {row["question"] for row in listed} == {"Weather in Oslo?"}


def test_a_file_that_is_not_written_is_not_named(here: Path) -> None:
    write(here / "chats.jsonl", {"messages": ASKED})
    lines = art("import", "openai-jsonl", "chats.jsonl").output.splitlines()
    assert "demonstrations: 0 new, 0 known" in lines
    assert "answers are those of model calls" in lines[-1]
    assert not (here / "chats.demonstrations.jsonl").exists()


def test_options(here: Path) -> None:
    write(here / "chats.jsonl", {"messages": CONVERSATION}, {"messages": ASKED})
    words = [
        "import",
        "openai-jsonl",
        "chats.jsonl",
        "--into",
        "other.sqlite",
        "--scenarios",
        "s.jsonl",
        "--demonstrations",
    ]
    numbers = json.loads(art(*words, "d.jsonl", "--limit", "1", "--no-system", "--json").output)
    assert (numbers["read"], numbers["scenarios"], numbers["skipped"]) == (1, {"new": 1, "known": 0}, {})
    assert len(TrajectoryStore(here / "other.sqlite")) == 1
    assert "Use tools." not in (here / "s.jsonl").read_text()
    assert "nothing was written (--dry-run)" in art(*words, "d.jsonl", "--dry-run").output
    assert len((here / "d.jsonl").read_text().splitlines()) == 1


def test_a_file_of_another_system_fails(here: Path) -> None:
    write(here / "chats.jsonl", {"messages": CONVERSATION})
    done = art("import", "langsmith", "chats.jsonl")
    assert done.exit_code == 1
    assert "is it an export of another system (langfuse, otel, openai-jsonl)?" in done.output
    missing = art("import", "langsmith", "none.jsonl").exception
    assert isinstance(missing, ConfigError)
    assert "`art-langgraph import langsmith --help` says how to export one" in str(missing)


@pytest.mark.parametrize(
    ("system", "where"),
    [
        ("langsmith", "list_runs"),
        ("langfuse", "observations_v2"),
        ("otel", "CAPTURE_MESSAGE_CONTENT"),
        ("openai-jsonl", "batch_output"),
    ],
)
def test_help_says_where_the_export_is_found(here: Path, system: str, where: str) -> None:
    assert where in art("import", system, "--help").output


def test_the_help_has_code_that_can_be_copied() -> None:
    said = art("import", "langsmith", "--help").stdout
    assert '[str(client.read_project(project_name="my-project").id)]' in said
