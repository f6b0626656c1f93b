"""The `langgraph dev` workflow: record, use, feedback, train, answered by the new version without a restart."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph.pregel.remote import RemoteGraph
from langgraph_sdk import get_client

from art_langgraph import TrainerClient, TrajectoryStore, evaluate
from tests.support import SUPPORT
from tests.support.trainer_server import TOKEN, TrainerServer

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent
SHAPES = SUPPORT / "dev_graphs.py"
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
import itertools
from replayed import graph

turns = itertools.count()

def alternating(run):
    return float(next(turns) % 2)

def calls(run):
    return float(len(run.completions))
"""


@dataclass(slots=True)
class Dev:
    """A running `langgraph dev`, its project, and the store that it writes."""

    url: str
    project: Path

    @property
    def store(self) -> TrajectoryStore:
        return TrajectoryStore(self.project / "home" / "trajectories.sqlite")

    async def written(self) -> None:
        """Returns when all runs that have ended are in the store."""
        async with httpx.AsyncClient() as http:
            assert (await http.post(f"{self.url}/art/flush", timeout=20)).json() == {"capture": True}

    def art(self, *words: str) -> str:
        """What a command of `art-langgraph` prints."""
        done = subprocess.run(
            [str(BIN / "art-langgraph"), *words],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "COLUMNS": "200", "PYTHONPATH": str(self.project)},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


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
        yield project


@pytest.fixture(scope="module")
def dev(environment: Path) -> Iterator[Dev]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quiet = {"LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGGRAPH_NO_VERSION_CHECK": "true", "LANGSMITH_TRACING": "false"}
    log = environment / "dev.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(BIN / "langgraph"), "dev", "--no-browser", "--no-reload", "--port", str(port)],
            cwd=environment,
            env={**os.environ, **quiet},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 90
    while True:
        try:
            if httpx.get(f"{url}/ok", timeout=2).status_code == 200:
                break
        except httpx.HTTPError:
            pass
        assert process.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.2)
    yield Dev(url, environment)
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(20)


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


async def test_every_shape_is_captured(dev: Dev) -> None:
    def user(text: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}]}

    async with TrainerClient() as trainer:
        await trainer.create_policy("shapes")
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
    assert all(
        call.trainable or call.superseded
        for name in NAMES
        for one in store.list(graph=name)
        for call in one.completions
    )
