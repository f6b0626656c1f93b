"""What scenarios are known by; which attempts at a node count, through real graphs; and a run with the run that resumed
it, as a single one."""

from __future__ import annotations

import asyncio
import operator
import os
import subprocess
import sys
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

from art_langgraph import Scenario, Trajectory, TrajectoryGroup, rollout
from art_langgraph.trajectory import CompletionCall, scenario_id
from tests.support.runs.chat_models import Answering

AT_ONCE = RetryPolicy(initial_interval=0.001, jitter=False)


class Said(TypedDict):
    said: Annotated[list[str], operator.add]


def marks(found: Trajectory) -> list[tuple[str | None, str | None]]:
    return [(call.node, call.superseded) for call in found.completions]


def drafts(model: Any, fails: int) -> Any:
    """A subgraph of a draft and a check, of which the check fails some times."""
    tries = iter(range(100))

    async def draft(state: Said) -> dict[str, list[str]]:
        return {"said": [(await model.ainvoke("x")).text]}

    async def check(state: Said) -> dict[str, list[str]]:
        answer = await model.ainvoke("x")
        if next(tries) < fails:
            raise ConnectionError("not yet")
        return {"said": [answer.text]}

    graph = StateGraph(Said).add_node("draft", draft).add_node("check", check)
    return graph.add_edge(START, "draft").add_edge("draft", "check").compile()


@pytest.mark.parametrize("checkpointer", [None, InMemorySaver()])
@pytest.mark.parametrize("fan_out", [False, True])
async def test_a_retry_repeats_all_that_the_failed_attempts_enclosed(checkpointer: Any, fan_out: bool) -> None:
    graph = StateGraph(Said).add_node("work", drafts(Answering(), fails=2), retry_policy=AT_ONCE)
    if fan_out:
        graph.add_conditional_edges(START, lambda _: [Send("work", {"said": []})], ["work"])
    else:
        graph.add_edge(START, "work")
    found = await rollout(graph.compile(checkpointer=checkpointer), {"said": []})
    assert found.error is None
    assert marks(found) == [("draft", "retry"), ("check", "retry")] * 2 + [("draft", None), ("check", None)]
    assert len(found.completion_ids) == 2


async def test_a_retry_repeats_graphs_two_levels_down_and_no_sibling() -> None:
    model, tries = Answering(), iter(range(100))

    async def ends(state: Said) -> dict[str, list[str]]:
        if next(tries) == 0:
            raise ConnectionError("not yet")
        return {}

    async def beside(state: Said) -> dict[str, list[str]]:
        return {"said": [(await model.ainvoke("x")).text]}

    middle = StateGraph(Said).add_node("inner", drafts(model, fails=0)).add_node("ends", ends)
    whole = StateGraph(Said).add_node("beside", beside)
    whole.add_node("middle", middle.add_edge(START, "inner").add_edge("inner", "ends").compile(), retry_policy=AT_ONCE)
    whole.add_edge(START, "beside").add_edge("beside", "middle")
    found = await rollout(whole.compile(checkpointer=InMemorySaver()), {"said": []})
    once = [("draft", None), ("check", None)]
    assert marks(found) == [("beside", None), ("draft", "retry"), ("check", "retry"), *once]


async def test_langchains_retry_of_a_graph_or_of_a_chain_repeats_what_it_encloses() -> None:
    model, tries = Answering(), iter(range(100))

    async def parse(answer: Any) -> str:
        if next(tries) == 0:
            raise ValueError("not parsed")
        return str(answer.text)

    chain = (model | RunnableLambda(parse)).with_retry(wait_exponential_jitter=False)

    async def node(state: Said) -> dict[str, list[str]]:
        await model.ainvoke("before")
        return {"said": [await chain.ainvoke("x")]}

    parsed = StateGraph(Said).add_node("n", node).add_edge(START, "n").compile()
    found = await rollout(parsed, {"said": []})
    assert found.error is None
    assert [call.superseded for call in found.completions] == [None, "retry", None]
    found = await rollout(drafts(model, fails=1).with_retry(wait_exponential_jitter=False), {"said": []})
    assert found.error is None
    assert marks(found) == [("draft", "retry"), ("check", "retry"), ("draft", None), ("check", None)]


