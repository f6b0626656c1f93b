"""Rollouts as tasks of a real Ray cluster of two machines, one of which dies."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from art_langgraph import RayExecutor, Trajectory, TrajectoryStore, gather, rollout
from benchmarks.stress.books import rows_of
from testbed.link import Namespace
from testbed.server_process import KEY
from tests.support.patience import PATIENCE
from tests.support.ray.cluster import CPUS, kill_machine, ray_cluster
from tests.support.servers.machines import line, server_at
from trainer_server.common import Home
from trainer_server.wire import CompletionStatus, ConfigError


async def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'art-langgraph\[ray\]'"):
        await gather(lambda: None, ["x"], 1, executor=RayExecutor(), progress=False)


async def test_an_unknown_executor_is_refused() -> None:
    with pytest.raises(ConfigError, match="executor='dask' is unknown"):
        await rollout(lambda: None, "x", executor="dask")  # type: ignore[arg-type]


@dataclass
class Story:
    """What the program on the cluster said, by stage, and what was left when it had ended."""

    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: list[Any] = field(default_factory=list)
    """Complete rows of the ledger."""
    stored: list[str] = field(default_factory=list)
    """Ids of the runs in the program's store."""
    traces: list[int] = field(default_factory=list)
    """Statuses of the server's answers about these runs."""
    code: int = 0
    log: str = ""
    tasks: list[str] = field(default_factory=list)
    """Ray tasks that ran on when the program had been interrupted."""


def began_on(place: Path) -> set[str]:
    """The nodes on which runs of a stage wait."""
    return {path.name.partition(".ro-")[0] for path in place.iterdir()} if place.exists() else set()


def until(holds: Any, program: subprocess.Popen[str], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert program.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.05)


def tasks_of(machine: Namespace) -> list[str]:
    """Ray tasks that run on a machine. Ray names a worker process by what it does."""
    found = []
    for pid in machine.processes():
        try:
            found.append(" ".join(psutil.Process(pid).cmdline()))
        except psutil.NoSuchProcess:
            continue
    return [name for name in found if name.startswith("ray::_work")]


