"""Every shape a graph can have: each completion once per trajectory, in its place, nothing of anybody else's.

With ChatART and with a plain ChatOpenAI that points at the gateway.
"""

from __future__ import annotations

import asyncio
import operator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.caches import InMemoryCache
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import HumanMessage, RemoveMessage, trim_messages
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.errors import GraphRecursionError
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, RetryPolicy, Send, interrupt
from pydantic import BaseModel

from art_langgraph import (
    ARTCallbackHandler,
    ARTMiddleware,
    TrainerClient,
    Trajectory,
    TrajectoryStore,
    gather,
    rollout,
)
from art_langgraph.credit import group_refs
from tests.support.runs.chat_models import MakeModel
from tests.support.servers.trainer_server import TrainerServer


class Said(TypedDict):
    said: Annotated[list[str], operator.add]


async def check(found: Trajectory, *, error: bool = False) -> None:
    """What holds for every trajectory: each completion once, known to the ledger, with the tokens of its message."""
    assert (found.error is not None) == error, found.error
    ids = [one.id for one in found.completions if one.id]
    assert len(ids) == len(set(ids))
    async with TrainerClient() as trainer:
        for call in found.completions:
            if call.id and call.message and call.message.get("content"):
                row = await trainer.completion(call.id)
                assert "".join(map(chr, row.token_ids)) == call.message["content"]


def texts(found: Trajectory) -> list[str]:
    return [str((one.message or {}).get("content")) for one in found.completions]


@tool
def double(value: int) -> str:
    """Double a number."""
    return str(2 * value)


@tool
def broken(value: int) -> str:
    """Always fails."""
    raise ValueError("broken")


async def test_create_agent(make: MakeModel) -> None:
    agent = create_agent(make(), [double])
    found = await rollout(agent, 'call double {"value": 4}')
    await check(found)
    assert [(one.node, one.path) for one in found.completions] == [("model", ["model"])] * 2
    assert [(one.tool, one.result, one.node) for one in found.tool_calls] == [("double", "8", "tools")]


async def test_middleware_routes_an_agent_to_a_policy(connected: TrainerServer) -> None:
    middleware = ARTMiddleware(policy="agent", max_tokens=60)
    agent = create_agent(FakeListChatModel(responses=["never"]), [], middleware=[middleware])
    found = await rollout(agent, "say routed")
    await check(found)
    assert texts(found) == ["routed"]
    assert found.completions[0].policy == "agent"


async def test_functional_api(make: MakeModel) -> None:
    model = make()

    @task
    async def work(number: int) -> str:
        return (await model.ainvoke(f"say {number}")).text

    @entrypoint()
    async def flow(inputs: dict[str, Any]) -> list[str]:
        answers = await asyncio.gather(*(work(number) for number in range(3)))
        return [*answers, (await model.ainvoke("say end")).text]

    found = await rollout(flow, {"x": 1})
    await check(found)
    assert sorted(found.output) == ["0", "1", "2", "end"]
    works = [one for one in found.completions if one.node == "work"]
    assert sorted((one.branch, (one.message or {})["content"]) for one in works) == [(0, "0"), (1, "1"), (2, "2")]
    assert {tuple(one.path) for one in works} == {("flow", "work")}
    (flow_run,) = [node for node in found.nodes if node.node == "flow"]
    assert {one.parent for one in works} == {flow_run.attempt}


async def test_nested_subgraphs(make: MakeModel) -> None:
    model = make()

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"][-1:])]}

    inner = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()
    middle = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner").compile()

    async def call_inside(state: MessagesState) -> dict[str, Any]:
        return {"messages": (await middle.ainvoke(state))["messages"][-1:]}

    outer = StateGraph(MessagesState).add_node("middle", middle).add_node("by_hand", call_inside)
    found = await rollout(outer.add_edge(START, "middle").add_edge("middle", "by_hand").compile(), "say deep")
    await check(found)
    assert [one.path for one in found.completions] == [["middle", "inner", "ask"], ["by_hand", "inner", "ask"]]
    nodes = {node.attempt: node for node in found.nodes}
    first = found.completions[0]
    assert nodes[first.attempt].node == "ask"
    assert nodes[first.parent].node == "inner"
    assert nodes[nodes[first.parent].parent].node == "middle"


