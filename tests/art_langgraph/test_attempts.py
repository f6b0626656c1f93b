"""Which calls count where LangGraph runs something again: a matrix over its two APIs and its ways to go on, with a
checkpointer or none, under `rollout` and `install`.

Without a checkpointer only a retry is possible: LangGraph refuses `None` and `Command(resume=…)` as inputs, and has no
history to go back to (`test_without_a_checkpointer_nothing_goes_on`).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt

from art_langgraph import Trajectory, TrajectoryStore, capture, rollout
from art_langgraph.attempts import parent_namespace
from tests.support.runs.chat_models import Answering

AT_ONCE = RetryPolicy(initial_interval=0.001, jitter=False)
ON: Any = {"configurable": {"thread_id": "t"}}
MODEL = Answering()

Trouble = Literal["none", "error", "interrupt"]


class Said(TypedDict):
    said: Annotated[list[str], operator.add]


async def say(text: str) -> str:
    await MODEL.ainvoke(text)
    return text


def once(trouble: Trouble) -> Callable[[], None]:
    """Raises an error the first time, or interrupts until it is answered."""
    calls = itertools.count()

    def stop() -> None:
        if trouble == "error" and next(calls) == 0:
            raise ConnectionError("not yet")
        if trouble == "interrupt":
            interrupt("?")

    return stop


def graph(trouble: Trouble, saver: Any = None, *, retry: Any = None, inner: Any = None) -> Any:
    """`begin`, then a subgraph of `draft` and `flaky`, of which the latter stops, then `end`."""
    stop = once(trouble)

    def node(name: str, then: Callable[[], None] = lambda: None) -> Any:
        async def run(state: Said) -> dict[str, list[str]]:
            said = await say(name)
            then()
            return {"said": [said]}

        return run

    sub = StateGraph(Said).add_node("draft", node("draft")).add_node("flaky", node("flaky", stop))
    sub.add_edge(START, "draft").add_edge("draft", "flaky")
    whole = StateGraph(Said).add_node("begin", node("begin"))
    whole.add_node("sub", sub.compile(checkpointer=inner), retry_policy=retry).add_node("end", node("end"))
    whole.add_edge(START, "begin").add_edge("begin", "sub").add_edge("sub", "end")
    return whole.compile(checkpointer=saver)


def flow(trouble: Trouble, saver: Any = None, *, retry: Any = None) -> Any:
    """An entrypoint of the tasks `draft`, and `flaky`, which stops by an error; an interrupt is between them."""
    stop = once(trouble)

    @task
    async def draft() -> str:
        return await say("draft")

    @task
    async def flaky() -> str:
        said = await say("flaky")
        if trouble == "error":
            stop()
        return said

    @entrypoint(checkpointer=saver, retry_policy=retry)
    async def run(inputs: Any) -> dict[str, list[str]]:
        said = [await say("begin"), await draft()]
        if trouble == "interrupt":
            stop()
        return {"said": [*said, await flaky()]}

    return run


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TrajectoryStore]:
    store = TrajectoryStore(tmp_path / "s.sqlite")
    capture.install(store)
    yield store
    capture.uninstall()


class Whole:
    """Runs a graph, and goes on with it, under `rollout` or `install`; the parts as one trajectory."""

    def __init__(self, store: TrajectoryStore | None) -> None:
        self.store = store
        self.run: Trajectory | None = None

    async def __call__(self, graph: Any, given: Any, config: Any = ON) -> None:
        if self.store is None:
            part = await rollout(graph, given, config=config)
            self.run = part if self.run is None else self.run.resumed_by(part)
            return
        try:
            await graph.ainvoke(given, config)
        except ConnectionError:
            pass
        capture.flush()
        runs = [self.store.get(run.id) for run in self.store.list()]
        whole = min(runs, key=lambda run: run.started)
        for part in sorted(runs, key=lambda run: run.started)[1:]:
            whole = whole.resumed_by(part)
        self.run = whole

    def marks(self) -> list[tuple[str, str | None]]:
        assert self.run is not None
        return [(call.messages[0]["content"], call.superseded) for call in self.run.completions]


@pytest.fixture(params=["rollout", "install"])
def whole(request: pytest.FixtureRequest) -> Whole:
    return Whole(None if request.param == "rollout" else request.getfixturevalue("store"))


INPUT = {"said": []}


@pytest.mark.parametrize("saver", [None, InMemorySaver])
async def test_a_retry_repeats_all_that_the_attempt_enclosed(saver: Any, whole: Whole) -> None:
    await whole(graph("error", saver and saver(), retry=AT_ONCE), INPUT)
    again: Any = [("draft", "retry"), ("flaky", "retry"), ("draft", None), ("flaky", None)]
    assert whole.marks() == [("begin", None), *again, ("end", None)]


@pytest.mark.parametrize("saver", [None, InMemorySaver])
async def test_a_retried_task_repeats_no_other(saver: Any, whole: Whole) -> None:
    """The policy of an entrypoint holds for each of its tasks. What becomes of tasks where the entrypoint itself fails
    is in test_trajectory."""
    await whole(flow("error", saver and saver(), retry=AT_ONCE), INPUT)
    assert whole.marks() == [("begin", None), ("draft", None), ("flaky", "retry"), ("flaky", None)]


async def test_a_graph_that_goes_on_after_an_error_keeps_what_its_subgraph_had_done(whole: Whole) -> None:
    made = graph("error", InMemorySaver())
    await whole(made, INPUT)
    await whole(made, None)
    done = [("begin", None), ("draft", None), ("flaky", "retry"), ("flaky", None), ("end", None)]
    assert whole.marks() == done
    assert whole.run is not None
    assert whole.run.output["said"].count("draft") == 1


async def test_a_flow_that_goes_on_after_an_error_keeps_its_tasks(whole: Whole) -> None:
    made = flow("error", InMemorySaver())
    await whole(made, INPUT)
    await whole(made, None)
    first = [("begin", "retry"), ("draft", None), ("flaky", "retry")]
    assert whole.marks() == [*first, ("begin", None), ("flaky", None)]


async def test_a_resumed_graph_keeps_what_its_subgraph_had_done(whole: Whole) -> None:
    made = graph("interrupt", InMemorySaver())
    await whole(made, INPUT)
    await whole(made, Command(resume="yes"))
    done = [("begin", None), ("draft", None), ("flaky", "resume"), ("flaky", None), ("end", None)]
    assert whole.marks() == done
    assert whole.run is not None
    assert whole.run.waiting == set()


async def test_a_resumed_flow_keeps_its_tasks(whole: Whole) -> None:
    made = flow("interrupt", InMemorySaver())
    await whole(made, INPUT)
    await whole(made, Command(resume="yes"))
    assert whole.marks() == [("begin", "resume"), ("draft", None), ("begin", None), ("flaky", None)]
    assert whole.run is not None
    assert whole.run.output["said"] == ["begin", "draft", "flaky"]


@pytest.mark.parametrize("trouble", ["error", "interrupt"])
async def test_a_subgraph_that_keeps_no_checkpoints_begins_anew(trouble: Trouble, whole: Whole) -> None:
    made = graph(trouble, InMemorySaver(), inner=False)
    await whole(made, INPUT)
    await whole(made, None if trouble == "error" else Command(resume="yes"))
    why = {"error": "retry", "interrupt": "resume"}[trouble]
    again: Any = [("draft", why), ("flaky", why), ("draft", None), ("flaky", None)]
    if trouble == "interrupt":  # the subgraph that begins anew asks again, with the answer at hand
        assert whole.marks()[:4] == [("begin", None), *again[:2], ("draft", None)]
    else:
        assert whole.marks() == [("begin", None), *again, ("end", None)]


async def test_a_run_that_goes_on_after_its_retries_goes_on_from_the_first_attempt(whole: Whole) -> None:
    """LangGraph looks for the ids of the first attempt, and has the results of its tasks; the retry's are lost."""
    calls = itertools.count()

    @task
    async def draft() -> str:
        return await say("draft")

    @entrypoint(checkpointer=InMemorySaver(), retry_policy=RetryPolicy(initial_interval=0.001, max_attempts=2))
    async def run(inputs: Any) -> str:
        said = await draft()
        if next(calls) < 2:
            raise ConnectionError("not yet")
        await say("end")
        return said

    await whole(run, INPUT)
    assert whole.marks() == [("draft", "retry"), ("draft", None)]
    await whole(run, None)
    assert whole.marks() == [("draft", None), ("draft", "retry"), ("end", None)]


