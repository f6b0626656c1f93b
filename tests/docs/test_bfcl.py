"""The modules of docs/moving/bfcl.md with the real bfcl-eval, in an environment of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from testbed.environments import environment
from tests.support.client_environments import ROOT
from tests.support.pages.blocks import DOCS, blocks_of
from tests.support.servers.trainer_server import TOKEN, TrainerServer

pytestmark = pytest.mark.servers

ANSWERS = [
    'call ls {"a": true}',
    "These are all.",
    'call cd {"folder": "workspace"}',
    'call mv {"source": "log.txt", "destination": "archive"}',
    "Done.",
]
"""The right ones to the first two requests of the second task. A run that comes later says "done" to both."""

PROGRAM = """
import asyncio
import json
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
from langchain_core.messages import convert_to_messages
from art_langgraph import TrainerClient, Trajectory, gather
from bfcl import demonstration, graph, reward, scenarios
import train_bfcl


def score(scenario):
    messages = convert_to_messages(demonstration(scenario)["messages"])
    return reward(Trajectory(scenario=scenario, output={"messages": messages}))


async def main():
    print(json.dumps([score(scenario) for scenario in scenarios()]))
    async with TrainerClient() as trainer:
        task = list(scenarios(turns=2))[1]
        groups = await gather(graph, [task], n=2, reward=reward, max_concurrency=1, progress=False)
        runs = groups[0].trajectories
        result = await trainer.train_step("agent", groups)
        print(json.dumps([[run.reward, run.error, len(run.messages)] for run in runs]), result.version)
    print([name for name in vars(multi_turn_utils) if name.startswith("tr_")])
    names = [{task.metadata["id"] for task in tasks} for tasks in (train_bfcl.TRAINED, train_bfcl.HELD_OUT)]
    print([len(each) for each in names], names[0] & names[1])


asyncio.run(main())
"""


def test_a_graph_is_trained_by_the_checker_of_bfcl(
    connected: TrainerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right calls of all tasks, as demonstrations, have the reward 1; and of two runs the first makes them."""
    for block in blocks_of(DOCS / "moving" / "bfcl.md"):
        if name := re.match(r"# (\w+\.py)\n", block.text):
            (tmp_path / name[1]).write_text(block.text)
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setitem(connected.engine, "scripts", {"I am alex. Check if": ANSWERS})
    with connected.http() as http:
        version = http.get("/api/policies/agent").json()["latest"] + 1
    paths = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "ART_BASE_URL": connected.url, "ART_API_KEY": TOKEN}
    done = subprocess.run(
        [environment("bfcl", "--no-deps", "bfcl-eval==2026.3.23", overlay=True) / "python", "program.py"],
        cwd=tmp_path, env={**os.environ, **paths}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    scores, runs, left, split = done.stdout.splitlines()[-4:]
    assert json.loads(scores) == [1.0] * 200
    assert runs == f"[[1.0, null, 10], [0.0, null, 4]] {version}"
    assert left == "[]"
    assert split == "[43, 22] set()"