async def test_a_fan_out_of_fifty(make: MakeModel) -> None:
    model = make()

    async def work(state: dict[str, int]) -> dict[str, list[str]]:
        return {"said": [(await model.ainvoke(f"say {state['number']}")).text]}

    graph = StateGraph(Said).add_node("work", work)
    graph.add_conditional_edges(START, lambda _: [Send("work", {"number": number}) for number in range(50)])
    found = await rollout(graph.compile(), {"said": []})
    await check(found)
    assert len(found.completions) == 50
    assert {one.branch: (one.message or {})["content"] for one in found.completions} == {i: str(i) for i in range(50)}
    assert len({one.namespace for one in found.completions}) == 50


async def test_supervisor_with_handoffs(make: MakeModel) -> None:
    model = make()

    async def supervise(state: MessagesState) -> Command[Literal["worker", "__end__"]]:
        answer = await model.ainvoke(f"say order {len(state['messages'])}")
        return Command(goto="worker" if len(state["messages"]) < 3 else END, update={"messages": [answer]})

    async def work(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke("say done")]}

    async def hand_back(state: MessagesState) -> Command[Any]:
        return Command(goto="supervisor", graph=Command.PARENT, update={"messages": state["messages"][-1:]})

    worker = StateGraph(MessagesState).add_node("work", work).add_node("back", hand_back)
    worker.add_edge(START, "work").add_edge("work", "back")
    graph = StateGraph(MessagesState).add_node("supervisor", supervise).add_node("worker", worker.compile())
    found = await rollout(graph.add_edge(START, "supervisor").compile(), "go")
    await check(found)
    assert [one.path for one in found.completions] == [["supervisor"], ["worker", "work"], ["supervisor"]]
    assert all(one.superseded is None and one.trainable for one in found.completions)
    assert all(node.error is None for node in found.nodes)


async def test_a_loop_that_hits_the_recursion_limit(make: MakeModel) -> None:
    model = make()

    async def node(state: Said) -> dict[str, list[str]]:
        return {"said": [(await model.ainvoke(f"say {len(state['said'])}")).text]}

    graph = StateGraph(Said).add_node("n", node).add_edge(START, "n").add_edge("n", "n").compile()
    found = await rollout(graph, {"said": []}, config={"recursion_limit": 5})
    await check(found, error=True)
    assert GraphRecursionError.__name__ in str(found.error)
    assert len(found.completions) == 5
    assert [one.step for one in found.completions] == [1, 2, 3, 4, 5]


async def test_a_retry_of_a_subgraph_supersedes_what_it_did(make: MakeModel) -> None:
    model, tries = make(), []

    async def ask(state: Said) -> dict[str, list[str]]:
        return {"said": [(await model.ainvoke("say inner")).text]}

    async def fail(state: Said) -> dict[str, list[str]]:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("once")
        return {"said": ["ok"]}

    inner = StateGraph(Said).add_node("ask", ask).add_node("fail", fail).add_edge(START, "ask").add_edge("ask", "fail")
    graph = StateGraph(Said).add_node("inner", inner.compile(), retry_policy=RetryPolicy(initial_interval=0.01))
    found = await rollout(graph.add_edge(START, "inner").compile(), {"said": []})
    await check(found)
    assert [one.superseded for one in found.completions] == ["retry", None]


class Answer(BaseModel):
    """An answer."""

    value: int


@pytest.mark.parametrize("method", ["function_calling", "json_schema", "json_mode"])
async def test_structured_output(
    make: MakeModel, method: Literal["function_calling", "json_schema", "json_mode"]
) -> None:
    model = make().with_structured_output(Answer, method=method)

    async def node(state: MessagesState) -> dict[str, Any]:
        answer = await model.ainvoke('say {"value": 3}')
        return {"messages": [("ai", str(answer))]}

    found = await rollout(StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile(), "x")
    await check(found)
    (call,) = found.completions
    assert call.trainable
    assert found.output["messages"][-1].text == "value=3"


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # LangChain's, of openai's parsed message
async def test_structured_output_that_is_streamed(make: MakeModel) -> None:
    """openai's helper keeps of a stream what its last chunk says, which has the usage alone."""
    model, handler = make(stream_usage=True).with_structured_output(Answer), ARTCallbackHandler()

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", str(await model.ainvoke('say {"value": 3}')))]}

    graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()
    async for _ in graph.astream({"messages": "x"}, {"callbacks": [handler]}, stream_mode="messages"):
        pass
    (call,) = handler.recorder.completions
    assert (call.trainable, call.version) == (True, 0)
    assert (call.message or {})["content"] == '{"value": 3}'