async def test_a_fork_leaves_what_came_after_its_checkpoint(whole: Whole) -> None:
    made = graph("none", InMemorySaver())
    await whole(made, INPUT)
    before = [state async for state in made.aget_state_history(ON)][1]
    await whole(made, None, before.config)
    rest = [("draft", None), ("flaky", None)]
    assert whole.marks() == [("begin", None), *rest, ("end", "fork"), ("end", None)]


async def test_a_fork_of_a_flow_leaves_all_of_it(whole: Whole) -> None:
    made = flow("none", InMemorySaver())
    await whole(made, INPUT)
    start = [state async for state in made.aget_state_history(ON)][-1]
    await whole(made, None, start.config)
    once = [("begin", None), ("draft", None), ("flaky", None)]
    assert whole.marks() == [*((said, "fork") for said, _ in once), *once]


async def test_a_fork_with_another_state_leaves_what_came_after_its_checkpoint(whole: Whole) -> None:
    made = graph("none", InMemorySaver())
    await whole(made, INPUT)
    states = [state async for state in made.aget_state_history(ON)]
    before = next(state for state in states if state.next == ("sub",))
    await made.aupdate_state(before.config, {"said": ["edited"]})
    await whole(made, None)
    left = [("draft", "fork"), ("flaky", "fork"), ("end", "fork")]
    assert whole.marks() == [("begin", None), *left, ("draft", None), ("flaky", None), ("end", None)]


