"""The modules of docs/moving/openenv.md with the real openenv, in an environment of its own, on small environments."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

from testbed.environments import environment
from tests.support.client_environments import ROOT
from tests.support.pages.blocks import DOCS, blocks_of
from tests.support.servers.trainer_server import TOKEN, TrainerServer

pytestmark = pytest.mark.servers

PACKAGES = (
    "openenv==0.10.0", "fastmcp-slim==4.2.3", "py-key-value-aio==0.4.6", "authlib==1.9.10", "joserfc==1.8.0",
    "cachetools==8.0.2", "beartype==0.23.1", "exceptiongroup==1.3.2",
)  # fmt: skip
"""openenv, and what it imports of fastmcp, for the tests' version of mcp."""

MODELS = """
from openenv.core.env_server.types import Action, Observation


class ReasoningGymAction(Action):
    answer: str


class ReasoningGymObservation(Observation):
    question: str | None = None
"""

PRODUCTS = """
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State
from reasoning_gym_env.models import ReasoningGymObservation


class ReasoningGymEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    state = State()

    def reset(self, seed=None, dataset_name=None, dataset_config=None, size=None, **options):
        assert (dataset_name, dataset_config["max_terms"], size) == ("products", 2, 1)
        self.seed = seed
        return ReasoningGymObservation(question=f"say {seed}", reward=0.0)

    def step(self, action, **options):
        return ReasoningGymObservation(reward=float(action.answer == str(self.seed)), done=True)
"""

PROGRAM = """
import asyncio
import json
import runpy
import socket
import threading
import time
import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation, ListToolsAction
from openenv.core.env_server.mcp_types import ListToolsObservation, Tool, ToolError
from openenv.core.env_server.types import Observation, State
from art_langgraph import Scenario, gather
import products
import tools

NAMES = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Boxes(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    state = State()

    def reset(self, first=None, **options):
        return Observation(reward=first, metadata={"question": "open the box"})

    def step(self, action, **options):
        if isinstance(action, ListToolsAction):
            return ListToolsObservation(tools=[Tool(name="open", description="Opens a box.", input_schema=NAMES)])
        if action.arguments["name"] == "locked":
            error = ToolError(error_type="execution_error", message="it is locked")
            return CallToolObservation(tool_name="open", error=error)
        if action.arguments["name"] == "last":
            return Observation(reward=0.5, done=True)
        return CallToolObservation(tool_name="open", result={"data": "a key"}, reward=0.25)


def serve_boxes():
    uvicorn.run(create_app(Boxes, CallToolAction, CallToolObservation, max_concurrent_envs=2), port=PORT_OF_TOOLS)


async def main():
    numbers = await gather(products.agent, products.SCENARIOS[:2], n=2, progress=False)
    boxes = [Scenario(input={"first": 0.125}), Scenario(input={"first": None})]
    opened = await gather(tools.agent, boxes, n=1, max_concurrency=1, progress=False)
    for groups in (numbers, opened):
        print(json.dumps([[run.reward, run.error] for group in groups for run in group.trajectories]))
    print(json.dumps([[call.result for call in group.trajectories[0].tool_calls] for group in opened]))


for serve in (lambda: runpy.run_path("server.py"), serve_boxes):
    threading.Thread(target=serve, daemon=True).start()
for port in (PORT_OF_DATA, PORT_OF_TOOLS):
    while socket.socket().connect_ex(("127.0.0.1", port)):
        time.sleep(0.05)
asyncio.run(main())
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_runs_are_sessions_of_environments_and_have_their_rewards(
    connected: TrainerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data alone: a session for each run. Tools: what they answer, the sum of all rewards, none after the end, and no
    reward where no step had one."""
    ports = {"8000": str(free_port()), "8001": str(free_port())}
    for block in blocks_of(DOCS / "moving" / "openenv.md"):
        if name := re.match(r"# (\w+\.py)\n", block.text):
            text = block.text.replace("run.model", '"agent"')  # the server of the tests has policies of others, too
            (tmp_path / name[1]).write_text(re.sub(r"800[01]", lambda match: ports[match[0]], text))
    (tmp_path / "program.py").write_text(
        PROGRAM.replace("PORT_OF_DATA", ports["8000"]).replace("PORT_OF_TOOLS", ports["8001"])
    )
    (tmp_path / "reasoning_gym_env" / "server").mkdir(parents=True)
    (tmp_path / "reasoning_gym_env" / "models.py").write_text(MODELS)
    (tmp_path / "reasoning_gym_env" / "server" / "reasoning_gym_environment.py").write_text(PRODUCTS)
    calls = [*(f'call open {{"name": "{name}"}}' for name in ("red", "locked", "last", "red")), "Done."]
    monkeypatch.setitem(connected.engine, "scripts", {"open the box": calls})
    paths = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "ART_BASE_URL": connected.url, "ART_API_KEY": TOKEN}
    done = subprocess.run(
        [environment("openenv", "--no-deps", *PACKAGES, overlay=True) / "python", "program.py"],
        cwd=tmp_path, env={**os.environ, **paths}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    numbers, opened, results = map(json.loads, done.stdout.splitlines()[-3:])
    assert numbers == [[1.0, None]] * 4
    assert opened == [[0.875, None], [None, None]]
    assert results == [["a key", "it is locked", "done", "The task is over."], []]