@pytest.mark.parametrize(
    ("method", "question"),
    [("json_schema", 'say {"value": "x"}'), ("json_schema", 'cut {"value": 1'), ("json_mode", 'cut {"value": 1')],
)
async def test_an_answer_that_cannot_be_parsed_counts(
    make: MakeModel, method: Literal["json_schema", "json_mode"], question: str
) -> None:
    model = make().with_structured_output(Answer, method=method)

    async def node(state: Said) -> None:
        await model.ainvoke(question)

    graph = StateGraph(Said).add_node("n", node).add_edge(START, "n").compile()
    (group,) = await gather(graph, [{"said": []}], 2, lambda run: float(run.error is None), progress=False)
    for run in group.trajectories:
        await check(run, error=True)
        assert (texts(run), run.versions, run.completions[0].error) == ([question[4:]], {"agent": [0]}, None)
        assert run.completions[0].sampled_tokens == len(question[4:])
    (reference,) = group_refs([group], policy="agent")
    assert [(run.reward, len(run.completions)) for run in reference.trajectories] == [(0.0, 1)] * 2


@pytest.mark.parametrize("how", ["retry", "fallbacks"])
async def test_of_a_repeated_call_an_answer_that_cannot_be_parsed_does_not_count(
    make: MakeModel, connected: TrainerServer, how: str
) -> None:
    first: Any = make().bind(response_format=Answer)
    chain = first.with_retry(wait_exponential_jitter=False) if how == "retry" else first.with_fallbacks([make()])
    connected.engine["answers"][:] = ['{"value": "x"}', '{"value": 3}']

    async def node(state: Said) -> dict[str, Any]:
        return {"said": [(await chain.ainvoke("go")).text]}

    run = await rollout(StateGraph(Said).add_node("n", node).add_edge(START, "n").compile(), {"said": []})
    assert run.output["said"] == ['{"value": 3}']
    assert [(call.error, call.superseded) for call in run.completions] == [(None, "retry"), (None, None)]


@pytest.mark.parametrize("mode", ["values", "updates", "messages", "debug", ["updates", "messages"]])
async def test_streaming_a_graph(make: MakeModel, mode: Any) -> None:
    model, handler = make(), ARTCallbackHandler()

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()
    async for _ in graph.astream({"messages": [("user", "say streamed")]}, {"callbacks": [handler]}, stream_mode=mode):
        pass
    (call,) = handler.recorder.completions
    assert call.trainable
    assert (call.message or {})["content"] == "streamed"
    async with TrainerClient() as trainer:
        assert "".join(map(chr, (await trainer.completion(str(call.id))).token_ids)) == "streamed"


async def test_astream_events(make: MakeModel) -> None:
    model, handler = make(), ARTCallbackHandler()

    async def node(state: MessagesState) -> dict[str, Any]:
        whole = None
        async for chunk in model.astream(state["messages"]):
            whole = chunk if whole is None else whole + chunk
        return {"messages": [whole]}

    graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()
    config: Any = {"callbacks": [handler]}
    events = [one async for one in graph.astream_events({"messages": [("user", "say e")]}, config, version="v2")]
    assert any(one["event"] == "on_chat_model_stream" for one in events)
    assert [one.trainable for one in handler.recorder.completions] == [True]


async def test_several_tools_an_unknown_one_and_one_that_fails(make: MakeModel) -> None:
    agent = create_agent(make(), [double])
    calls = 'calls [["double", {"value": 1}], ["double", {"value": 2}], ["nothing", {"x": 1}]]'
    found = await rollout(agent, calls)
    await check(found)
    by_id = {one.tool_call_id: one for one in found.tool_calls}
    assert len(found.tool_calls) == 3
    assert {by_id["call-double"].result, by_id["call-double-1"].result} == {"2", "4"}
    unknown = by_id["call-nothing-2"]
    assert (unknown.tool, unknown.arguments, unknown.is_error) == ("nothing", {"x": 1}, True)

    found = await rollout(create_agent(make(), [broken]), 'call broken {"value": 1}')
    assert "broken" in str(found.error)
    assert [one.is_error for one in found.tool_calls] == [True]
    assert len(found.completions) == 1


