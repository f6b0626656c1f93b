"""Times of a run, where somebody sets the system's clock while it goes on."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph

from art_langgraph import ARTCallbackHandler


@pytest.mark.parametrize("step", [-3600.0, 3600.0], ids=["set back", "set ahead"])
def test_durations_and_order_do_not_depend_on_the_clock(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    right, steps = time.time, itertools.count()

    @tool
    def double(value: int) -> int:
        """Doubles."""
        return 2 * value

    model = FakeListChatModel(responses=["a", "b"])

    def ask(state: MessagesState) -> dict[str, Any]:
        double.invoke({"value": 1})
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("one", ask).add_node("two", ask)
    compiled = graph.add_edge(START, "one").add_edge("one", "two").add_edge("two", END).compile()
    handler = ARTCallbackHandler()
    monkeypatch.setattr(time, "time", lambda: right() + step * next(steps))
    compiled.invoke({"messages": [("user", "hi")]}, config={"callbacks": [handler]})
    run = handler.trajectory()
    assert (len(run.nodes), len(run.completions), len(run.tool_calls)) == (2, 2, 2)
    for part in (run, *run.nodes, *run.completions, *run.tool_calls):
        assert 0 <= part.seconds < 1800
    for parts in (run.nodes, run.completions, run.tool_calls):
        assert parts[0].started <= parts[1].started
        assert parts[1].started - parts[0].started < 1800
