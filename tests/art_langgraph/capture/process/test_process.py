"""Capture of the whole process: runs that nobody waits for until their end, and calls outside of any run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import TrajectoryStore, rollout
from art_langgraph.capture import flush, install, process, uninstall
from tests.support.clock import run_limits
from tests.support.patience import PATIENCE
from tests.support.runs.chat_models import Answering

CUT_OFF = "the run ended before the answer came"


class Silent(Answering):
    """Never answers."""

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.Event().wait()


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[TrajectoryStore]:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    install(store)
    yield store
    uninstall()


def asking(model: Any) -> Any:
    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke("x")]}

    graph = StateGraph(MessagesState).add_node("first", node).add_node("second", node)
    return graph.add_edge(START, "first").add_edge("first", "second").compile()


@pytest.mark.parametrize(("mode", "text"), [("messages", None), ("updates", "one two three")])
async def test_a_run_whose_stream_is_left_early_is_recorded(tmp_path: Path, mode: Any, text: str | None) -> None:
    model = GenericFakeChatModel(messages=iter([AIMessage("one two three"), AIMessage("four five six")]))
    store = TrajectoryStore(tmp_path / "s.sqlite")
    install(store)
    try:
        async with aclosing(asking(model).astream({"messages": [("user", "q")]}, stream_mode=mode)) as stream:
            async for _ in stream:
                break
        await asyncio.to_thread(flush)
    finally:
        uninstall()
    found = list(store)
    assert [run.error for run in found] == ["GeneratorExit: the stream of the run was left before the run ended"]
    (left,) = found
    first = left.completions[0]
    assert first.node == "first"
    assert (first.message and first.message["content"], first.error) == (text, None if text else CUT_OFF)
    assert left.scenario.input == {"messages": [["user", "q"]]}


async def test_a_call_that_a_rollout_did_not_wait_for_is_recorded_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = run_limits(monkeypatch)

    class Late(Silent):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            limits.run_out()
            return await super()._agenerate(*args, **kwargs)

    found = await rollout(asking(Late()), "x", timeout=PATIENCE)
    assert "TimeoutError" in str(found.error)
    assert [(call.node, call.error) for call in found.completions] == [("first", CUT_OFF)]


async def cancelled_call() -> None:
    """A model call outside of any run, cancelled before its answer."""
    handler = process._handler
    before = set(handler._roots)
    call = asyncio.create_task(Silent().ainvoke("cancelled"))
    async with asyncio.timeout(PATIENCE):
        while set(handler._roots) == before:
            await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_cancelled_call_outside_of_any_run_is_recorded_when_no_answer_can_come(
    installed: TrajectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cancelled_call()
    await Answering().ainvoke("soon after")
    await asyncio.to_thread(flush)
    assert [run.error for run in installed] == [None], "it may still answer"
    monkeypatch.setattr(process, "_LONGEST", -1.0)
    await Answering().ainvoke("much later")
    await asyncio.to_thread(flush)
    (cancelled,) = installed.list(error=True)
    assert cancelled.error == "no end was reported: it was cancelled, or the process ended"
    assert [call.error for call in cancelled.completions] == [CUT_OFF]
    assert not process._handler._roots
    assert not process._handler._root_of


async def test_a_cancelled_call_is_recorded_when_the_process_ends(installed: TrajectoryStore) -> None:
    await cancelled_call()
    process._close()
    (cancelled,) = installed
    assert [call.messages[0]["content"] for call in cancelled.completions] == ["cancelled"]


async def test_a_call_outside_of_any_run_keeps_the_metadata_of_its_config(installed: TrajectoryStore) -> None:
    config: Any = {"metadata": {"customer": "a", "thread_id": "t1"}}
    Answering().invoke("hi", config)
    await Answering().ainvoke("hi", config)
    await asyncio.to_thread(flush)
    assert [(run.metadata["customer"], run.thread_id) for run in installed] == [("a", "t1")] * 2