async def test_interrupt_and_resume_in_one_rollout(make: MakeModel) -> None:
    model = make()

    async def node(state: Said) -> dict[str, list[str]]:
        first = await model.ainvoke("say before")
        answer = interrupt("go on?")
        second = await model.ainvoke(f"say {answer}")
        return {"said": [first.text, second.text]}

    graph = StateGraph(Said).add_node("n", node).add_edge(START, "n").compile(checkpointer=InMemorySaver())
    seen: list[Any] = []

    def resume(values: list[Any]) -> str:
        seen.extend(values)
        return "yes"

    found = await rollout(graph, {"said": []}, resume=resume)
    await check(found)
    assert seen == ["go on?"]
    assert found.output["said"] == ["before", "yes"]
    assert [(text, one.superseded) for text, one in zip(texts(found), found.completions, strict=True)] == [
        ("before", "resume"), ("before", None), ("yes", None),
    ]  # fmt: skip
    assert [node.interrupted for node in found.nodes] == [True, False]
    left = await rollout(graph, {"said": []})
    assert left.error is None
    assert left.nodes[0].interrupted


async def test_a_resume_elsewhere_voids_what_the_first_run_did(make: MakeModel, tmp_path: Path) -> None:
    model, store = make(), TrajectoryStore(tmp_path / "store.sqlite")

    async def node(state: Said) -> dict[str, list[str]]:
        first = await model.ainvoke("say before")
        return {"said": [first.text, interrupt("?")]}

    graph = StateGraph(Said).add_node("n", node).add_edge(START, "n")
    config: Any = {"configurable": {"thread_id": "t1"}}
    file = str(tmp_path / "checkpoints.sqlite")
    async with AsyncSqliteSaver.from_conn_string(file) as saver:
        first = await rollout(graph.compile(checkpointer=saver), {"said": []}, config=config, store=store)
    async with AsyncSqliteSaver.from_conn_string(file) as saver:
        second = await rollout(graph.compile(checkpointer=saver), Command(resume="v"), config=config, store=store)
    assert second.output["said"] == ["before", "v"]
    (stored,) = store
    assert stored == store.get(first.id) == store.get(second.id)
    assert (stored.id, stored.output) == (first.id, second.output)
    assert [one.superseded for one in stored.completions] == ["resume", None]


async def test_time_travel_forks_count_what_they_did_themselves(make: MakeModel) -> None:
    model = make()

    async def first(state: Said) -> dict[str, list[str]]:
        return {"said": [(await model.ainvoke("say first")).text]}

    async def second(state: Said) -> dict[str, list[str]]:
        return {"said": [(await model.ainvoke(f"say after {state['said'][-1]}")).text]}

    graph = StateGraph(Said).add_node("first", first).add_node("second", second)
    compiled = graph.add_edge(START, "first").add_edge("first", "second").compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    original = await rollout(compiled, {"said": []}, config=config)
    assert len(original.completions) == 2
    history = [state async for state in compiled.aget_state_history(config)]
    before_second = next(state for state in history if state.next == ("second",))
    forked = await compiled.aupdate_state(before_second.config, {"said": ["edited"]})
    handler = ARTCallbackHandler()
    output = await compiled.ainvoke(None, {**forked, "callbacks": [handler]})
    assert output["said"][-1] == "after edited"
    assert [(one.node, one.superseded) for one in handler.recorder.completions] == [("second", None)]


async def test_history_that_is_trimmed_and_rewritten(make: MakeModel) -> None:
    model = make()

    async def talk(state: MessagesState) -> dict[str, Any]:
        kept = trim_messages(state["messages"], max_tokens=1, token_counter=len, strategy="last")
        return {"messages": [await model.ainvoke(kept)]}

    async def summarise(state: MessagesState) -> dict[str, Any]:
        summary = await model.ainvoke("say summary")
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), HumanMessage(f"say after {summary.text}")]}

    graph = StateGraph(MessagesState).add_node("a", talk).add_node("s", summarise).add_node("b", talk)
    found = await rollout(graph.add_edge(START, "a").add_edge("a", "s").add_edge("s", "b").compile(), "say one")
    await check(found)
    assert texts(found) == ["one", "summary", "after summary"]


@pytest.mark.parametrize("given", ["say x", [("user", "say x")], [{"role": "user", "content": "say x"}]])
async def test_messages_of_every_kind(make: MakeModel, given: Any) -> None:
    model = make()

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(given)]}

    found = await rollout(StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile(), "x")
    await check(found)
    assert found.completions[0].messages[-1] == {"role": "user", "content": "say x"}


