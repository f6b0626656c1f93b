"""Capture of the whole process: runs that nobody waits for until their end."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import TrajectoryStore, rollout
from art_langgraph.capture import flush, install, uninstall
from tests.support.runs.chat_models import Answering

CUT_OFF = "the run ended before the answer came"


class Silent(Answering):
    """Never answers."""

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.Event().wait()


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


async def test_a_call_that_a_rollout_did_not_wait_for_is_recorded_without_an_answer() -> None:
    found = await rollout(asking(Silent()), "x", timeout=0.1)
    assert "TimeoutError" in str(found.error)
    assert [(call.node, call.error) for call in found.completions] == [("first", CUT_OFF)]
