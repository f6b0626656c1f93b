"""The `langgraph dev` workflow: record, use, feedback, train, answered by the new version without a restart."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command
from langgraph_sdk import get_client

from art_langgraph import TrainerClient, Trajectory, evaluate, gather, notices, rollout
from tests.support import SUPPORT
from tests.support.patience import PATIENCE
from tests.support.servers.dev_server import Dev, langgraph_dev
from tests.support.servers.trainer_server import TOKEN, TrainerServer

pytestmark = pytest.mark.slow
SHAPES = SUPPORT / "runs" / "dev_graphs.py"
NAMES = ("agent", "fan", "nested", "person", "retried", "handoff", "functional", "broken")
CHATS = ("chat", "taught", "scored", "replayed", "measured")
"""Graphs that ask one question, each on a policy of its own name: one for each test."""
GRAPH = """
import os
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

model = ChatOpenAI(model="NAME", base_url=os.environ["ART_BASE_URL"] + "/v1", api_key=os.environ["ART_API_KEY"],
                   max_tokens=40)

async def answer(state: MessagesState):
    return {"messages": [await model.ainvoke(state["messages"][-1:])]}

graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
"""

REWARDS = """
import collections
import itertools
from replayed import graph

turns = collections.defaultdict(itertools.count)

def alternating(run):
    return float(next(turns[run.scenario.id]) % 2)

def calls(run):
    return float(len(run.completions))
"""


@pytest.fixture(scope="module")
def environment(server: TrainerServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with all graphs; clients of this process find the trainer server and the project's store."""
    project = tmp_path_factory.mktemp("project")
    for name in CHATS:
        (project / f"{name}.py").write_text(GRAPH.replace("NAME", name))
    (project / "rewards.py").write_text(REWARDS)
    (project / "shapes.py").write_text(SHAPES.read_text())
    graphs = {
        **{name: f"./{name}.py:graph" for name in CHATS},
        **{name: f"./shapes.py:{name}" for name in NAMES},
    }
    config = {"dependencies": ["."], "graphs": graphs, "http": {"app": "art_langgraph.dev:app"}}
    (project / "langgraph.json").write_text(json.dumps(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ART_HOME", str(project / "home"))
        patch.setenv("ART_BASE_URL", server.url)
        patch.setenv("ART_API_KEY", TOKEN)
        with server.http() as http:
            assert http.post("/api/policies", json={"name": "shapes"}).status_code == 201
        yield project


@pytest.fixture(scope="module")
def dev(environment: Path) -> Iterator[Dev]:
    with langgraph_dev(environment) as (url, _):
        yield Dev(url, environment)


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.LogCaptureFixture]:
    """Warnings, as of a process that has not warned yet."""
    monkeypatch.setattr(notices, "_notices", set())
    with caplog.at_level(logging.WARNING, "art_langgraph"):
        yield caplog


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"say {text}"}]}


async def create(policy: str) -> None:
    async with TrainerClient() as trainer:
        await trainer.create_policy(policy, temperature=1.0)


async def test_every_run_is_one_trajectory(dev: Dev) -> None:
    await create("chat")
    client, store = get_client(url=dev.url), dev.store
    thread = await client.threads.create()
    await client.runs.wait(thread["thread_id"], "chat", input=said("one"), metadata={"who": "test"})
    streamed = [part async for part in client.runs.stream(None, "chat", input=said("two"), stream_mode="messages")]
    assert streamed
    threads = [await client.threads.create() for _ in range(8)]
    outputs = await asyncio.gather(
        *(client.runs.wait(one["thread_id"], "chat", input=said(f"n{i}")) for i, one in enumerate(threads))
    )
    assert [output["messages"][-1]["content"] for output in outputs] == [f"n{i}" for i in range(8)]
    await dev.written()

    runs = store.list(graph="chat")
    assert len(runs) == 10, "one trajectory per run"
    for trajectory in runs:
        (call,) = trajectory.completions
        assert call.trainable
        assert (trajectory.graph_id, call.node, trajectory.versions) == ("chat", "answer", {"chat": [0]})
        assert trajectory.assistant_id
        question = trajectory.scenario.input["messages"][0]["content"]
        assert question == f"say {(call.message or {})['content']}"
        assert trajectory.final_text == (call.message or {})["content"]
    (first,) = store.list(thread=thread["thread_id"])
    assert first.metadata["who"] == "test"
    server_runs = await client.runs.list(thread["thread_id"])
    assert first.run_id == server_runs[0]["run_id"]
    assert "chat" in dev.art("trajectories", "list")
    assert "answer" in dev.art("trajectories", "show", str(first.run_id))

    out, other = dev.project / "out", str(dev.project / "other.sqlite")
    assert "10 trajectories" in dev.art("trajectories", "export", f"{out}.jsonl", "--graph", "chat")
    assert "10 trajectories" in dev.art("trajectories", "export", f"{out}.parquet", "--graph", "chat")
    assert "10 added" in dev.art("trajectories", "import", f"{out}.jsonl", "--store", other)
    assert "10 were there" in dev.art("trajectories", "import", f"{out}.parquet", "--store", other)
    assert "chat" in dev.art("trajectories", "stats", "--store", other)