async def test_a_branch_that_failed_before_a_fallback_does_not_count() -> None:
    first, second = Answering(says="first"), Answering(says="second")

    async def fails(answer: Any) -> str:
        raise ValueError("not parsed")

    for fallback in (second, second | RunnableLambda(lambda answer: answer)):
        chain = (first | RunnableLambda(fails)).with_fallbacks([fallback])

        async def node(state: Said, chain: Any = chain) -> dict[str, list[str]]:
            return {"said": [(await chain.ainvoke("x")).text]}

        found = await rollout(StateGraph(Said).add_node("n", node).add_edge(START, "n").compile(), {"said": []})
        assert found.output["said"] == ["second"]
        assert [call.superseded for call in found.completions] == ["retry", None]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_graph_before_a_fallback_counts_unless_it_failed(fails: bool) -> None:
    first, second = drafts(Answering(says="first"), fails=int(fails)), drafts(Answering(says="second"), fails=0)

    async def node(state: Said) -> Any:
        return await first.with_fallbacks([second]).ainvoke({"said": []})

    found = await rollout(StateGraph(Said).add_node("n", node).add_edge(START, "n").compile(), {"said": []})
    assert found.output["said"] == [("second" if fails else "first")] * 2
    assert [call.superseded for call in found.completions] == (["retry"] * 2 if fails else []) + [None] * 2


async def test_a_retry_of_a_batch_repeats_the_input_that_failed() -> None:
    model, tries = Answering(), iter(range(100))

    async def asks(text: str) -> str:
        answer = await model.ainvoke(text)
        if text == "first" and next(tries) == 0:
            raise ValueError("not parsed")
        return answer.text

    async def node(state: Said) -> dict[str, list[str]]:
        before = await RunnableLambda(asks).ainvoke("before")
        chain = RunnableLambda(asks).with_retry(wait_exponential_jitter=False)
        return {"said": [before, *await chain.abatch(["first", "second"])]}

    found = await rollout(StateGraph(Said).add_node("n", node).add_edge(START, "n").compile(), {"said": []})
    assert found.error is None
    texts = sorted((call.messages[0]["content"], str(call.superseded)) for call in found.completions)
    assert texts == [("before", "None"), ("first", "None"), ("first", "retry"), ("second", "None")]


async def test_of_calls_made_at_once_those_that_were_not_chosen_count_too() -> None:
    async def node(state: Said) -> dict[str, list[str]]:
        answers = await asyncio.gather(*(Answering(says=said).ainvoke("x") for said in ("good", "better")))
        return {"said": [max(answer.text for answer in answers)]}

    found = await rollout(StateGraph(Said).add_node("n", node).add_edge(START, "n").compile(), {"said": []})
    assert found.output["said"] == ["good"]
    assert len(found.completion_ids) == 2, "nobody but the graph knows which was used: see what-counts.md"


async def test_langchains_retry_of_a_tool_repeats_what_it_encloses() -> None:
    model, tries = Answering(), iter(range(100))

    @tool
    async def ask(question: str) -> str:
        """Asks."""
        answer = await model.ainvoke(question)
        if next(tries) == 0:
            raise ValueError("not parsed")
        return str(answer.text)

    repeated = ask.with_retry(wait_exponential_jitter=False)

    async def node(state: Said) -> dict[str, list[str]]:
        return {"said": [await repeated.ainvoke({"question": "x"})]}

    found = await rollout(StateGraph(Said).add_node("n", node).add_edge(START, "n").compile(), {"said": []})
    assert found.error is None
    assert [call.superseded for call in found.completions] == ["retry", None]


async def test_a_middleware_that_calls_a_tool_again_repeats_what_it_encloses() -> None:
    model, tries = Answering(), iter(range(100))

    class Calling(Answering):
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

        def _generate(self, messages: Any, *rest: Any, **options: Any) -> Any:
            result = super()._generate(messages, *rest, **options)
            if len(messages) == 1:
                call = {"name": "ask", "args": {"question": "x"}, "id": "call-1", "type": "tool_call"}
                result.generations[0].message = result.generations[0].message.model_copy(update={"tool_calls": [call]})
            return result

    @tool
    async def ask(question: str) -> str:
        """Asks."""
        answer = await model.ainvoke(question)
        if next(tries) == 0:
            raise ValueError("not parsed")
        return str(answer.text)

    again = ToolRetryMiddleware(max_retries=2, initial_delay=0.001, jitter=False)
    found = await rollout(create_agent(Calling(), [ask], middleware=[again]), "go")
    assert found.error is None
    assert marks(found) == [("model", None), ("tools", "retry"), ("tools", None), ("model", None)]


async def test_an_answer_that_comes_after_its_attempt_failed_does_not_count() -> None:
    model, failed, tries = Answering(), asyncio.Event(), iter(range(100))
    late: list[asyncio.Task[Any]] = []

    async def node(state: Said) -> dict[str, list[str]]:
        async def slow() -> None:
            await failed.wait()
            await model.ainvoke("late")

        if next(tries) == 0:
            late.append(asyncio.create_task(slow()))
            raise ConnectionError("not yet")
        failed.set()
        await late[0]
        return {"said": [(await model.ainvoke("x")).text]}

    graph = StateGraph(Said).add_node("n", node, retry_policy=AT_ONCE).add_edge(START, "n").compile()
    found = await rollout(graph, {"said": []})
    assert [(call.messages[0]["content"], call.superseded) for call in found.completions] == [
        ("late", "retry"),
        ("x", None),
    ]


