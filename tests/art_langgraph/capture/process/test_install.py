"""Capture of the whole process: where it is imported from, and what it says when nothing can be recorded."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextvars import Context
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART, Scenario, Trajectory, TrajectoryStore, notices
from art_langgraph.capture import flush, install, process, uninstall
from art_langgraph.capture.writer import Writer
from art_langgraph.trajectory import CompletionCall
from tests.support.runs.chat_models import Answering
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.common.jsonl import read_jsonl
from trainer_server.wire import ARTError, ConfigError


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.LogCaptureFixture]:
    """Warnings, as of a process that has not warned yet."""
    monkeypatch.setattr(notices, "_notices", set())
    with caplog.at_level(logging.WARNING, "art_langgraph"):
        yield caplog


@pytest.mark.slow
@pytest.mark.parametrize(
    "code", ["from art_langgraph.capture import install; install()", "import art_langgraph.capture"]
)
def test_importing_the_package_is_enough(code: str, tmp_path: Path) -> None:
    code += "; from art_langgraph.capture import process; print(process._handler.writer is not None)"
    environment = {**os.environ, "ART_CAPTURE": "1" if "install" not in code else "", "ART_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert done.stdout.strip() == "True", done.stderr


async def test_an_answer_that_no_run_records_is_warned_of_once(
    connected: TrainerServer, tmp_path: Path, heard: pytest.LogCaptureFixture
) -> None:
    model, begun, installed = ChatART(policy="agent", max_tokens=20), asyncio.Event(), asyncio.Event()

    async def node(state: MessagesState) -> dict[str, Any]:
        begun.set()
        await installed.wait()
        await model.ainvoke("say one")
        return {"messages": [await model.ainvoke("say two")]}

    graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()
    install(TrajectoryStore(tmp_path / "before.sqlite"))  # so that the callbacks of this process are known
    uninstall()
    running = asyncio.create_task(graph.ainvoke({"messages": []}))
    await begun.wait()
    store = TrajectoryStore(tmp_path / "s.sqlite")
    install(store)
    try:
        installed.set()
        await running
        (warning,) = heard.messages
        assert "the run began before `install()` was called" in warning
        assert notices.HELP in warning
        await graph.ainvoke({"messages": []})
        await asyncio.to_thread(flush)
    finally:
        uninstall()
    assert len(heard.messages) == 1
    assert len(store) == 1


def graph_of(node: Any) -> Any:
    return StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()


def test_a_run_that_ends_while_the_store_is_changed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = TrajectoryStore(tmp_path / "before.sqlite"), TrajectoryStore(tmp_path / "after.sqlite")
    model, close = Answering(), Writer.close

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke("ask")]}

    def closing(writer: Writer) -> str | None:
        Context().run(graph_of(ask).invoke, {"messages": [("user", "meanwhile")]})
        return close(writer)

    def changing(state: MessagesState) -> dict[str, Any]:
        first = model.invoke("before")
        with monkeypatch.context() as context:
            context.setattr(Writer, "close", closing)
            install(after)
        flush()
        assert [len(run.completions) for run in before.unfinished()] == [1]
        second = model.invoke("after")
        flush()
        assert [len(run.completions) for run in after.unfinished()] == [2], "the new store knows of the whole run"
        return {"messages": [first, second]}

    install(before)
    try:
        graph_of(changing).invoke({"messages": [("user", "through")]})
    finally:
        uninstall()
    assert [(run.messages[0].text, len(run.completions)) for run in after] == [("meanwhile", 1), ("through", 2)]
    assert len(before) == 0


def test_a_store_that_cannot_be_opened_does_not_end_the_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    install(store)
    try:
        writer = process._handler.writer
        monkeypatch.setenv("ART_STORE", str(tmp_path))
        with pytest.raises(ConfigError, match="cannot be opened"):
            install()
        install(TrajectoryStore(tmp_path / "s.sqlite"))
        assert process._handler.writer is writer, "nor does the same store change it"
    finally:
        uninstall()


def test_feedback_on_a_run_that_cannot_be_trained_warns_once(tmp_path: Path, heard: pytest.LogCaptureFixture) -> None:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    ours = CompletionCall(id="chatcmpl-1", started=0.0)
    foreign = CompletionCall(id=None, model="gpt-5", started=0.0)
    scenario = Scenario(input="x")
    good = Trajectory(scenario=scenario, completions=[foreign, ours])
    measured = Trajectory(scenario=scenario, completions=[foreign], evaluation=True)
    bad = Trajectory(scenario=scenario, completions=[foreign])
    for trajectory in (good, measured, bad):
        store.add(trajectory)
        store.score(trajectory.id, None, error="x")
    store.score(good.id, 1.0)
    store.score(measured.id, 1.0)
    assert heard.messages == []
    store.score(bad.id, 1.0)
    store.score(bad.id, 0.5)
    other = Trajectory(scenario=scenario)
    store.add(other)
    store.score(other.id, 1.0)
    assert len(heard.messages) == 1
    assert bad.id in heard.messages[0]
    assert "ChatART" in heard.messages[0]


_GRAPH = """
import multiprocessing, os, sys
from langgraph.graph import START, MessagesState, StateGraph
from art_langgraph import TrajectoryStore
from art_langgraph.capture import install
from tests.support.runs.chat_models import Answering