async def test_feedback_trains_and_the_new_version_answers_without_a_restart(dev: Dev) -> None:
    await create("taught")
    client, store = get_client(url=dev.url), dev.store
    for text in ("first", "second"):
        await client.runs.wait(None, "taught", input=said(text))
    await dev.written()
    second, first = store.list(graph="taught")
    dev.art("feedback", str(first.run_id), "--score", "1")
    dev.art("feedback", second.id, "--score", "0")
    printed = dev.art("train", "--from-store", "--policy", "taught", "--graph", "taught", "--lr", "1e-3")
    assert "2 with a running baseline" in printed
    assert "taught@1 is served" in printed
    await client.runs.wait(None, "taught", input=said("after"))
    await dev.written()
    newest = store.list(graph="taught", limit=1)[0]
    assert newest.versions == {"taught": [1]}
    async with TrainerClient() as trainer:
        assert (await trainer.completion(newest.completion_ids[0])).version == 1


async def test_a_function_scores_the_runs_that_have_no_reward(dev: Dev) -> None:
    await create("scored")
    client = get_client(url=dev.url)
    for text in ("a", "b", "c"):
        await client.runs.wait(None, "scored", input=said(text))
    await dev.written()
    dev.art("feedback", dev.store.list(graph="scored")[0].id, "--score", "0.5")
    assert "2 scored, 0 failed" in dev.art("score", "--reward", "rewards:calls", "--graph", "scored")
    assert sorted(run.reward or 0.0 for run in dev.store.list(graph="scored")) == [0.5, 1.0, 1.0]


async def test_scenarios_of_recorded_runs_are_replayed(dev: Dev) -> None:
    await create("replayed")
    client = get_client(url=dev.url)
    for text in ("again", "once more"):
        await client.runs.wait(None, "replayed", input=said(text))
    await dev.written()
    newest = dev.store.list(graph="replayed", limit=1)[0]
    replay = ("--replay", "4", "--graph-object", "rewards:graph", "--reward", "rewards:alternating")
    choice = ("--graph", "replayed", "--since", "1h")
    printed = dev.art("train", "--from-store", "--policy", "replayed", *choice, *replay)
    assert "replaying 2 scenarios 4 times" in printed
    assert "replayed@1 is served" in printed
    assert len(dev.store.list(scenario=newest.scenario.id)) == 5


async def test_a_remote_graph_is_measured_at_the_version_that_was_asked_for(dev: Dev) -> None:
    await create("measured")
    graph = RemoteGraph("measured", url=dev.url)
    measured = await evaluate(graph, [said("one"), said("two")], lambda _: 1.0, version=0, progress=False)
    assert [run.error for run in measured.trajectories] == [None, None]
    await dev.written()
    runs = dev.store.list(graph="measured")
    assert {run.rollout_id for run in runs} == {run.rollout_id for run in measured.trajectories}
    async with TrainerClient() as trainer:
        rows = [await trainer.completion(run.completion_ids[0]) for run in runs]
    assert [(row.version, row.sampling.temperature) for row in rows] == [(0, 0.0)] * 2
    assert [(run.evaluation, run.requested_version) for run in runs] == [(True, 0)] * 2


def user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def summary(run: Trajectory) -> list[tuple[str, str, str | None]]:
    return [((one.message or {})["content"], "/".join(one.path), one.superseded) for one in run.completions]


