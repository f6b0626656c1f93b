"""Runs that stop and go on: at interrupts, at breakpoints, and in another rollout."""

from __future__ import annotations

import asyncio
import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from art_langgraph import Scenario, Trajectory, TrajectoryStore, compare_versions, evaluate, gather, rollout, train
from art_langgraph.loop.executors.base import Question
from tests.support.runs.chat_models import Answering
from trainer_server.wire import ConfigError


class State(TypedDict):
    question: str
    said: Annotated[list[str], operator.add]


def approved(**options: Any) -> Any:
    """A graph that drafts, lets a person approve, and sends."""
    model = Answering()

    async def draft(state: State) -> dict[str, list[str]]:
        return {"said": [(await model.ainvoke(f"draft {state['question']}")).text]}

    async def ask(state: State) -> dict[str, list[str]]:
        return {"said": [str(interrupt("send?"))]}

    async def send(state: State) -> dict[str, list[str]]:
        return {"said": [(await model.ainvoke(f"send {state['question']}")).text]}

    graph = StateGraph(State).add_node("draft", draft).add_node("ask", ask).add_node("send", send)
    graph.add_edge(START, "draft").add_edge("draft", "ask").add_edge("ask", "send")
    return graph.compile(checkpointer=InMemorySaver(), **options)


def on(thread: str, **more: str) -> Any:
    return {"configurable": {"thread_id": thread, **more}}


@pytest.mark.parametrize("stops", [{"interrupt_before": ["send"]}, {"interrupt_after": ["draft", "ask"]}])
async def test_a_run_goes_on_from_breakpoints_and_answers_interrupts(stops: dict[str, Any]) -> None:
    asked: list[list[Any]] = []

    def resume(values: list[Any]) -> str:
        asked.append(values)
        return "yes"

    found = await rollout(approved(**stops), {"question": "one", "said": []}, resume=resume)
    assert found.error is None
    assert asked == [["send?"]], "a breakpoint asks nothing"
    assert found.output["said"] == ["fine", "yes", "fine"]
    assert [call.node for call in found.completions] == ["draft", "send"]
    ended = await rollout(approved(**stops), {"question": "one", "said": []})
    assert "send" not in [node.node for node in ended.nodes], "without `resume` the run ends where it stops"


class Start(TypedDict):
    question: str


class Talk(TypedDict):
    said: Annotated[list[str], operator.add]


def asking(*names: str, loops: int = 1, inner: Any = None) -> Any:
    """A graph of subgraphs that ask at once, each of which ends by what it was answered, then a model call."""

    def ask(name: str) -> Any:
        async def node(state: Talk) -> dict[str, list[str]]:
            return {"said": [f"{name}: {interrupt(f'{name}?')}"]}

        return (
            StateGraph(Talk, input_schema=Start)
            .add_node("ask", node)
            .add_edge(START, "ask")
            .compile(checkpointer=inner)
        )

    async def ends(state: Talk) -> dict[str, list[str]]:
        return {"said": [(await Answering().ainvoke("x")).text]}

    graph = StateGraph(Talk, input_schema=Start).add_node("ends", ends)
    for name in names:
        graph.add_node(name, ask(name)).add_edge(START, name).add_edge(name, "ends")
    graph.add_conditional_edges("ends", lambda state: END if state["said"].count("fine") == loops else [*names])
    return graph.compile(checkpointer=InMemorySaver())


NOTHING: Any = {"question": "x"}


@pytest.mark.parametrize("loops", [1, 6])
async def test_interrupts_that_wait_at_once_are_each_answered(loops: int) -> None:
    asked: list[tuple[list[Any], str | None]] = []

    async def resume(question: Question) -> str:
        asked.append((list(question), question.id))
        return f"to {question[0]}"

    found = await rollout(asking("a", "b", loops=loops), NOTHING, resume=resume)
    assert found.error is None
    assert [values for values, _ in asked] == [["a?"], ["b?"]] * loops
    assert len({id for _, id in asked}) == len(asked), "each has an id of its own"
    assert {"a: to a?", "b: to b?"} <= set(found.output["said"])
    assert [call.superseded for call in found.completions] == [None] * loops


async def test_two_tools_that_a_person_approves_are_each_answered() -> None:
    class Calling(Answering):
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

        def _generate(self, messages: Any, *rest: Any, **options: Any) -> Any:
            result = super()._generate(messages, *rest, **options)
            if len(messages) == 1:
                calls = [{"name": "pay", "args": {"euros": at}, "id": f"c{at}", "type": "tool_call"} for at in (1, 2)]
                result.generations[0].message = result.generations[0].message.model_copy(update={"tool_calls": calls})
            return result

    @tool
    def pay(euros: int) -> str:
        """Pays."""
        return str(interrupt(euros))

    agent = create_agent(Calling(), [pay], checkpointer=InMemorySaver())
    found = await rollout(agent, "go", resume=lambda question: f"approved {question[0]}")
    assert found.error is None
    assert [message.text for message in found.messages[2:4]] == ["approved 1", "approved 2"]


