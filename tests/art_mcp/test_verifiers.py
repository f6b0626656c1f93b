"""The modules of docs/moving/verifiers-environments.md with the real verifiers, in an environment of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from art_langgraph import Trajectory
from testbed.environments import environment
from tests.support.client_environments import ROOT
from tests.support.pages.blocks import DOCS, blocks_of
from tests.support.servers.trainer_server import TOKEN, TrainerServer

pytestmark = pytest.mark.servers

SMALL = (("steps=10, groups_per_step=2, n=8", "steps=1, groups_per_step=1, n=2"), (', ("Rome", "2750000")):', ",):"))
LOOK_UP = 'call people_population {"city": "Oslo"}'


FAILURES = """
# failures.py
import asyncio
import json
import verifiers.v1 as vf
import train_cities
from art_langgraph import gather
from art_mcp.verifiers import serve_environment
from trainer_server.wire import ConfigError


class Task(vf.Task[vf.TaskData]):
    @vf.reward
    async def right(self, trace) -> float:
        return {"two": 0.5}[trace.last_reply]


class Endless(vf.Taskset[Task]):
    INFINITE = True

    def load(self):
        yield Task(vf.TaskData(prompt="say one"))
        while True:
            yield Task(vf.TaskData(prompt="say two"))


__all__ = ["Endless"]


async def main():
    agent = {"harness": {"id": "train_cities"}, "runtime": {"type": "subprocess"}}
    one = {"taskset": {"id": "failures"}, "agent": agent}
    several = {"id": "best-of-n", "n": 2, "taskset": {"id": "failures"}, "agent": agent}
    runs = []
    for config in (one, several):
        async with serve_environment(config, limit=2, policy="agent") as environment:
            groups = await gather(environment.agent, environment.scenarios, n=1, progress=False)
            runs += [group.trajectories[0] for group in groups]
    print(json.dumps([[run.reward, run.metrics, run.error] for run in runs]))
    async with serve_environment(one):
        pass


if __name__ == "__main__":
    try:
        asyncio.run(train_cities.main())
        asyncio.run(main())
    except ConfigError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def binaries() -> Path:
    return environment("verifiers", "verifiers==0.4.0", overlay=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the modules of the page."""
    for block in blocks_of(DOCS / "moving" / "verifiers-environments.md"):
        if name := re.match(r"# (\w+\.py)\n", block.text):
            text = block.text
            for there, here in SMALL:
                text = text.replace(there, here)
            (tmp_path / name[1]).write_text(text)
    return tmp_path


def execute(folder: Path, server: TrainerServer, *command: str) -> str:
    """What a program writes, with the modules of the folder, this project and the server's address."""
    paths = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "ART_BASE_URL": server.url, "ART_API_KEY": TOKEN}
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **paths}, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_a_graph_is_trained_on_an_environment_with_a_tool(
    connected: TrainerServer, folder: Path, binaries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two runs of the task share a list of answers: one of them says the right number, whichever is faster. In the
    same process, which takes seconds to import verifiers, episodes that fail get no reward."""
    (folder / "failures.py").write_text(FAILURES)
    answers = {"people live in Oslo": [LOOK_UP, LOOK_UP, "It has 700000.", "I do not know."]}
    monkeypatch.setitem(connected.engine, "scripts", answers)
    with connected.http() as http:
        version = http.get("/api/policies/agent").json()["latest"] + 1
        earlier = {one["id"] for one in http.get("/api/rollouts?limit=1000").json()["rollouts"]}
        shown, line, refusal = execute(folder, connected, str(binaries / "python"), "failures.py").splitlines()[-3:]
        rollouts = http.get("/api/rollouts?limit=1000").json()["rollouts"]
        later = [one["id"] for one in rollouts if one["id"] not in earlier]
        records = [Trajectory.model_validate(http.get(f"/api/rollouts/{one}").json()) for one in later]
    assert f"version {version}" in shown
    runs = [run for run in records if run.scenario.input == "How many people live in Oslo?"]
    assert [run.scenario.metadata["answer"] for run in runs] == ["700000"] * 2
    assert sum(len(run.completions) for run in runs) == 4
    ledger = connected.app.state.server.ledger
    for run in runs:
        rows = ledger.rollout(run.rollout_id)
        assert [row.untrainable for row in rows] == [None] * len(rows)
        assert {tool["function"]["name"] for row in rows for tool in row.request["tools"]} == {"people_population"}
        assert {(call.tool, call.result) for call in run.tool_calls} <= {("people_population", "700000")}
    assert {"It has 700000." in str(run.completions[-1].message) for run in runs} == {True, False}
    failed, whole, *several = json.loads(line)
    assert failed[:2] == [None, {}]
    assert "KeyError" in failed[2]
    assert whole == [0.5, {"right": 0.5}, None]
    assert [run[:2] for run in several] == [[None, {}]] * 2
    assert "a run has one reward" in several[1][2]
    assert refusal == "Endless has no end: say how many tasks there are by limit="


def test_scenarios_are_an_environment_that_verifiers_evaluates(
    connected: TrainerServer, folder: Path, binaries: Path
) -> None:
    lines = [{"id": name, "input": f"say {name}", "metadata": {"answer": "7"}} for name in ("7", "8")]
    (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, lines)))
    address = ("--client.base-url", f"{connected.url}/v1", "--client.api-key-var", "ART_API_KEY")
    options = ("--env.agent.runtime.type", "subprocess", "--no-push", "--no-rich")
    execute(folder, connected, str(binaries / "vf-eval"), "sums", "--model", "agent", *address, *options)
    (traces,) = folder.glob("outputs/*/traces.jsonl")
    episodes: list[dict[str, Any]] = [json.loads(line) for line in traces.read_text().splitlines()]
    scores = {
        trace["task"]["data"]["id"]: trace["rewards"]["exact"]["score"]
        for episode in episodes
        for trace in episode["traces"]
    }
    assert scores == {"7": 1.0, "8": 0.0}
