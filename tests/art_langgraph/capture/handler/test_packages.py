"""Agents of packages that are not among our own test tools, in an environment that has them besides.

`test_they_are_captured_in_an_environment_that_has_them` runs the other tests of this file there.
"""

from __future__ import annotations

import os
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool

from art_langgraph import NodeRewards, Trajectory, TrajectoryGroup, rollout
from art_langgraph.credit import group_refs
from testbed.environments import environment
from tests.support.mcp.commands import ODD
from tests.support.runs.chat_models import MakeModel
from tests.support.servers.trainer_server import TrainerServer

ROOT = Path(__file__).parents[4]
PACKAGES = ("langgraph-supervisor", "langgraph-swarm", "langchain[mcp]")
# These packages cause warnings. A filter that ignores them is lost where another thread leaves
# `warnings.catch_warnings` while pytest sets its filters, so there warnings are no errors.
WITHOUT_FILTERS = ("-p", "no:warnings", "-o", "addopts=")


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is in an environment of its own")


@tool
def double(value: int) -> str:
    """Double a number."""
    return str(2 * value)


def places(run: Trajectory) -> list[tuple[str, bool]]:
    assert run.error is None, run.error
    return [("/".join(call.path), call.trainable) for call in run.completions]


@needs("langgraph_supervisor")
async def test_langgraph_supervisor(make: MakeModel, connected: TrainerServer) -> None:
    from langgraph_supervisor import create_supervisor

    workers = [create_agent(make(), [double], name=name) for name in ("math", "writer")]
    team = create_supervisor(workers, model=make(), supervisor_name="boss").compile(name="team")
    connected.engine["answers"][:] = [
        "call transfer_to_math {}", 'call double {"value": 4}', "eight", "call transfer_to_writer {}", "written", "end",
    ]  # fmt: skip
    run = await rollout(team, "go", lambda _: NodeRewards({"boss/agent": 0.5, "math": 1.0, "writer/model": 0.25}))
    boss = "boss/agent"
    assert places(run) == [
        (boss, True), ("math/model", True), ("math/model", True), (boss, True), ("writer/model", True), (boss, True),
    ]  # fmt: skip
    assert [(one.tool, one.path[0]) for one in run.tool_calls if one.tool == "double"] == [("double", "math")]
    assert {one.tool for one in run.tool_calls} == {"transfer_to_math", "double", "transfer_to_writer"}
    assert not any(one.is_error for one in run.tool_calls)
    group = TrajectoryGroup(scenario=run.scenario, trajectories=[run])
    found = {
        ref.scenario_id.partition("/")[2]: (len(ref.trajectories[0].completions), ref.trajectories[0].reward)
        for ref in group_refs([group])
    }
    assert found == {"boss/agent": (3, 0.5), "math": (2, 1.0), "writer/model": (1, 0.25)}


@needs("langgraph_swarm")
async def test_langgraph_swarm(make: MakeModel, connected: TrainerServer) -> None:
    from langgraph_swarm import create_handoff_tool, create_swarm

    alice = create_agent(make(), [double, create_handoff_tool(agent_name="bob")], name="alice")
    bob = create_agent(make(), [create_handoff_tool(agent_name="alice")], name="bob")
    swarm = create_swarm([alice, bob], default_active_agent="alice").compile(name="swarm")
    connected.engine["answers"][:] = ['call double {"value": 4}', "call transfer_to_bob {}", "hello from bob"]
    run = await rollout(swarm, "go")
    assert places(run) == [("alice/model", True), ("alice/model", True), ("bob/model", True)]
    assert [(one.tool, one.is_error) for one in run.tool_calls] == [("double", False), ("transfer_to_bob", False)]
    assert all(node.error is None for node in run.nodes)
    (ref,) = group_refs([TrajectoryGroup(scenario=run.scenario, trajectories=[run])], nodes=["bob"])
    assert len(ref.trajectories[0].completions) == 1
    assert run.final_text == "hello from bob"


@needs("fastmcp")
@pytest.mark.filterwarnings("ignore:.*is in beta")
@pytest.mark.parametrize("given", ["transport", "client"])
async def test_mcp_adapter_of_langchain(make: MakeModel, given: str) -> None:
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport
    from langchain.mcp import MCPAdapter

    transport = StdioTransport(ODD[0], ODD[1:])
    target: Any = transport if given == "transport" else Client(transport)
    async with MCPAdapter(target) as adapter:
        agent = create_agent(make(), await adapter.list_tools())
        run = await rollout(agent, 'calls [["echo", {"text": "a"}], ["nothing", {}], ["picture", {}]]')
        assert run.error is None
        calls = {one.tool: one for one in run.tool_calls}
        echo = calls["echo"]
        assert (echo.server, echo.server_version, echo.tool_call_id) == ("odd", "0.9", "call-echo")
        assert (echo.result, echo.structured, echo.is_error) == ("a", {"echo": "a"}, False)
        assert (echo.node, echo.path) == ("tools", ["tools"])
        assert calls["nothing"].is_error, "the model called a tool that the server does not have"
        assert calls["picture"].server == "odd"
        assert len(run.tool_calls) == 3

        stopped = await rollout(agent, "call stop {}")
        (stop,) = stopped.tool_calls
        assert (stop.server, stop.is_error) == ("odd", True)


@pytest.mark.servers
def test_they_are_captured_in_an_environment_that_has_them() -> None:
    python = environment("agent-packages", *PACKAGES, overlay=True) / "python"
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *WITHOUT_FILTERS, "-m", "not servers", __file__],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
    assert re.search(r"\d+ passed", done.stdout)
    assert "skipped" not in done.stdout
