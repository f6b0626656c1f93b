"""All examples on one server, with stand-ins for the examples and the server."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from art_examples.runner import OWN_SERVER, example_commands, main

from trainer_server.common import Connection
from trainer_server.wire import EngineError

URL = "http://127.0.0.1:9"
(OWN,) = OWN_SERVER
PROGRAM = """
import json, sys
from pathlib import Path
name, rates, words = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
with Path("calls.jsonl").open("a") as calls:
    print(json.dumps([name, words]), file=calls)
if not rates:
    sys.exit("an error of its own")
measured = [{"success": rate, "interval": [0.0, 1.0]} for rate in rates]
stages = {"before": measured[0], "warm": None, "after": measured[1], "rewards": [0.5]}
print("a line of progress")
print(json.dumps({"example": name, "runs": [{"task": f"{name} task", **stages}]}))
"""
Run = Callable[..., list[tuple[str, list[str]]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs stand-ins, and returns the name and the words of each call, with those of the server between them."""
    monkeypatch.chdir(tmp_path)
    calls = tmp_path / "calls.jsonl"

    def note(name: str) -> None:
        with calls.open("a") as file:
            print(json.dumps([name, []]), file=file)

    @contextmanager
    def server() -> Iterator[Connection]:
        note("server starts")
        yield Connection(URL, "a-key")
        note("server ends")

    def examples(rates: dict[str, list[float]], words: Sequence[str] = (), status: str | None = None) -> list[object]:
        commands = {name: [sys.executable, "-c", PROGRAM, name, json.dumps(each)] for name, each in rates.items()}
        if status is None:
            main(words, commands, server)
        else:
            with pytest.raises(SystemExit, match=status):
                main(words, commands, server)
        return [tuple(json.loads(line)) for line in calls.read_text().splitlines()]

    return examples  # type: ignore[return-value]


def test_examples_run_in_turn_on_one_server_and_what_needs_its_own_runs_after_it(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = run({"b": [0.0, 0.25], OWN: [0.5, 0.75], "a": [0.125, 1.0]}, ["--steps", "2"])
    shared = ["--connect", URL, "--steps", "2", "--json"]
    between = [("server starts", []), ("b", shared), ("a", shared), ("server ends", [])]
    assert calls == [*between, (OWN, ["--steps", "2", "--json"])]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines[:3]] == [
        ["b", "0.000", "→", "0.250"],
        ["a", "0.125", "→", "1.000"],
        [OWN, "0.500", "→", "0.750"],
    ]
    assert [line.endswith(" s") for line in lines[:4]] == [True, True, True, False]
    table = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert [row[:4] for row in table] == [
        ["b", "b task", "0.000 (0.000 - 1.000)", "0.250 (0.000 - 1.000)"],
        ["a", "a task", "0.125 (0.000 - 1.000)", "1.000 (0.000 - 1.000)"],
        [OWN, f"{OWN} task", "0.500 (0.000 - 1.000)", "0.750 (0.000 - 1.000)"],
        ["all", "", "", ""],
    ]


def test_after_a_failure_the_others_run_and_the_exit_status_is_1(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    calls = run({"a": [], "b": [0.0, 0.5], "c": []}, status="2 of 3 examples failed: a, c")
    assert [name for name, _ in calls] == ["server starts", "a", "b", "c", "server ends"]
    printed = capsys.readouterr()
    assert printed.err.count("an error of its own") == 2
    assert "runs/examples/a/output.txt" in printed.err
    assert [line.split()[1:4] for line in printed.out.splitlines() if line.startswith(("a ", "c "))] == [
        ["exit", "status", "1"],
        ["exit", "status", "1"],
    ]
    assert Path("runs/examples/a/output.txt").read_text() == "an error of its own\n"


@pytest.mark.parametrize("words", [["--model", "some/model"], ["--model=some/model"], ["--connect", URL]])
def test_no_server_is_shared_where_a_model_or_a_server_is_named(run: Run, words: list[str]) -> None:
    assert run({"a": [0.0, 0.5], OWN: [0.0, 0.5]}, words) == [("a", [*words, "--json"]), (OWN, [*words, "--json"])]


def test_one_example_may_be_named(run: Run) -> None:
    calls = run({"a": [0.0, 0.5], OWN: [0.0, 0.5]}, ["--example", OWN])
    assert calls == [(OWN, ["--json"])]  # and no server starts for nothing


def test_a_server_that_does_not_start_is_an_error_of_the_command(tmp_path: Path) -> None:
    @contextmanager
    def server() -> Iterator[Connection]:
        raise EngineError("the trainer server ended while starting")
        yield

    with pytest.raises(SystemExit, match="python -m art_examples: the trainer server ended while starting"):
        main([], {"a": ["false"]}, server)


def test_the_commands_are_those_of_all_examples() -> None:
    commands = example_commands()
    assert {*OWN_SERVER, "plain_openai", "sql_agent"} <= set(commands)
    assert "learning" not in commands
    assert commands["sql_agent"] == [sys.executable, "-m", "art_examples.sql_agent"]