@pytest.mark.parametrize("tasks", [2, 7])
@pytest.mark.parametrize("times", [1, 2])
async def test_tasks_that_ask_at_once_are_each_answered(tasks: int, times: int) -> None:
    """LangGraph shows one of them at a time."""

    @task
    async def ask(name: str) -> list[str]:
        return [f"{name}{number}: {interrupt('sure?')}" for number in range(times)]

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(inputs: Any) -> list[list[str]]:
        return list(await asyncio.gather(*(ask(name) for name in "abcdefg"[:tasks])))

    found = await rollout(flow, {}, resume=lambda _: "yes")
    assert found.error is None
    assert found.output == [[f"{name}{at}: yes" for at in range(times)] for name in "abcdefg"[:tasks]]


@pytest.mark.parametrize("answer", [None, False, {}, {"0" * 32: "x"}, {"type": "approve"}, ["yes"]])
async def test_an_answer_may_be_anything(answer: Any) -> None:
    for names in (["a"], ["a", "b"]):
        found = await rollout(asking(*names), NOTHING, resume=lambda _: answer)
        assert (found.error, found.output["said"][:-1]) == (None, [f"{name}: {answer}" for name in names])


async def test_answers_that_never_arrive_are_an_error() -> None:
    """Subgraphs that keep no checkpoints begin anew, and their interrupts have other ids than the answered ones."""
    found = await rollout(asking("a", "b", inner=False), NOTHING, resume=lambda _: "yes")
    assert found.error is not None
    assert "checkpointer=False" in found.error
    alone = await rollout(asking("a", inner=False), NOTHING, resume=lambda _: "yes")
    assert alone.error is None


async def test_evaluate_and_a_comparison_answer_several_interrupts() -> None:
    measured = await evaluate(
        asking("a", "b"), [NOTHING], reward=lambda run: float(len(run.output["said"])), resume=lambda _: "yes",
        progress=False,
    )  # fmt: skip
    assert [run.error for run in measured.trajectories] == [None]

    async def judge(group: Any) -> Any:
        for run in group.trajectories:
            run.reward = float(run.error is None)
        return group

    compared = await compare_versions(
        asking("a", "b"), [NOTHING], judge, policy="p", versions=(0, 0), resume=lambda _: "yes", progress=False
    )
    assert compared


async def test_a_run_that_began_at_a_checkpoint_goes_on_from_where_it_stopped() -> None:
    graph = approved()
    await rollout(graph, {"question": "one", "said": []}, config=on("t"), resume=lambda _: "no")
    history = [state async for state in graph.aget_state_history(on("t"))]
    before = next(state for state in history if state.next == ("draft",))
    found = await rollout(graph, None, config=before.config, resume=lambda _: "yes")
    assert found.error is None
    assert found.output["said"] == ["fine", "yes", "fine"]


@pytest.mark.parametrize("stored", [True, False])
async def test_a_resumed_rollout_has_the_scenario_of_its_thread(stored: bool, tmp_path: Path) -> None:
    graph, store = approved(), TrajectoryStore(tmp_path / "s.sqlite") if stored else None

    def reward(run: Trajectory) -> float:
        return float(run.scenario.metadata.get("answer") == run.scenario.input["question"])

    for thread in ("one", "two"):
        given = Scenario(input={"question": thread, "said": []}, metadata={"answer": thread})
        begun = await rollout(graph, given, config=on(thread), store=store)
        ended = await rollout(graph, Command(resume="yes"), reward, config=on(thread), store=store)
        assert ended.error is None
        assert (ended.scenario.id, ended.scenario.input) == (begun.scenario.id, begun.scenario.input)
        assert ended.reward == float(stored), "the store has the metadata of the task too"
    own = await rollout(graph, Scenario(id="mine", input=None), config=on("two"))
    assert own.scenario.id == "mine"


async def test_a_thread_that_nothing_knows_is_a_scenario_of_its_own() -> None:
    found = await rollout(approved(), Command(resume="yes"), config=on("unknown"))
    assert found.error is not None
    assert found.scenario.id == "thread-unknown"


async def test_several_runs_never_share_a_thread() -> None:
    graph, given, client = approved(), {"question": "one", "said": []}, cast(Any, None)
    shared = "config names the thread 't', which 2 runs would share.*leave thread_id out"
    with pytest.raises(ConfigError, match=shared):
        await gather(graph, [given], 2, config=on("t"), progress=False)
    with pytest.raises(ConfigError, match=shared):
        await evaluate(graph, [given, {**given, "question": "two"}], config=on("t"), progress=False)
    with pytest.raises(ConfigError, match=shared):
        await compare_versions(
            graph, [given], lambda group: group, policy="p", versions=(0, 1), config=on("t"), progress=False
        )
    with pytest.raises(ConfigError, match=r"run_config names the thread 't', which 24 runs"):
        async for _ in train(
            graph, [given], policy="p", reward=lambda _: 1.0, steps=3, client=client, groups_per_step=1,
            run_config=on("t"),
        ):  # fmt: skip
            pass
    (group,) = await gather(graph, [given], 1, config=on("t"), progress=False)
    assert group.trajectories[0].thread_id == "t", "a single run shares it with no other"