async def test_a_retried_entrypoint_repeats_its_tasks() -> None:
    model, tries = Answering(), iter(range(100))

    @task
    async def work(number: int) -> str:
        return (await model.ainvoke(str(number))).text

    @entrypoint(checkpointer=InMemorySaver(), retry_policy=AT_ONCE)
    async def flow(inputs: dict[str, Any]) -> str:
        await work(0)
        if next(tries) == 0:
            raise ConnectionError("not yet")
        return await work(1)

    found = await rollout(flow, {"x": 1})
    assert found.error is None
    assert [(call.messages[0]["content"], call.superseded) for call in found.completions] == [
        ("0", "retry"),
        ("0", None),
        ("1", None),
    ]


@pytest.mark.parametrize(("kept", "again"), [(None, None), (False, "resume")])
async def test_a_resume_goes_on_in_subgraphs_that_keep_checkpoints(kept: Any, again: str | None) -> None:
    model = Answering()
    inner = drafts(model, fails=0)
    inner.checkpointer = kept

    async def node(state: Said) -> dict[str, list[str]]:
        said = (await inner.ainvoke({"said": []}))["said"]
        return {"said": [*said, interrupt("?")]}

    graph = StateGraph(Said).add_node("n", node).add_edge(START, "n").compile(checkpointer=InMemorySaver())
    found = await rollout(graph, {"said": []}, resume=lambda _: "yes")
    assert found.error is None
    first = [("draft", again), ("check", again)]
    assert marks(found) == (first if again is None else [*first, ("draft", None), ("check", None)])


async def test_a_run_and_the_run_that_resumed_it_are_a_single_trajectory() -> None:
    model = Answering()

    async def first(state: Said) -> dict[str, list[str]]:
        return {"said": [(await model.ainvoke("first")).text]}

    async def asks(state: Said) -> dict[str, list[str]]:
        draft = await model.ainvoke("draft")
        return {"said": [draft.text, interrupt("?")]}

    graph = StateGraph(Said).add_node("first", first).add_node("asks", asks)
    compiled = graph.add_edge(START, "first").add_edge("first", "asks").compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    begun = await rollout(compiled, {"said": ["question"]}, config=config)
    assert len(begun.waiting) == 1
    ended = await rollout(compiled, Command(resume="yes"), lambda _: 1.0, config=config)
    assert ended.waiting == set()
    whole = begun.resumed_by(ended)
    assert marks(whole) == [("first", None), ("asks", "resume"), ("asks", None)]
    assert (whole.id, whole.scenario, whole.reward) == (begun.id, begun.scenario, 1.0)
    assert whole.output == ended.output
    assert whole.waiting == set()
    assert marks(begun) == [("first", None), ("asks", None)], "the parts stay as they are"


def test_scenarios_that_differ_in_metadata_are_different() -> None:
    seeds = [Scenario(input="play", metadata={"seed": seed}) for seed in (1, 1, 2)]
    assert seeds[0].id == seeds[1].id != seeds[2].id
    runs = [Trajectory(scenario=scenario) for scenario in seeds]
    assert [len(group.trajectories) for group in TrajectoryGroup.by_scenario(runs)] == [2, 1]
    assert Scenario(input="play").id == scenario_id("play") != seeds[0].id
    assert Scenario(input="play", metadata={"a": 1, "b": 2}).id == Scenario(input="play", metadata={"b": 2, "a": 1}).id
    assert Scenario(id="mine", input="play", metadata={"seed": 1}).id == "mine"


_ID = """
from art_langgraph import Scenario
def check(run): return 1.0
print(Scenario(input="x", metadata={"words": set("abcdefgh"), "check": check, "half": "\\ud83d"}).id)
"""


def test_an_id_is_the_same_in_every_process() -> None:
    def id_with(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run([sys.executable, "-c", _ID], capture_output=True, text=True, env=environment).stdout

    assert id_with("1") == id_with("2") != ""


def test_an_address_in_the_text_of_a_task_is_part_of_it() -> None:
    texts = [f"Which token is at {address}?" for address in ("0xdAC1", "0xA0b8")]
    assert len({Scenario(input=text).id for text in texts}) == 2


def test_tasks_without_an_id_are_told_apart() -> None:
    ids = {Scenario.of({"id": None, "input": text}).id for text in ("x", "y")}
    assert ids == {Scenario(input=text).id for text in ("x", "y")}


@pytest.mark.parametrize(("reward", "own", "scored"), [(0.0, None, True), (None, 0.0, True), (None, None, False)])
def test_a_run_is_scored_by_its_reward_or_that_of_a_completion(
    reward: float | None, own: float | None, scored: bool
) -> None:
    call = CompletionCall(id="a", started=0, reward=own)
    assert Trajectory(scenario=Scenario(input="x"), reward=reward, completions=[call]).scored is scored
