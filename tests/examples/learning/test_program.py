"""The command of an example, from its words to the metrics file and the picture."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from art_examples.learning import program
from art_examples.learning.learn import Learned, learn
from art_examples.learning.program import main, run_learners
from art_examples.learning.runs import Run, newest
from art_examples.learning.task import Task
from art_examples.tic_tac_toe.task import tic_tac_toe

from art_langgraph import Evaluation, Scenario, TrainerClient, Trajectory
from art_langgraph.loop.evaluate import Success
from tests.support.runs.tasks import answers
from tests.support.servers.judge_app import endpoint
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.common import Connection


@asynccontextmanager
async def few(seed: int) -> AsyncIterator[Task]:
    async with tic_tac_toe(seed) as task:
        recipe = replace(task.recipe, groups_per_step=2, n=4)
        yield replace(task, demonstrations=task.demonstrations[:4], recipe=recipe)


@pytest.mark.slow
def test_a_run_is_measured_recorded_and_drawn(
    connected: TrainerServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "an_example"
    short = ["--connect", "--seeds", "1", "--steps", "2", "--held-out", "4", "--demonstrations", "2"]
    words = [*short, "--against", "openai/some-model", "--json", "--note", "a short run", "--out", str(folder)]
    with endpoint("5") as fake, answers(connected, list("123456789")):
        monkeypatch.setenv("OPENAI_API_BASE", fake.url)
        monkeypatch.setenv("OPENAI_API_KEY", "a-key")
        main("An example.", {"tic_tac_toe": few}, folder, words)
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed["example"] == "an_example"
    (row,) = printed["runs"]
    assert row["fingerprint"].endswith(", demonstrations: 2")
    assert (row["task"], row["seed"], row["steps"], row["note"]) == ("tic_tac_toe", 0, 2, "a short run")
    assert [counts["drawn"] for counts in row["groups"]] == [2, 2]
    assert row["seconds"] > 0
    assert "core" in row["machine"]
    for measured in (row["before"], row["prompted"], row["warm"], row["after"], row["models"]["openai/some-model"]):
        low, high = measured["interval"]
        assert 0 <= low <= measured["success"] <= high <= 1
        assert measured["n"] == 4
    assert newest(folder / "results.jsonl") == {("tic_tac_toe", 0): row}
    assert "seed 0" in (folder / "curve.svg").read_text()


def test_the_newest_run_of_a_seed_counts(tmp_path: Path) -> None:
    rows = [{"task": "a", "seed": seed, "at": at} for at, seed in enumerate((0, 1, 0))]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [row["at"] for row in newest(tmp_path / "results.jsonl").values()] == [2, 1]
    assert newest(tmp_path / "none.jsonl") == {}


def test_runs_of_other_recipes_or_of_other_length_are_not_in_one_table(tmp_path: Path) -> None:
    """A row without a fingerprint is of an unknown recipe, or of a whole run that has none."""
    made = [("a", 0, None), ("a", 1, "whole"), ("a", 0, "whole"), ("b", 0, "whole"), ("b", 1, "short"), ("c", 0, None)]
    rows = [{"task": task, "seed": seed, **({"fingerprint": mark} if mark else {})} for task, seed, mark in made]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(newest(tmp_path / "results.jsonl")) == [("a", 0), ("a", 1), ("b", 1), ("c", 0)]


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ([], "an_example"),
        (["--steps", "2"], "runs/examples/an_example"),
        (["--held-out", "1"], "runs/examples/an_example"),
        (["--minutes", "0.1"], "runs/examples/an_example"),
        (["--steps", "2", "--out", "elsewhere"], "elsewhere"),
    ],
)
def test_short_runs_are_not_written_beside_whole_ones(
    words: list[str], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_BASE_URL", "http://127.0.0.1:9")  # nobody is asked
    monkeypatch.setenv("ART_API_KEY", "a-key")
    monkeypatch.chdir(tmp_path)

    async def learner(run: Run) -> Learned:
        measured = Evaluation([Trajectory(scenario=Scenario(input="?"), reward=1.0)])
        return Learned("a", run.seed, before=measured, after=measured, rewards=[0.5])

    run_learners("An example.", {"a": learner}, tmp_path / "an_example", ["--connect", "--seeds", "1", *words])
    assert {path.parent.relative_to(tmp_path) for path in tmp_path.rglob("*.*")} == {Path(place)}
    (row,) = newest(tmp_path / place / "results.jsonl").values()
    assert (row["fingerprint"] is None) == (words == [])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--task", "chess"], "invalid choice: 'chess'"),
        (["--seeds", "0"], "'0' is not a whole number of at least 1"),
        (["--steps", "-3"], "'-3' is not a whole number of at least 1"),
        (["--minutes", "0"], "'0' is not a number of minutes above 0"),
        (["--minutes", "nan"], "'nan' is not a number of minutes above 0"),
        (["--minutes", "1", "--steps", "2"], "not allowed with argument"),
        (["--demonstrations", "0"], "'0' is not a whole number of at least 1"),
        (["--connect", "--model", "Qwen/Qwen3-1.7B"], "with --connect, the server's own model is trained"),
    ],
)
def test_what_cannot_be_run_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit):
        main("An example.", {"tic_tac_toe": few}, tmp_path, words)
    assert said in capsys.readouterr().err


def test_a_base_model_is_that_of_the_server_that_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    starts: list[tuple[str, ...]] = []

    @contextmanager
    def server(*arguments: str) -> Iterator[Connection]:
        starts.append(arguments)
        yield Connection("http://127.0.0.1:9", "a-key")

    monkeypatch.setattr(program, "own_server", server)
    monkeypatch.chdir(tmp_path)
    runs: list[Run] = []

    async def learner(run: Run) -> Learned:
        runs.append(run)
        measured = Evaluation([Trajectory(scenario=Scenario(input="?"), reward=1.0)])
        return Learned("a", run.seed, before=measured, after=measured, rewards=[0.5])

    run_learners("An example.", {"a": learner}, tmp_path / "b", ["--model", "Qwen/Qwen3-1.7B", "--minutes", "10"])
    run_learners("An example.", {"a": learner}, tmp_path / "b", ["--seeds", "1"])
    monkeypatch.setenv("ART_API_KEY", "of-that-server")
    run_learners("An example.", {"a": learner}, tmp_path / "b", ["--seeds", "1", "--connect", "http://127.0.0.1:10"])
    assert starts == [("--model", "Qwen/Qwen3-1.7B"), ("--model", "embedded")]
    options = [(run.options.model, run.options.minutes) for run in runs]
    assert options == [("Qwen/Qwen3-1.7B", 10), ("embedded", None), (None, None)]
    assert runs[-1].client.connection == Connection("http://127.0.0.1:10", "of-that-server")
    (row,) = newest(tmp_path / "runs/examples/b/results.jsonl").values()
    assert (row["model"], row["fingerprint"]) == ("Qwen/Qwen3-1.7B", "steps: None, minutes: 10.0, held out: None")


def test_without_a_server_to_connect_to_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    monkeypatch.delenv("ART_BASE_URL", raising=False)
    monkeypatch.delenv("ART_API_KEY", raising=False)
    with pytest.raises(SystemExit, match="ART_API_KEY is not set"):
        main("An example.", {"tic_tac_toe": few}, tmp_path, ["--connect"])


@pytest.mark.slow
async def test_another_model_trains_for_minutes_and_without_a_warm_start_where_it_is_able(
    connected: TrainerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def shown(run: Trajectory) -> bool:
        return len(connected.engine["requests"][-1]["messages"]) > 2

    cases: dict[str, tuple[Success, bool]] = {
        "warm": (lambda run: True, True),
        "able": (lambda run: True, False),
        "shown": (shown, False),
    }
    async with few(0) as task, TrainerClient() as client:
        for name, (success, always_warm) in cases.items():
            with answers(connected, list("123456789")):
                learned = await learn(
                    replace(task.short(held_out=4), success=success),
                    0,
                    client,
                    f"minutes-{name}",
                    said.append,
                    prompted=name == "shown",
                    minutes=0.001,
                    always_warm=always_warm,
                )
            assert (learned.warm is not None) == always_warm
            assert learned.shots == (task.shots if name == "shown" else 0)
            assert len(learned.rewards) == 1, "the step that reaches the limit is the last"
            assert learned.after is not None
            assert learned.after.success_rate == 1.0
    able = [line for line in said if line.startswith("no warm start: the untrained policy solves")]
    assert ["with demonstrations in its prompts" in line for line in able] == [False, True]