async def test_every_shape_is_captured(dev: Dev) -> None:
    client = get_client(url=dev.url)
    thread = (await client.threads.create())["thread_id"]
    modes: list[Any] = ["values", "updates", "messages-tuple", "custom", "events", "debug"]
    streamed = [part async for part in client.runs.stream(None, "agent", input=user('call double {"value": 4}'))]
    assert streamed
    async for _ in client.runs.stream(None, "nested", input=user("x"), stream_mode=modes, stream_subgraphs=True):
        pass
    await asyncio.gather(
        client.runs.wait(None, "fan", input={"count": 50}),
        client.runs.wait(None, "retried", input=user("x")),
        client.runs.wait(None, "handoff", input=user("x")),
        client.runs.wait(None, "functional", input={}),
        client.runs.wait(None, "broken", input=user("x"), raise_error=False),
    )
    waiting = await client.runs.wait(thread, "person", input=user("x"))
    assert waiting["__interrupt__"][0]["value"] == "draft"
    await client.runs.wait(thread, "person", command={"resume": "done"})
    await dev.written()
    store = dev.store

    def calls(graph: str) -> list[tuple[str, str | None, str | None]]:
        runs = reversed(store.list(graph=graph))
        return [((c.message or {})["content"], "/".join(c.path), c.superseded) for one in runs for c in one.completions]

    (agent,) = store.list(graph="agent")
    assert [(one.tool, one.result) for one in agent.tool_calls] == [("double", "8")]
    assert [one.path for one in agent.completions] == [["model"], ["model"]]
    assert calls("nested") == [("inner", "child/inner", None), ("outer", "outer", None)]
    (fan,) = store.list(graph="fan")
    assert sorted(one.branch for one in fan.completions if one.branch is not None) == list(range(50))
    assert len({one.id for one in fan.completions}) == 50
    assert calls("retried") == [("tried", "shaky", "retry"), ("tried", "shaky", None)]
    assert calls("handoff") == [("who", "supervisor", None), ("expert", "expert", None), ("who", "supervisor", None)]
    assert sorted(calls("functional")) == [("piece 0", "functional/piece", None), ("piece 1", "functional/piece", None)]
    assert calls("broken") == [("last words", "breaks", None)]
    assert "it broke" in (store.list(graph="broken")[0].error or "")
    assert calls("person") == [("draft", "asks", "resume"), ("draft", "asks", None), ("done", "asks", None)]
    (person,) = store.list(graph="person")
    assert person.scenario.input["messages"][0]["content"] == "x"
    assert person.final_text == "done"
    assert all(
        call.trainable or call.superseded
        for name in NAMES
        for one in store.list(graph=name)
        for call in one.completions
    )


# The tests below add to what the store has: they come after those that count its runs.


async def test_what_a_remote_graph_does_is_in_the_trajectory(dev: Dev, heard: pytest.LogCaptureFixture) -> None:
    def remote(name: str) -> RemoteGraph:
        return RemoteGraph(name, url=dev.url)

    agent = await rollout(remote("agent"), 'call double {"value": 4}', lambda run: 1.0, version=0, temperature=0.5)
    assert agent.error is None
    assert [(one.tool, one.arguments, one.result) for one in agent.tool_calls] == [("double", {"value": 4}, "8")]
    assert [one.path for one in agent.completions] == [["model"], ["model"]]
    assert [one.node for one in agent.nodes] == ["model", "tools", "model"]
    assert (agent.versions, agent.graph_id, agent.reward) == ({"shapes": [0]}, "agent", 1.0)
    async with TrainerClient() as trainer:
        rows = [await trainer.completion(one) for one in agent.completion_ids]
    assert {(row.rollout, row.version, row.sampling.temperature) for row in rows} == {(agent.rollout_id, 0, 0.5)}
    assert agent.final_text == (agent.completions[-1].message or {})["content"]
    assert agent.run_id
    assert [one.id for one in dev.store.list(run=agent.run_id)[0].completions] == [one.id for one in agent.completions]

    assert summary(await rollout(remote("nested"), "x")) == [
        ("inner", "child/inner", None), ("outer", "outer", None),
    ]  # fmt: skip
    fan = await rollout(remote("fan"), {"count": 50})
    assert sorted(one.branch for one in fan.completions if one.branch is not None) == list(range(50))
    assert summary(await rollout(remote("retried"), "remote")) == [
        ("tried", "shaky", "retry"), ("tried", "shaky", None),
    ]  # fmt: skip
    assert [path for _, path, _ in summary(await rollout(remote("handoff"), "x"))] == [
        "supervisor", "expert", "supervisor",
    ]  # fmt: skip
    functional = await rollout(remote("functional"), {})
    assert sorted(summary(functional)) == [(f"piece {at}", "functional/piece", None) for at in range(2)]
    broken = await rollout(remote("broken"), "x", lambda _: 0.0)
    assert summary(broken) == [("last words", "breaks", None)]
    assert "it broke" in str(broken.error)
    assert broken.error is not None
    assert broken.error.startswith("RemoteException: RuntimeError")
    assert heard.messages == []


