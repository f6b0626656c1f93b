"""What a remote graph does in a rollout is in the rollout's trajectory, or a warning says why not."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import RetryPolicy

from art_langgraph import ChatART, TrainerClient, TrajectoryGroup, TrajectoryStore, gather, rollout
from art_langgraph.capture import uninstall
from art_langgraph.capture.remote import fetch
from art_langgraph.capture.scope import RemoteCall, Scope
from art_langgraph.credit import group_refs
from art_langgraph.loop.pins import PinIgnored
from tests.support.clock import run_limits
from tests.support.homes.versions import holders
from tests.support.patience import PATIENCE, until
from tests.support.servers.langgraph_server import BrokenConnection, Remote
from tests.support.servers.trainer_server import TrainerServer

pytestmark = pytest.mark.slow


@tool
def double(value: int) -> str:
    """Double a number."""
    return str(2 * value)


def model() -> ChatART:
    return ChatART(policy="agent", max_tokens=60)


def asking(*, then: BaseException | None = None, name: str = "ask") -> Any:
    async def ask(state: MessagesState) -> dict[str, Any]:
        answer = await model().ainvoke(state["messages"][-1:])
        if then is not None:
            raise then
        return {"messages": [answer]}

    return StateGraph(MessagesState).add_node(name, ask).add_edge(START, name).compile(name="asking")


async def test_nodes_tools_and_completions_come_home(remote: Remote) -> None:
    remote.graphs["agent"] = create_agent(model(), [double], name="helper")
    run = await rollout(
        remote.graph("agent"), 'call double {"value": 4}', lambda run: float(len(run.tool_calls)), version=0,
        temperature=0.25,
    )  # fmt: skip
    assert run.error is None
    assert [one.path for one in run.completions] == [["helper", "model"]] * 2
    assert [(one.tool, one.arguments, one.result) for one in run.tool_calls] == [("double", {"value": 4}, "8")]
    assert [one.node for one in run.nodes] == ["model", "tools", "model"]
    assert (run.reward, run.versions, run.assistant_id) == (1.0, {"agent": [0]}, "assistant-1")
    assert run.final_text == run.completions[-1].message["content"]  # type: ignore[index]
    async with TrainerClient() as trainer:
        rows = [await trainer.completion(one) for one in run.completion_ids]
    assert [(row.rollout, row.version, row.sampling.temperature) for row in rows] == [(run.rollout_id, 0, 0.25)] * 2
    (there,) = remote.store.list()
    assert (there.rollout_id, there.run_id) == (run.rollout_id, run.run_id)
    assert [one.id for one in there.completions] == [one.id for one in run.completions]


async def test_sixteen_at_once_keep_apart(remote: Remote) -> None:
    remote.graphs["ask"] = asking()
    groups = await gather(remote.graph("ask"), [f"say {at}" for at in range(4)], 4, lambda _: 1.0, progress=False)
    for at, group in enumerate(groups):
        for run in group.trajectories:
            assert [(call.message or {})["content"] for call in run.completions] == [str(at)]
            assert run.completions[0].trainable
    refs = group_refs([TrajectoryGroup(scenario=groups[0].scenario, trajectories=groups[0].trajectories)])
    assert sum(len(one.completions) for ref in refs for one in ref.trajectories) == 4


async def test_a_remote_graph_inside_a_graph_is_in_the_place_that_called_it(remote: Remote) -> None:
    remote.graphs["ask"] = asking()
    researcher = remote.graph("ask")

    @tool
    async def research(question: str) -> str:
        """Ask the researcher."""
        found = await researcher.ainvoke({"messages": [{"role": "user", "content": question}]})
        return str(found["messages"][-1]["kwargs"]["content"])

    agent = create_agent(model(), [research], name="boss")
    run = await rollout(agent, 'call research {"question": "say found"}')
    assert run.error is None
    assert ["/".join(one.path) for one in run.completions] == ["boss/model", "boss/tools/ask", "boss/model"]
    nodes = {node.attempt: node for node in run.nodes}
    inner = run.completions[1]
    assert nodes[inner.attempt].node == "ask"
    assert nodes[inner.parent].node == "tools"
    assert [one.agent for one in run.completions] == ["boss"] * 3

    graph = StateGraph(MessagesState).add_node("remote", researcher).add_edge(START, "remote").compile()
    run = await rollout(graph, {"messages": [{"role": "user", "content": "say direct"}]})
    assert [one.path for one in run.completions] == [["remote", "ask"]], run.error


async def test_a_retried_node_supersedes_what_its_remote_graph_did(remote: Remote) -> None:
    remote.graphs["ask"] = asking()
    tries = iter(range(9))

    async def calls(state: MessagesState) -> dict[str, Any]:
        await remote.graph("ask").ainvoke({"messages": [{"role": "user", "content": "say tried"}]})
        if next(tries) == 0:
            raise ConnectionError("once")
        return {}

    graph = StateGraph(MessagesState).add_node("calls", calls, retry_policy=RetryPolicy(initial_interval=0.01))
    run = await rollout(graph.add_edge(START, "calls").compile(), "x")
    assert run.error is None
    assert [(one.path, one.superseded) for one in run.completions] == [
        (["calls", "ask"], "retry"), (["calls", "ask"], None),
    ]  # fmt: skip
    assert len(run.completion_ids) == 1


async def test_an_error_of_the_remote_graph_is_that_of_the_run(remote: Remote) -> None:
    remote.graphs["ask"] = asking(then=RuntimeError("it broke"))
    run = await rollout(remote.graph("ask"), "say last words")
    assert run.error == "RemoteException: RuntimeError: it broke"
    assert [(call.message or {})["content"] for call in run.completions] == ["last words"]
    assert [node.error for node in run.nodes] == ["RuntimeError: it broke"]
    assert run.final_text == "last words"


async def test_a_connection_that_breaks_leaves_what_was_done(remote: Remote) -> None:
    remote.graphs["ask"] = asking(then=BrokenConnection("gone"))
    run = await rollout(remote.graph("ask"), "say last words")
    assert "RemoteProtocolError" in str(run.error)
    assert [(call.message or {})["content"] for call in run.completions] == ["last words"]


async def test_a_run_whose_time_is_over_is_cancelled_there(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_AFTER_AN_ERROR", PATIENCE)
    remote.graphs["slow"] = asking()
    limits = run_limits(monkeypatch)
    engine, began = remote.trainer.engine, time.monotonic()
    running = asyncio.create_task(rollout(remote.graph("slow"), "slow", timeout=PATIENCE))
    await until(lambda: engine["under_way"])
    limits.run_out()
    run = await running
    assert "TimeoutError" in str(run.error)
    assert remote.app.state.requests[0]["on_disconnect"] == "cancel"
    assert [call.trainable for call in run.completions] == [False]
    assert run.nodes[0].node == "ask"
    assert time.monotonic() - began < PATIENCE, "its record came home by itself"


async def test_a_process_that_does_not_record_is_warned_of_once(
    remote: Remote, heard: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_PATIENCE", 2.0)
    remote.graphs["ask"] = asking()
    uninstall()
    for _ in range(2):
        run = await rollout(remote.graph("ask"), "say x", lambda _: 1.0)
        assert (run.error, run.completions) == (None, [])
    warnings = [text for text in heard.messages if "does not record its runs" in text]
    assert len(warnings) == 1
    assert f"remote graph 'ask' at {remote.url}" in warnings[0]
    assert "art_langgraph.dev:app or install()" in warnings[0]
    with pytest.raises(PinIgnored, match="no request of the rollout from the remote graph"):
        await rollout(remote.graph("ask"), "say x", version=0)
    sent = remote.app.state.headers[-1]
    assert sent["x-art-rollout"].startswith("ro-")


async def test_a_run_that_never_ends_is_waited_for_no_longer_than_said(
    connected: TrainerServer, heard: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_PATIENCE", 0.5)
    scope = Scope(remote=[RemoteCall("'ask' at http://there")])
    with connected.http() as http:
        path = f"/api/rollouts/{scope.rollout_id}/records/{scope.remote[0].id}"
        assert http.put(f"{path}/tr-1").status_code == 204
        await fetch.fetch_remote_records(scope, failed=False)
        assert scope.unrecorded
        (warning,) = heard.messages
        assert "'ask' at http://there began, and its record did not come home within 0.5 s" in warning

        assert http.put(f"{path}/tr-1", content=b'{"trajectory": {"id": 3}}').status_code == 204
        await fetch.fetch_remote_records(scope, failed=False)
    assert "cannot be read: records.0.trajectory" in heard.messages[-1]
    assert "the same version of art-langgraph" in heard.messages[-1]


async def test_a_store_that_both_sides_write_has_the_run_once(remote: Remote) -> None:
    remote.graphs["ask"] = asking()
    shared = TrajectoryStore(remote.store.path)
    run = await rollout(remote.graph("ask"), "say once", lambda _: 0.5, store=shared)
    (stored,) = shared.list()
    assert (stored.id, stored.reward, stored.completion_ids) == (run.id, 0.5, run.completion_ids)


async def test_a_rollout_that_ends_gives_its_version_and_its_records_back(remote: Remote) -> None:
    remote.graphs["ask"] = asking()
    run = await rollout(remote.graph("ask"), "say x")
    server = remote.trainer.app.state.server
    deadline = time.monotonic() + PATIENCE
    while run.rollout_id in {*holders(server.leases), *(rollout for rollout, _ in server.records._calls)}:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