async def test_several_choices_of_one_request(make: MakeModel) -> None:
    model = make(n=3)

    async def node(state: MessagesState) -> dict[str, Any]:
        result = await model.agenerate([[HumanMessage("say x")]])
        assert len(result.generations[0]) == 3
        return {}

    found = await rollout(StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile(), "x")
    await check(found)
    assert len(found.completion_ids) == 3


async def test_a_cancelled_run_keeps_what_was_finished(make: MakeModel) -> None:
    model, handler = make(), ARTCallbackHandler()

    async def node(state: MessagesState) -> dict[str, Any]:
        await model.ainvoke("say done")
        await model.ainvoke("slow")
        return {}

    graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()
    running = asyncio.create_task(graph.ainvoke({"messages": []}, {"callbacks": [handler]}))
    while not handler.recorder.completions:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert handler.recorder.completions[0].trainable
    assert sum(one.trainable for one in handler.recorder.completions) == 1


async def test_a_node_that_calls_two_policies_and_a_frozen_model(make: MakeModel) -> None:
    async with TrainerClient() as trainer:
        await trainer.create_policy("second")
    one, two, frozen = make("agent"), make("second"), FakeListChatModel(responses=["judged"])

    async def node(state: MessagesState) -> dict[str, Any]:
        await asyncio.gather(one.ainvoke("say one"), two.ainvoke("say two"))
        await frozen.ainvoke("judge")
        return {}

    found = await rollout(StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile(), "x")
    await check(found)
    assert sorted((call.policy or "", call.trainable) for call in found.completions) == [
        ("", False), ("agent", True), ("second", True),
    ]  # fmt: skip


async def test_threads_inside_a_node(make: MakeModel) -> None:
    model = make()

    def node(state: Said) -> dict[str, list[str]]:
        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(copy_context().run, model.invoke, f"say {number}") for number in range(4)]
            return {"said": [job.result().text for job in jobs]}

    found = await rollout(StateGraph(Said).add_node("n", node).add_edge(START, "n").compile(), {"said": []})
    await check(found)
    assert sorted(texts(found)) == ["0", "1", "2", "3"]
    assert {one.node for one in found.completions} == {"n"}


async def test_a_cached_answer_is_not_trained_again(make: MakeModel) -> None:
    model = make(cache=InMemoryCache())

    async def node(state: MessagesState) -> dict[str, Any]:
        await model.ainvoke("say cached")
        await model.ainvoke("say cached")
        return {}

    graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()
    first = await rollout(graph, "x")
    assert [one.cached for one in first.completions] == [False, True]
    assert len(first.completion_ids) == 1
    second = await rollout(graph, "x")
    assert [one.cached for one in second.completions] == [True, True]
    assert second.completion_ids == []


@pytest.mark.parametrize("call", ["invoke", "batch", "abatch"])
@pytest.mark.parametrize("nested", [False, True])
async def test_of_fallbacks_the_failed_branch_does_not_count(make: MakeModel, call: str, nested: bool) -> None:
    def refuse(answer: Any) -> Any:
        if "bad" in answer.text:
            raise ValueError("bad")
        return answer

    first = make() | refuse
    inner = first.with_fallbacks([make() | refuse]) if nested else first
    chain = inner.with_fallbacks([make()])
    inputs = ["say bad", "say good"]

    async def node(state: MessagesState, config: RunnableConfig) -> None:
        if call == "batch":
            await asyncio.to_thread(chain.batch, inputs, config)
        elif call == "abatch":
            await chain.abatch(inputs, config)
        else:
            for question in inputs:
                await chain.ainvoke(question, config)

    run = await rollout(StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile(), "go")
    bad = sorted(str(one.superseded) for one in run.completions if one.message["content"] == "bad")
    assert bad == ["None", *["retry"] * (1 + nested)]
    assert [one.superseded for one in run.completions if one.message["content"] == "good"] == [None]


async def test_retries_fallbacks_and_configs_of_langchain(make: MakeModel) -> None:
    failing = make("no-such-policy", max_retries=0)
    chain = failing.with_fallbacks([make().with_retry().with_config(tags=["mine"])])

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await chain.ainvoke(state["messages"])]}

    found = await rollout(StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile(), "say f")
    await check(found)
    assert [(one.error is None, one.trainable) for one in found.completions] == [(False, False), (True, True)]