async def test_a_failed_node_that_runs_on_another_state_is_repeated(whole: Whole) -> None:
    made = graph("error", InMemorySaver())
    await whole(made, INPUT)
    await made.aupdate_state(ON, {"said": ["edited"]}, as_node="begin")
    await whole(made, None)
    first = [("begin", None), ("draft", "retry"), ("flaky", "retry")]
    assert whole.marks() == [*first, ("draft", None), ("flaky", None), ("end", None)]


@pytest.mark.parametrize(("trouble", "mark"), [("error", "retry"), ("interrupt", "resume")])
async def test_a_node_of_a_subgraph_whose_state_was_edited_is_repeated(
    trouble: Trouble, mark: str, whole: Whole
) -> None:
    made = graph(trouble, InMemorySaver())
    await whole(made, INPUT)
    (waiting,) = (await made.aget_state(ON, subgraphs=True)).tasks
    await made.aupdate_state(waiting.state.config, {"said": ["edited"]})
    await whole(made, None if trouble == "error" else Command(resume="y"))
    assert whole.marks() == [("begin", None), ("draft", None), ("flaky", mark), ("flaky", None), ("end", None)]


async def test_a_function_that_goes_back_in_a_thread_leaves_what_came_after() -> None:
    made = graph("none", InMemorySaver())
    other = graph("none", InMemorySaver())

    async def agent(question: str) -> Any:
        await made.ainvoke(INPUT, ON)
        await other.ainvoke(INPUT, {"configurable": {"thread_id": "other"}})
        before = [state async for state in made.aget_state_history(ON)][1]
        return (await made.ainvoke(None, before.config))["said"]

    found = await rollout(agent, "x")
    assert found.error is None
    marks = [(call.messages[0]["content"], call.superseded) for call in found.completions]
    once = [("begin", None), ("draft", None), ("flaky", None), ("end", None)]
    assert marks == [*once[:3], ("end", "fork"), *once, ("end", None)]


async def test_several_runs_of_a_thread_with_inputs_of_their_own_all_count() -> None:
    made = graph("none", InMemorySaver())

    async def agent(question: str) -> Any:
        for _ in range(2):
            await made.ainvoke(INPUT, ON)
        return await graph("none").ainvoke(INPUT)

    found = await rollout(agent, "x")
    assert [call.superseded for call in found.completions] == [None] * 12


@pytest.mark.parametrize("make", [graph, flow])
async def test_without_a_checkpointer_nothing_goes_on(make: Any) -> None:
    made = make("error")
    await rollout(made, INPUT)
    for given in (None, Command(resume="yes")):
        found = await rollout(made, given)
        assert found.error is not None
        assert found.completions == []
    with pytest.raises(ValueError, match="No checkpointer"):
        [state async for state in made.aget_state_history(ON)]


@pytest.mark.parametrize(
    ("namespace", "parent"),
    [("a:1", ""), ("a:1|b:2", "a:1"), ("a:1|2|b:3", "a:1|2"), ("a:1|2", ""), ("a:1|2|b:3|1", "a:1|2"), ("", "")],
)
def test_the_graph_of_a_node(namespace: str, parent: str) -> None:
    assert parent_namespace(namespace) == parent
