"""What may be run: compiled graphs, factories and functions, and texts for graphs of messages or of text."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableLambda
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph

from art_langgraph import RolloutsFailed, Scenario, Trajectory, evaluate, gather, rollout
from art_langgraph.loop.graphs import GraphSource
from tests.support.clock import run_limits
from tests.support.patience import PATIENCE
from trainer_server.wire import ConfigError


def echo() -> StateGraph[Any]:
    def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"heard {state['messages'][-1].text}")]}

    return StateGraph(MessagesState).add_node("node", node).add_edge(START, "node")


class Question(TypedDict):
    question: str


def said(found: Trajectory) -> str:
    assert found.error is None
    return str(found.output["messages"][-1].text)


async def two(state: Any, tools: Any) -> Runnable[Any, Any]:
    raise AssertionError("called")


def three(question: str, run: Any, tools: Any) -> str:
    raise AssertionError("called")


async def generator(scenario: Scenario) -> AsyncIterator[Any]:
    yield echo().compile()


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (echo(), r"a StateGraph has to be compiled .* call \.compile\(\)"),
        ("agent", "a str cannot be run: pass a compiled graph, or a function"),
        (two, "two needs state, tools: a graph factory takes the scenario or nothing"),
        (three, "three needs question, run, tools: a function takes the scenario's input and the run"),
        (generator, "generator is a generator: .*asynccontextmanager"),
    ],
)
async def test_what_is_no_graph_is_refused_before_anything_runs(graph: Any, message: str) -> None:
    for run in (rollout(graph, "x", lambda _: 1.0), gather(graph, ["x"], 2), evaluate(graph, ["x"], lambda _: 1.0)):
        with pytest.raises(ConfigError, match=message):
            await run


async def annotated(scenario: Scenario) -> CompiledStateGraph[Any, Any, Any, Any]:
    return echo().compile()


@asynccontextmanager
async def managed(scenario: Scenario) -> AsyncIterator[Runnable[Any, Any]]:
    yield echo().compile()


class Factory:
    async def __call__(self, scenario: Scenario) -> Runnable[Any, Any]:
        return echo().compile()


@pytest.mark.parametrize(
    "factory",
    [
        annotated,
        managed,
        Factory(),
        lambda: echo().compile(),
        lambda scenario: echo().compile(),
        functools.partial(annotated),
    ],
)
async def test_factories_make_a_graph_for_each_run(factory: Callable[..., Any]) -> None:
    assert said(await rollout(factory, "hi")) == "heard hi"


def build_graph(model: str, scenario: Scenario | None = None) -> Any:
    assert model == "chosen"
    return echo().compile()


def by_keyword(*, model: str = "chosen") -> Any:
    return build_graph(model)


def by_any_keyword(**options: Any) -> Any:
    assert options == {}
    return echo().compile()


def by_default(model: str = "chosen") -> Any:
    return build_graph(model)


@pytest.mark.parametrize(
    "factory", [functools.partial(build_graph, model="chosen"), by_keyword, by_any_keyword, by_default]
)
async def test_parameters_with_defaults_are_no_scenarios(factory: Callable[..., Any]) -> None:
    assert said(await rollout(factory, "hi")) == "heard hi"


def by_name(scenario: Any = None) -> Any:
    assert isinstance(scenario, Scenario)
    return echo().compile()


def by_annotation(task: Scenario | None = None) -> Any:
    return by_name(task)


def by_position(*given: Any) -> Any:
    return by_name(*given)


@pytest.mark.parametrize("factory", [by_name, by_annotation, by_position])
async def test_a_parameter_that_says_so_is_the_scenario(factory: Callable[..., Any]) -> None:
    assert said(await rollout(factory, "hi")) == "heard hi"


async def test_a_factory_that_raises_is_told_before_the_first_run() -> None:
    calls = []

    def factory(scenario: Scenario) -> Runnable[Any, Any]:
        calls.append(scenario.id)
        raise OSError("no database")

    with pytest.raises(ConfigError, match="the graph factory factory raised: OSError: no database"):
        await gather(factory, ["a", "b"], n=4, reward=lambda _: 1.0)
    assert len(calls) <= 8  # those that were waiting for the first call were cancelled
    with pytest.raises(ConfigError, match=r"gave a StateGraph, not a compiled graph; return graph\.compile\(\)"):
        await gather(lambda: echo(), ["a"], n=2)


async def test_a_factory_that_raises_later_fails_its_run_alone() -> None:
    count = iter(range(9))

    def factory() -> Runnable[Any, Any]:
        if next(count) == 2:
            raise OSError("once")
        return echo().compile()

    (group,) = await gather(factory, ["a"], n=4, progress=False)
    assert sorted(str(run.error) for run in group.trajectories) == ["None", "None", "None", "OSError: once"]


async def test_a_factory_that_gives_no_graph_later_fails_its_run_alone() -> None:
    count = iter(range(9))

    def factory() -> Runnable[Any, Any]:
        return echo() if next(count) == 2 else echo().compile()  # type: ignore[return-value]

    (group,) = await gather(factory, ["a"], n=4, progress=False)
    (error,) = [run.error for run in group.trajectories if run.error]
    assert error.startswith("ConfigError: the graph factory ")
    assert "gave a StateGraph, not a compiled graph" in error


async def test_an_error_of_a_function_that_does_not_say_what_it_makes_is_the_runs() -> None:
    def unknown(scenario: Scenario) -> Any:
        raise OSError("no database")

    assert (await rollout(unknown, "a")).error == "OSError: no database"
    with pytest.raises(RolloutsFailed, match="4 of 4 runs raised: OSError: no database"):
        await gather(unknown, ["a", "b"], n=2, progress=False)


async def test_an_inner_rollout_that_does_not_start_is_an_error_of_the_outer_run() -> None:
    def broken() -> Runnable[Any, Any]:
        raise OSError("no database")

    async def node(state: MessagesState) -> dict[str, Any]:
        await rollout(broken, "inner")
        return {}

    found = await rollout(StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile(), "outer")
    assert found.error == "NotStarted: the graph factory broken raised: OSError: no database"


async def test_the_time_of_a_run_begins_when_its_graph_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = run_limits(monkeypatch)

    @asynccontextmanager
    async def slow(scenario: Scenario) -> AsyncIterator[Runnable[Any, Any]]:
        limits.run_out()
        await asyncio.sleep(0)
        yield echo().compile()

    assert said(await rollout(slow, "hi", timeout=PATIENCE)) == "heard hi"


@pytest.mark.parametrize("given", ["two", Scenario(input="two"), Scenario(id="x", input="two", metadata={"answer": 2})])
async def test_a_text_is_what_a_user_says(given: Any) -> None:
    found = await rollout(echo().compile(), given)
    assert said(found) == "heard two"
    assert found.scenario.input == "two"
    assert said(await rollout(echo().compile().with_config(tags=["x"]), given)) == "heard two"
    assert said(await rollout(lambda: echo().compile(), given)) == "heard two"


async def test_a_graph_of_text_gets_the_text() -> None:
    @entrypoint()
    async def shout(text: str) -> str:
        return text.upper()

    def unnamed(value: Any) -> Any:
        return value

    assert (await rollout(shout, Scenario(input="two"))).output == "TWO"
    assert (await rollout(shout, "two")).output == "TWO"
    assert (await rollout(RunnableLambda(unnamed), "two")).output == {"messages": [("user", "two")]}


async def test_a_text_for_a_graph_of_other_fields_is_refused() -> None:
    graph = StateGraph(Question).add_node("n", lambda state: state).add_edge(START, "n").compile()
    with pytest.raises(ConfigError, match=r"has 'question' and no 'messages', so that the text 'two'"):
        await gather(graph, [{"question": "fine"}, "two"], 2)
    assert (await rollout(graph, {"question": "fine"})).output == {"question": "fine"}


def test_only_a_dict_with_id_and_input_is_a_scenario() -> None:
    assert Scenario.of({"input": "hello"}).input == {"input": "hello"}
    assert Scenario.of({"input": "hello", "metadata": {}}).input == {"input": "hello", "metadata": {}}
    assert Scenario.of({"id": "a", "input": "hello", "more": 1}).input == {"id": "a", "input": "hello", "more": 1}
    assert Scenario.of({"id": 3, "input": "hello", "metadata": {"k": 1}}) == Scenario(
        id="3", input="hello", metadata={"k": 1}
    )
    assert Scenario.of("hello") == Scenario(input="hello")
    assert Scenario.of([HumanMessage("x")]).input == [HumanMessage("x")]


def test_a_source_is_its_own_source() -> None:
    source = GraphSource.of(echo().compile())
    assert GraphSource.of(source) is source