store = TrajectoryStore(sys.argv[1])
install(store)
model = Answering()
graph = StateGraph(MessagesState).add_node("n", lambda state: {"messages": [model.invoke("x")]})
graph = graph.add_edge(START, "n").compile()

def run(text):
    graph.invoke({"messages": [("user", text)]})
"""


def program(code: str, store: Path) -> subprocess.CompletedProcess[str]:
    """A program that captures a graph, to its end."""
    return subprocess.run(
        [sys.executable, "-c", _GRAPH + code, str(store)], capture_output=True, text=True, timeout=120,
        cwd=Path(__file__).parents[4],
    )  # fmt: skip


async def test_the_app_of_langgraph_dev_says_that_runs_are_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    app = httpx.ASGITransport(importlib.import_module("art_langgraph.dev").app)

    def full(_timeout: float) -> None:
        raise ARTError("the disk is full")

    try:
        async with httpx.AsyncClient(transport=app, base_url="http://app") as http:
            assert (await http.post("/art/flush")).json() == {"capture": True}
            assert process._handler.writer
            monkeypatch.setattr(process._handler.writer, "flush", full)
            answer = await http.post("/art/flush")
            assert (answer.status_code, answer.json()) == (507, {"capture": False, "error": "the disk is full"})
    finally:
        uninstall()


@pytest.mark.slow
def test_runs_of_forked_processes_are_stored(tmp_path: Path) -> None:
    code = """
run("parent, before")
for number in range(4):  # while the parent's thread writes, and while it is idle
    child = multiprocessing.get_context("fork").Process(target=run, args=(f"child {number}",))
    child.start()
    run(f"parent {number}")
    child.join()
if (child := os.fork()) == 0:
    run("fork")
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
run("parent, after")
"""
    done = program(code, tmp_path / "s.sqlite")
    assert done.returncode == 0, done.stderr
    asked = [one.messages[0].text for one in TrajectoryStore(tmp_path / "s.sqlite")]
    both = [f"{who} {number}" for who in ("child", "parent") for number in range(4)]
    assert sorted(asked) == sorted([*both, "fork", "parent, before", "parent, after"])
    assert "cannot be written" not in done.stderr


@pytest.mark.slow
def test_a_program_whose_store_is_gone_ends_and_says_where_its_runs_are(tmp_path: Path) -> None:
    code = """
import shutil
run("stored")
from art_langgraph.capture import flush
flush()
shutil.rmtree(store.path.parent)
from art_langgraph.capture import process
process._handler.writer._writes._halt()  # as after a second without a run: the thread closes the file
process._handler.writer._writes._go_on()
run("kept")
"""
    done = program(code, tmp_path / "runs" / "s.sqlite")
    assert done.returncode == 0, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"art-langgraph: the trajectory store {tmp_path / 'runs' / 's.sqlite'} cannot be written")
    file = Path(last.rpartition("import ")[2].rstrip("`"))
    try:
        (kept,) = read_jsonl(file, Trajectory.model_validate)
        assert kept.messages[0].text == "kept"
    finally:
        file.unlink()
