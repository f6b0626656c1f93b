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
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_client

from art_langgraph import TrainerClient, TrajectoryStore
from tests.support import SUPPORT
from tests.support.trainer_server import TOKEN, TrainerServer

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent
SHAPES = SUPPORT / "dev_graphs.py"
NAMES = ("agent", "fan", "nested", "person", "retried", "handoff", "functional", "broken")
GRAPH = """
import os
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

model = ChatOpenAI(model="studio", base_url=os.environ["ART_BASE_URL"] + "/v1", api_key=os.environ["ART_API_KEY"],
                   max_tokens=40)

async def answer(state: MessagesState):
    return {"messages": [await model.ainvoke(state["messages"][-1:])]}

graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
"""

REPLAYED = """
import itertools
from graph import graph

turns = itertools.count()

def reward(run):
    return float(next(turns) % 2)
"""


@pytest.fixture
def project(tmp_path: Path, connected: TrainerServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ART_HOME", str(tmp_path / "home"))
    (tmp_path / "graph.py").write_text(GRAPH)
    (tmp_path / "shapes.py").write_text(SHAPES.read_text())
    graphs = {"chat": "./graph.py:graph", **{name: f"./shapes.py:{name}" for name in NAMES}}
    config = {"dependencies": ["."], "graphs": graphs, "http": {"app": "art_langgraph.dev:app"}}
    (tmp_path / "langgraph.json").write_text(json.dumps(config))
    return tmp_path


@pytest.fixture
def dev(project: Path, connected: TrainerServer) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ, "ART_BASE_URL": connected.url, "ART_API_KEY": TOKEN, "LANGGRAPH_CLI_NO_ANALYTICS": "1",
        "LANGGRAPH_NO_VERSION_CHECK": "true", "LANGSMITH_TRACING": "false",
    }  # fmt: skip
    log = project / "dev.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [str(BIN / "langgraph"), "dev", "--no-browser", "--no-reload", "--port", str(port)],
            cwd=project, env=environment, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 90
    while True:
        try:
            if httpx.get(f"{url}/ok", timeout=2).status_code == 200:
                break
        except httpx.HTTPError:
            pass
        assert server.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.2)
    yield url
    os.killpg(server.pid, signal.SIGTERM)
    server.wait(20)


def art(*words: str) -> str:
    done = subprocess.run(
        [str(BIN / "art-langgraph"), *words], capture_output=True, text=True, timeout=120,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_the_whole_workflow(
    dev: str, project: Path, connected: TrainerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TrainerClient() as trainer:
        await trainer.create_policy("studio", temperature=1.0)
        client = get_client(url=dev)

        def said(text: str) -> dict[str, Any]:
            return {"messages": [{"role": "user", "content": f"say {text}"}]}

        thread = await client.threads.create()
        await client.runs.wait(thread["thread_id"], "chat", input=said("one"), metadata={"who": "test"})
        streamed = [part async for part in client.runs.stream(None, "chat", input=said("two"), stream_mode="messages")]
        assert streamed
        threads = [await client.threads.create() for _ in range(8)]
        outputs = await asyncio.gather(
            *(client.runs.wait(one["thread_id"], "chat", input=said(f"n{i}")) for i, one in enumerate(threads))
        )
        assert [output["messages"][-1]["content"] for output in outputs] == [f"n{i}" for i in range(8)]
        async with httpx.AsyncClient() as http:
            assert (await http.post(f"{dev}/art/flush", timeout=20)).json() == {"capture": True}

        store = TrajectoryStore(project / "home" / "trajectories.sqlite")
        runs = store.list()
        assert len(runs) == 10, "one trajectory per run"
        for one in runs:
            (call,) = one.completions
            assert call.trainable
            assert (one.graph_id, call.node) == ("chat", "answer")
            assert one.assistant_id
            question = one.scenario.input["messages"][0]["content"]
            assert question == f"say {(call.message or {})['content']}"
        (first,) = store.list(thread=thread["thread_id"])
        assert first.metadata["who"] == "test"
        server_runs = await client.runs.list(thread["thread_id"])
        assert first.run_id == server_runs[0]["run_id"]

        assert "chat" in art("trajectories", "list")
        assert "answer" in art("trajectories", "show", str(first.run_id))
        art("feedback", str(first.run_id), "--score", "1")
        (second,) = store.list(thread=threads[0]["thread_id"])
        art("feedback", second.id, "--score", "0")
        said_by_train = art("train", "--from-store", "--policy", "studio", "--lr", "1e-3")
        assert "2 with a running baseline" in said_by_train
        assert "studio@1 is served" in said_by_train
        await client.runs.wait(None, "chat", input=said("after"))
        async with httpx.AsyncClient() as http:
            await http.post(f"{dev}/art/flush", timeout=20)
        newest = store.list(limit=1)[0]
        assert (await trainer.completion(newest.completion_ids[0])).version == 1

        (project / "judge.py").write_text("def reward(run):\n    return float(len(run.completions))\n")
        monkeypatch.chdir(project)
        assert "9 scored, 0 failed" in art("score", "--reward", "judge:reward")

        (project / "replayed.py").write_text(REPLAYED)
        monkeypatch.setenv("PYTHONPATH", str(project))
        replay = ("--replay", "4", "--graph-object", "replayed:graph", "--reward", "replayed:reward")
        said_by_train = art("train", "--from-store", "--policy", "studio", "--since", "1h", *replay)
        assert "replaying 9 scenarios 4 times" in said_by_train
        assert "studio@2 is served" in said_by_train
        assert len(store.list(scenario=newest.scenario.id)) == 5

        assert "47 trajectories" in art("trajectories", "export", str(project / "out.jsonl"))
        assert "47 trajectories" in art("trajectories", "export", str(project / "out.parquet"))
        other = str(project / "other.sqlite")
        assert "47 added" in art("trajectories", "import", str(project / "out.jsonl"), "--store", other)
        assert "47 were there" in art("trajectories", "import", str(project / "out.parquet"), "--store", other)
        assert "chat" in art("trajectories", "stats", "--store", other)


async def test_every_shape_is_captured(dev: str, project: Path, connected: TrainerServer) -> None:
    def user(text: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}]}

    async with TrainerClient() as trainer:
        await trainer.create_policy("shapes")
    client = get_client(url=dev)
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
    async with httpx.AsyncClient() as http:
        await http.post(f"{dev}/art/flush", timeout=20)
    store = TrajectoryStore(project / "home" / "trajectories.sqlite")

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
    assert all(call.trainable or call.superseded for one in store for call in one.completions)