@pytest.fixture(scope="module")
def story(base_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    directory = tmp_path_factory.mktemp("ray")
    place, home, log = directory / "place", Home(directory / "home"), directory / "driver.log"
    place.mkdir()
    told = Story()
    with (
        line(delay=0.002, loss=0.0) as link,
        ray_cluster(link) as cluster,
        server_at(link.near, link.near_host, home.root, base_model, seen_from=link.near) as server,
    ):
        environment = {
            **cluster.environment, "ART_BASE_URL": server.url, "ART_API_KEY": KEY, "ART_HOME": str(directory / "mine"),
        }  # fmt: skip
        store = directory / "runs.sqlite"
        program = subprocess.Popen(
            [*link.near.prefix, cluster.python, "-m", "tests.support.ray.driver", place, store],
            env=environment, stdout=subprocess.PIPE, stderr=log.open("w"), text=True,
        )  # fmt: skip
        assert program.stdout is not None
        for text in program.stdout:
            found = json.loads(text)
            told.said[found.pop("stage")] = found
            if "cancelled" in told.said and "lost" not in told.said:
                until(lambda: len(began_on(place / "lost")) == 2, program, log)
                kill_machine(link, link.far)
                (place / "go").touch()
            if "lost" in told.said:
                until(lambda: began_on(place / "interrupted"), program, log)
                program.send_signal(signal.SIGINT)
        told.code = program.wait(PATIENCE)
        told.log = log.read_text()
        deadline = time.monotonic() + PATIENCE
        while (left := tasks_of(link.near)) and time.monotonic() < deadline:
            time.sleep(0.05)
        told.tasks = left
        runs = TrajectoryStore(store).list()
        told.stored = [run.id for run in runs]
        headers = {"Authorization": f"Bearer {KEY}"}
        told.traces = link.near.run(
            lambda: [
                httpx.get(f"{server.url}/api/rollouts/{run.rollout_id}/trace", headers=headers).status_code
                for run in runs
            ]
        )
        told.rows = [row for row in rows_of(home.ledger) if row.status == CompletionStatus.complete]
    assert told.said.keys() == {"connected", "whole", "failures", "agent", "cancelled", "lost"}, told.log[-4000:]
    return told


@pytest.mark.slow
def test_a_rollout_on_ray_is_the_rollout_that_runs_here(story: Story) -> None:
    whole = story.said["whole"]
    runs, local = whole["runs"], whole["local"]
    assert len(runs) == 8
    assert {run["metadata"].pop("node") for run in runs} == {"198.18.0.1", "198.18.0.2"}, "both nodes ran some"
    local["metadata"].pop("node")
    own = {
        "id",
        "rollout_id",
        "run_id",
        "thread_id",
        "started",
        "seconds",
        "completions",
        "nodes",
        "output",
        "scenario",
    }
    for run in runs:
        assert {name: value for name, value in run.items() if name not in own} == {
            name: value for name, value in local.items() if name not in own
        }
        assert [call["path"] for call in run["completions"]] == [call["path"] for call in local["completions"]]
        assert [node["path"] for node in run["nodes"]] == [node["path"] for node in local["nodes"]]
        given, *answers = [message.text for message in Trajectory.model_validate(run).messages]
        assert (given, answers) == (run["scenario"]["input"], ["first", "second"])
    assert local["reward"] == 3.0
    assert local["metadata"] == {"mine": 1}
    assert whole["scored"] == [*whole["scored"][:8], local["id"]], "the reward function ran in the caller's process"


@pytest.mark.slow
def test_the_ledger_has_the_exact_tokens_of_every_call(story: Story) -> None:
    rows = {row.id: row for row in story.rows}
    for run in story.said["whole"]["runs"]:
        for call, text in zip(run["completions"], ("first", "second"), strict=True):
            row = rows[call["id"]]
            assert (row.rollout, row.version) == (run["rollout_id"], 0)
            assert (row.sampling.temperature, "".join(map(chr, row.token_ids[: len(text)]))) == (0.5, text)


@pytest.mark.slow
def test_a_graph_that_raises_there_is_a_failed_run_with_the_same_words(story: Story) -> None:
    failures = story.said["failures"]
    assert failures["remote"] == failures["local"] == "RuntimeError: the tool is broken"
    assert failures["calls"] == 1


@pytest.mark.slow
def test_a_run_whose_worker_dies_every_time_is_a_failed_run(story: Story) -> None:
    failures = story.said["failures"]
    assert failures["dead"].startswith("WorkerLost: the Ray workers of 1 attempts were lost: WorkerCrashedError")
    assert failures["lost"] == len(failures["dead_metadata"].pop("lost_rollouts")) == 1
    assert failures["dead_metadata"] == {"mine": 2}


@pytest.mark.slow
def test_an_output_that_cannot_be_sent_comes_as_plain_data(story: Story) -> None:
    assert story.said["failures"]["held"] == "kept"


@pytest.mark.slow
def test_what_cannot_be_sent_is_refused_with_the_remedy(story: Story) -> None:
    errors = story.said["failures"]["errors"]
    for name in ("graph", "closure"):
        assert "the compiled graph 'LangGraph' works in the process that made it only" in errors[name], name
    assert "cannot pickle" in errors["model"]
    for name in ("graph", "closure", "model"):
        assert "Give a factory instead, a function of a module" in errors[name], name
    assert errors["factory"] == "the graph factory broken raised: KeyError: 'no such tool'"


@pytest.mark.slow
def test_a_function_of_the_main_program_may_be_the_agent(story: Story) -> None:
    agent = story.said["agent"]
    assert (agent["output"], agent["reward"], agent["error"]) == ("hello", 0.25, None)
    (call,) = agent["calls"]
    assert call in {row.id for row in story.rows}


@pytest.mark.slow
def test_a_cancelled_gather_ends_its_tasks_and_begins_no_more(story: Story) -> None:
    cancelled = story.said["cancelled"]
    assert cancelled["was"]
    assert cancelled["free"] == cancelled["total"] == 2 * CPUS
    assert cancelled["began"] == 2 * CPUS, "the others waited for a processor"
    assert cancelled["seconds"] < 5.0, "the runs ended themselves: none was killed"


@pytest.mark.slow
def test_runs_of_a_node_that_dies_run_again_elsewhere_and_none_is_lost_or_doubled(story: Story) -> None:
    lost = story.said["lost"]
    runs = lost["runs"]
    assert len(runs) == 8
    assert [run["error"] for run in runs] == [None] * 8
    assert {run["metadata"]["node"] for run in runs} == {"198.18.0.1"}
    gone = [one for run in runs for one in run["metadata"].get("lost_rollouts", [])]
    assert len(gone) == lost["lost"] >= 1
    for one in gone:
        assert f"the rollout {one} was lost with its Ray worker, and is run again" in story.log
    rollouts, calls = (
        Counter(run["rollout_id"] for run in runs),
        Counter(call["id"] for run in runs for call in run["completions"]),
    )
    assert set(rollouts.values()) == {1}
    assert rollouts.keys().isdisjoint(gone)
    assert (len(calls), set(calls.values())) == (16, {1})
    assert calls.keys() <= {row.id for row in story.rows}
    before = [row for row in story.rows if row.rollout in gone]
    assert before, "the lost rollouts had asked the policy, under ids of their own"


@pytest.mark.slow
def test_the_caller_stores_and_reports_each_run_once(story: Story) -> None:
    runs = [*story.said["whole"]["runs"], *story.said["lost"]["runs"]]
    assert sorted(story.stored) == sorted(run["id"] for run in runs)
    assert story.traces == [200] * 16


@pytest.mark.slow
def test_an_interrupted_program_leaves_no_task_behind(story: Story) -> None:
    assert story.code != 0
    assert "KeyboardInterrupt" in story.log
    assert story.tasks == []