async def test_a_remote_run_is_resumed(dev: Dev) -> None:
    graph, seen = RemoteGraph("person", url=dev.url), []

    def resume(values: list[Any]) -> str:
        seen.extend(values)
        return "done"

    run = await rollout(graph, user("x"), resume=resume)
    assert run.error is None
    assert seen == ["draft"]
    expected = [("draft", "asks", "resume"), ("draft", "asks", None), ("done", "asks", None)]
    assert summary(run) == expected
    assert run.final_text == "done"
    assert [node.interrupted for node in run.nodes] == [True, False]

    thread = (await get_client(url=dev.url).threads.create())["thread_id"]
    config: Any = {"configurable": {"thread_id": thread}}
    first = await rollout(graph, user("y"), config=config)
    assert first.waiting
    assert (first.thread_id, first.resumes) == (thread, None)
    second = await rollout(graph, Command(resume="done"), config=config)
    assert second.resumes == "newest"
    assert second.scenario.id == first.scenario.id
    assert summary(first.resumed_by(second)) == expected


async def test_sixteen_remote_rollouts_at_once(dev: Dev) -> None:
    graph = RemoteGraph("nested", url=dev.url)
    groups = await gather(graph, [user(f"q{at}") for at in range(4)], 8, lambda _: 1.0, progress=False)
    runs = [run for group in groups for run in group.trajectories]
    assert [run.error for run in runs] == [None] * 32
    assert all(summary(run) == [("inner", "child/inner", None), ("outer", "outer", None)] for run in runs)
    ids = [one for run in runs for one in run.completion_ids]
    assert len(ids) == len(set(ids)) == 64


UNCAPTURED = """
import os
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

model = ChatOpenAI(model="shapes", base_url=os.environ["ART_BASE_URL"] + "/v1", api_key=os.environ["ART_API_KEY"],
                   max_tokens=40, max_retries=0)

async def first(state: MessagesState, config):
    headers = {name: value for name, value in config["configurable"].items() if name.startswith("x-art-")}
    return {"messages": [await model.bind(extra_headers=headers).ainvoke("say first")]}

async def second(state: MessagesState):
    return {"messages": [await model.ainvoke(state["messages"][0].text)]}

graph = (StateGraph(MessagesState).add_node("first", first).add_node("second", second)
         .add_edge(START, "first").add_edge("first", "second").compile())
"""


@pytest.mark.filterwarnings("ignore:Reconnecting without")  # the client of LangGraph asks a server again that is gone
async def test_a_remote_process_that_is_not_captured_or_is_killed(
    environment: Path, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "graph.py").write_text(UNCAPTURED)
    http = {"configurable_headers": {"includes": ["x-art-*"]}}
    config = {"dependencies": ["."], "graphs": {"plain": "./graph.py:graph"}, "http": http}
    (tmp_path / "langgraph.json").write_text(json.dumps(config))
    with langgraph_dev(tmp_path) as (url, process):
        graph = RemoteGraph("plain", url=url)
        run = await rollout(graph, "say second", lambda _: 1.0, temperature=0.5)
        assert run.error is None
        assert [(call.message or {})["content"] for call in run.completions] == ["first"]
        assert run.completions[0].trainable
        assert run.nodes == []
        (warning,) = heard.messages
        assert f"remote graph 'plain' at {url} does not record its runs" in warning

        running = asyncio.create_task(rollout(graph, "slow", timeout=10))
        await asyncio.sleep(5)
        os.killpg(process.pid, signal.SIGKILL)
        killed = await asyncio.wait_for(running, PATIENCE)
    assert "TimeoutError" in str(killed.error)
    assert [(call.message or {})["content"] for call in killed.completions] == ["first"]
