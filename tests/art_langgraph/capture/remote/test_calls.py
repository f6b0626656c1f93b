"""Calls of remote graphs say which rollout they are made in; outside of rollouts nothing is added to them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import rollout
from art_langgraph.capture.handover import KEY
from art_langgraph.capture.remote.calls import attach, is_remote
from tests.support.servers.langgraph_server import Remote


def silent() -> Any:
    return StateGraph(MessagesState).add_node("n", lambda _: {}).add_edge(START, "n").compile()


def message(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


async def test_a_call_outside_of_a_rollout_is_left_as_it_is(remote: Remote) -> None:
    attach()
    remote.graphs["silent"] = silent()
    await remote.graph("silent").ainvoke(message("x"), {"metadata": {"who": "me"}})
    (body,) = remote.app.state.requests
    assert body["config"]["metadata"] == {"who": "me"}
    assert body.get("on_disconnect") is None
    assert "x-art-rollout" not in remote.app.state.headers[0]


async def test_what_a_call_in_a_rollout_says(remote: Remote) -> None:
    remote.graphs["silent"] = silent()
    graph = remote.graph("silent").with_config({"metadata": {"who": "me"}, "tags": ["t"]})
    run = await rollout(graph, message("x"), temperature=0.5)
    (body,), (headers,) = remote.app.state.requests, remote.app.state.headers
    sent = json.loads(body["config"]["metadata"].pop(KEY))
    assert body["config"]["metadata"] == {"who": "me"}
    assert body["config"]["tags"] == ["t"]
    assert (sent["id"], sent["scenario"], sent["temperature"]) == (run.rollout_id, run.scenario.id, 0.5)
    assert sent["call"].startswith("rc-")
    assert (headers["x-art-rollout"], headers["x-art-temperature"]) == (run.rollout_id, "0.5")
    assert body["on_disconnect"] == "cancel"
    assert [node.node for node in run.nodes] == ["n"], "a run that asks no model has a record too"


async def test_what_a_caller_says_itself_counts(remote: Remote) -> None:
    remote.graphs["silent"] = silent()

    async def node(state: MessagesState) -> dict[str, Any]:
        graph, config = remote.graph("silent"), {"metadata": {"who": "me"}}
        options: dict[str, Any] = {"headers": {"x-mine": "1"}, "on_disconnect": "continue"}
        async for _ in graph.astream(message("x"), config, stream_mode="values", **options):
            pass
        await asyncio.to_thread(graph.invoke, message("y"))
        return {}

    outer = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
    run = await rollout(outer, "x")
    first, second = remote.app.state.requests
    assert remote.app.state.headers[0]["x-mine"] == "1"
    assert (first["on_disconnect"], second["on_disconnect"]) == ("continue", "cancel")
    assert {key for key in first["config"]["metadata"] if key.startswith("langgraph_")} == set()
    calls = [json.loads(body["config"]["metadata"][KEY]) for body in (first, second)]
    assert {one["id"] for one in calls} == {run.rollout_id}
    assert {one["scenario"] for one in calls} == {run.scenario.id}
    assert calls[0]["call"] != calls[1]["call"]
    assert [node.path for node in run.nodes] == [["node"], ["node", "n"], ["node", "n"]]


def test_which_graphs_are_remote(remote: Remote) -> None:
    graph = remote.graph("silent")
    assert is_remote(graph)
    assert is_remote(graph.with_retry())
    assert not is_remote(silent())
