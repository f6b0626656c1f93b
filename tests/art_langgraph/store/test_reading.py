"""A run that stopped and the runs that resumed its thread: the store reads them as a single trajectory."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from art_langgraph import ARTCallbackHandler, Trajectory, TrajectoryStore, rollout
from art_langgraph.capture import flush, install, uninstall
from art_langgraph.credit import compare
from tests.support.runs.chat_models import Answering


class State(TypedDict):
    question: str
    said: Annotated[list[str], operator.add]


def person(questions: int = 1, model_first: bool = True, **options: Any) -> Any:
    """A graph whose node asks a model, a person some times, and the model again."""
    model = Answering()

    async def node(state: State) -> dict[str, list[str]]:
        first = [(await model.ainvoke("draft")).text] if model_first else []
        answers = [str(interrupt(number)) for number in range(questions)]
        return {"said": [*first, *answers, (await model.ainvoke(f"say {answers}")).text]}

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node")
    return graph.compile(checkpointer=InMemorySaver(), **options)


def asks(question: str) -> dict[str, Any]:
    return {"question": question, "said": []}


def on(thread: str, **more: str) -> Any:
    return {"configurable": {"thread_id": thread, **more}}


def marks(found: Trajectory) -> list[str | None]:
    return [call.superseded for call in found.completions]


@pytest.fixture
def store(store_place: str) -> TrajectoryStore:
    return TrajectoryStore(store_place)


@pytest.fixture
def installed(store: TrajectoryStore) -> Iterator[TrajectoryStore]:
    install(store)
    yield store
    uninstall()


async def test_each_thread_is_a_trajectory_of_its_own_scenario(installed: TrajectoryStore) -> None:
    graph = person()
    for thread in ("one", "two"):
        await graph.ainvoke(asks(thread), on(thread))
    for thread in ("one", "two"):
        await graph.ainvoke(Command(resume="yes"), on(thread))
    await asyncio.to_thread(flush)
    two, one = installed.list()
    assert [found.scenario.input["question"] for found in (one, two)] == ["one", "two"]
    assert one.scenario.id != two.scenario.id
    assert marks(one) == marks(two) == ["resume", None, None]
    assert one.output["said"] == ["fine", "yes", "fine"]
    assert len(installed) == 2
    assert installed.list(scenario=one.scenario.id) == [one]


async def test_the_reward_of_a_finished_thread_trains_what_came_before_the_interrupt(
    installed: TrajectoryStore,
) -> None:
    model = Answering()

    async def plan(state: State) -> dict[str, list[str]]:
        return {"said": [(await model.ainvoke("plan")).text]}

    async def ask(state: State) -> dict[str, list[str]]:
        return {"said": [str(interrupt("?"))]}

    graph = StateGraph(State).add_node("plan", plan).add_node("ask", ask)
    compiled = graph.add_edge(START, "plan").add_edge("plan", "ask").compile(checkpointer=InMemorySaver())
    for thread, answer in (("one", "good"), ("two", "bad")):
        await compiled.ainvoke(asks("same"), on(thread))
        handler = ARTCallbackHandler()
        await compiled.ainvoke(Command(resume=answer), {**on(thread), "callbacks": [handler]})
        await asyncio.to_thread(flush)
        found = installed.find(str(handler.trajectory().run_id))
        assert found is not None
        assert found.output["said"] == ["fine", answer], "also when the resumed run asked no model"
        installed.score(found.id, float(answer == "good"))
    (group,) = compare(installed.list(), "agent").groups
    assert [(run.reward, len(run.completions)) for run in group.trajectories] == [(0.0, 1), (1.0, 1)]


async def test_a_thread_that_is_resumed_twice_is_a_single_trajectory(store: TrajectoryStore) -> None:
    graph = person(questions=2)
    parts = [await rollout(graph, asks("x"), config=on("t"), store=store)]
    for answer in ("first", "second"):
        parts.append(await rollout(graph, Command(resume=answer), config=on("t"), store=store))
    (whole,) = store.list()
    assert whole.id == parts[0].id
    assert marks(whole) == ["resume", "resume", None, None]
    assert whole.output["said"] == ["fine", "first", "second", "fine"]
    for part in parts:
        assert store.get(part.id) == store.find(str(part.run_id)) == whole
    assert whole.error is None
    assert store.list(error=False) == [whole]
    store.score(parts[2].id, 0.5)
    assert store.list(min_reward=0.5)[0].reward == 0.5
    store.begin_step("agent", "step-1", [whole.id])
    store.end_step("agent", "step-1", 1)
    assert store.trained("agent") == {store.list()[0].id}


async def test_a_reward_of_the_later_run_is_newer_than_a_score_of_the_first(store: TrajectoryStore) -> None:
    graph = person()
    begun = await rollout(graph, asks("x"), lambda _: 0.0, config=on("t"), store=store)
    store.score(begun.id, 0.25)
    await rollout(graph, Command(resume="yes"), lambda _: 1.0, config=on("t"), store=store)
    assert [found.reward for found in store] == [1.0]
    store.score(begun.id, 0.5)
    assert [found.reward for found in store] == [0.5]


async def test_a_later_run_whose_reward_failed_is_not_trained_with_an_older_score(store: TrajectoryStore) -> None:
    graph = person(questions=2)
    begun = await rollout(graph, asks("x"), config=on("t"), store=store)
    store.score(begun.id, 1.0)
    parts = [begun, await rollout(graph, Command(resume="a"), lambda _: 1 / 0, config=on("t"), store=store)]
    (found,) = store
    assert found.reward is None
    assert str(found.reward_error).startswith("ZeroDivisionError: division by zero (test_reading.py, line ")
    parts.append(await rollout(graph, Command(resume="b"), config=on("t"), store=store))
    assert [found.reward for found in store] == [None], "nor is it when a third run has nothing to say"
    assert parts[0].resumed_by(parts[1]).resumed_by(parts[2]).reward is None
    store.score(begun.id, 0.5)
    assert [found.reward for found in store] == [0.5]


async def test_a_step_that_was_given_a_resumed_run_has_used_the_whole_run(store: TrajectoryStore) -> None:
    graph = person()
    begun = await rollout(graph, asks("x"), config=on("t"), store=store)
    ended = await rollout(graph, Command(resume="yes"), lambda _: 1.0, config=on("t"), store=store)
    store.begin_step("agent", "step-1", [ended.id])
    store.end_step("agent", "step-1", 1)
    assert store.trained("agent") == {begun.id} == {found.id for found in store}


async def test_a_run_that_stopped_at_a_breakpoint_goes_on_too(store: TrajectoryStore) -> None:
    graph = person(interrupt_after=["node"])
    await rollout(graph, asks("x"), config=on("t"), store=store)
    await rollout(graph, Command(resume="yes"), config=on("t"), store=store)
    await rollout(graph, None, config=on("t"), store=store)
    (whole,) = store.list()
    assert marks(whole) == ["resume", None, None]


async def test_a_run_that_goes_on_past_the_interrupted_node_waits_no_longer(store: TrajectoryStore) -> None:
    model = Answering()

    async def ask(state: State) -> dict[str, list[str]]:
        return {"said": [(await model.ainvoke("ask")).text, interrupt("?")]}

    async def send(state: State) -> dict[str, list[str]]:
        return {"said": [(await model.ainvoke("send")).text]}

    graph = StateGraph(State).add_node("ask", ask).add_node("send", send)
    compiled = graph.add_edge(START, "ask").add_edge("ask", "send").compile(checkpointer=InMemorySaver())
    begun = await rollout(compiled, asks("x"), config=on("t"), store=store)
    assert begun.waiting
    await compiled.aupdate_state(on("t"), {"said": ["by hand"]}, as_node="ask")
    await rollout(compiled, None, config=on("t"), store=store)
    (whole,) = store.list()
    assert whole.waiting == set()
    assert whole.output["said"] == ["by hand", "fine"]
    assert marks(whole) == [None, None], "the first answer was not asked for again"


async def test_another_branch_from_the_same_checkpoint_is_a_run_of_its_own(store: TrajectoryStore) -> None:
    graph = person()
    begun = await rollout(graph, asks("x"), config=on("t"), store=store)
    waiting = (await graph.aget_state(on("t"))).config
    first = await rollout(graph, Command(resume="one"), config=waiting, store=store)
    second = await rollout(graph, Command(resume="two"), config=waiting, store=store)
    assert [first.error, second.error] == [None, None]
    other, whole = store.list()
    assert (whole.id, marks(whole)) == (begun.id, ["resume", None, None])
    assert (other.id, marks(other)) == (second.id, [None, None])
    assert other.scenario == whole.scenario


async def test_a_question_in_a_thread_is_a_scenario_of_its_own(store: TrajectoryStore) -> None:
    graph = person()
    for question in ("one", "two"):
        await rollout(graph, asks(question), config=on("t"), resume=lambda _: "yes", store=store)
    assert [found.scenario.input["question"] for found in store] == ["two", "one"]
    await rollout(graph, asks("three"), config=on("t"), store=store)
    await rollout(graph, asks("four"), config=on("t"), store=store)
    assert len(store) == 4, "a new question does not resume the run that waits"


async def test_a_run_that_waits_before_it_asks_a_model_is_kept(installed: TrajectoryStore) -> None:
    graph = person(model_first=False)
    await graph.ainvoke(asks("x"), on("t"))
    await graph.ainvoke(Command(resume="yes"), on("t"))
    await asyncio.to_thread(flush)
    (whole,) = installed.list()
    assert whole.scenario.input["question"] == "x"
    assert marks(whole) == [None]


async def test_without_the_first_run_a_thread_is_a_scenario_of_its_own(store: TrajectoryStore) -> None:
    graph = person()
    for thread in ("one", "two"):
        await graph.ainvoke(asks(thread), on(thread))
    install(store)
    try:
        for thread in ("one", "two"):
            await graph.ainvoke(Command(resume="yes"), on(thread))
    finally:
        uninstall()
    assert [found.scenario.id for found in store] == ["thread-two", "thread-one"]


def answering_once(**options: Any) -> Any:
    """A graph that asks a model, and nobody else."""
    model = Answering()

    async def node(state: State) -> dict[str, list[str]]:
        return {"said": [(await model.ainvoke("x")).text]}

    return StateGraph(State).add_node("other", node).add_edge(START, "other").compile(**options)


@pytest.mark.parametrize("name", [None, "another"])
async def test_a_run_resumes_that_of_its_own_graph_where_another_graph_used_the_thread(
    store: TrajectoryStore, name: str | None
) -> None:
    graph, other = person(), answering_once(name=name, checkpointer=InMemorySaver())
    begun = await rollout(graph, asks("x"), config=on("1"), store=store)
    between = await rollout(other, asks("y"), config=on("1"), store=store)
    ended = await rollout(graph, Command(resume="yes"), config=on("1"), store=store)
    store.add(ended)  # as after a commit whose answer was lost
    assert [run.id for run in store] == [between.id, begun.id]
    assert [marks(run) for run in store] == [[None], ["resume", None, None]]
    assert {run.scenario.input["question"] for run in store} == {"x", "y"}


async def test_a_run_goes_on_from_a_breakpoint_of_its_own_graph(store: TrajectoryStore) -> None:
    graph = answering_once(checkpointer=InMemorySaver(), interrupt_before=["other"], name="stops")
    begun = await rollout(graph, asks("x"), config=on("1"), store=store)
    between = await rollout(answering_once(checkpointer=InMemorySaver()), asks("y"), config=on("1"), store=store)
    await rollout(graph, None, config=on("1"), store=store)
    assert [(run.id, len(run.completions)) for run in store] == [(between.id, 1), (begun.id, 1)]
    stranger = answering_once(checkpointer=InMemorySaver(), interrupt_before=["other"], name="not stored before")
    await stranger.ainvoke(asks("z"), on("1"))
    alone = await rollout(stranger, None, config=on("1"), store=store)
    assert [run.id for run in store] == [alone.id, between.id, begun.id]
