"""Progress bars side by side, also with versions of rich that show one live display at a time."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest
import rich
from rich.console import Console
from rich.errors import LiveError
from rich.live import Live
from rich.progress import TextColumn

from art_langgraph import gather
from art_langgraph.progress import progress_bar
from tests.support.runs.chat_models import Answering


class OneDisplay(Console):
    """As a console of rich 13."""

    live: Live | None = None

    def set_live(self, live: Live) -> bool:
        if self.live is not None:
            raise LiveError("Only one live display may be active at once")
        self.live = live
        return True

    def clear_live(self) -> None:
        self.live = None


@pytest.fixture(params=[Console, OneDisplay])
def console(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Console:
    """The console of the process."""
    console: Console = request.param(file=io.StringIO(), force_terminal=True)
    monkeypatch.setattr(rich, "_console", console)
    return console


@pytest.mark.usefixtures("console")
async def test_two_gathers_at_once_in_one_process() -> None:
    model = Answering()

    async def node(state: dict[str, Any]) -> dict[str, Any]:
        return {"said": (await model.ainvoke("x")).text}

    from langgraph.graph import START, StateGraph

    graph = StateGraph(dict).add_node("n", node).add_edge(START, "n").compile()
    both = await asyncio.gather(*(gather(graph, [{"a": 1}], n=2, progress=True) for _ in range(2)))
    assert [len(groups[0].trajectories) for groups in both] == [2, 2]


@pytest.mark.usefixtures("console")
def test_bars_may_end_in_any_order_and_begin_again() -> None:
    for _ in range(2):
        first, second = progress_bar(TextColumn("a")), progress_bar(TextColumn("b"))
        with first as one:
            other = second.__enter__()
            for bar in (one, other):
                bar.advance(bar.add_task("x", total=1))
            assert one.finished
            assert other.finished
        second.__exit__(None, None, None)


def test_a_bar_that_shall_not_be_shown_is_not() -> None:
    with progress_bar(TextColumn("a"), shown=False) as bar:
        assert bar.disable


def test_nothing_is_printed_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich alone would print an empty line for each bar."""
    console = Console(file=io.StringIO())
    monkeypatch.setattr(rich, "_console", console)
    with progress_bar(TextColumn("x")) as bar:
        bar.advance(bar.add_task("a", total=2))
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
