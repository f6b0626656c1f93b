"""What is recorded of answers that are no plain text: calls that are no JSON, thoughts, blocks of LangChain's v1."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import Evaluation, rollout
from art_langgraph.exports.answers import trl_rows
from art_langgraph.exports.verifiers import verifiers_episodes
from art_langgraph.judge.transcript import transcripts
from tests.support.runs.chat_models import MakeModel

BROKEN = '{"text": "He said "hi""}'


async def ask(model: Any, messages: list[BaseMessage], *, streams: bool) -> AIMessage:
    if not streams:
        return await model.ainvoke(messages)  # type: ignore[no-any-return]
    parts: AsyncIterator[AIMessageChunk] = model.astream(messages)
    whole = await anext(parts)
    async for part in parts:
        whole += part
    return whole


def asking(model: Any, *, streams: bool) -> Any:
    """A graph of one node, which asks the model once."""

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await ask(model, state["messages"], streams=streams)]}

    return StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()


@pytest.mark.parametrize("version", ["v0", "v1"])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_that_is_no_json_is_recorded_as_it_was_written(
    make: MakeModel, streams: bool, version: str
) -> None:
    model = make(output_version=version)

    async def node(state: MessagesState) -> dict[str, Any]:
        answer = await ask(model, state["messages"], streams=streams)
        (broken,) = answer.invalid_tool_calls
        history = [*state["messages"], answer, ToolMessage("no JSON", tool_call_id=broken["id"] or "")]
        return {"messages": [await ask(model, [*history, HumanMessage("say sorry")], streams=streams)]}

    graph: Any = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()
    found = await rollout(graph, f"call write {BROKEN}", lambda t: 1.0)
    assert found.error is None
    first, second = found.completions
    assert first.message is not None
    assert first.message["content"] == ""
    (made,) = first.message["tool_calls"]
    assert (made["function"], made["id"]) == ({"name": "write", "arguments": BROKEN}, "call-write")
    assert second.messages[1] == first.message
    assert second.messages[2]["tool_call_id"] == "call-write"
    assert second.message == {"role": "assistant", "content": "sorry"}
    text = "".join([transcripts([found])[0], *transcripts([found])[1]])
    assert f"write({BROKEN})" in text
    assert "(no text)" not in text
    *_, last = trl_rows(found, {})
    made_ids = [call["id"] for message in last["prompt"] for call in message.get("tool_calls") or ()]
    assert made_ids == ["call-write"], "the tool message belongs to a call"
    assert BROKEN in json.dumps(list(verifiers_episodes(found, {}))).replace('\\\\\\"', '"').replace('\\"', '"')


@pytest.mark.parametrize("version", ["v0", "v1"])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_that_was_cut_off_is_recorded_as_it_was_written(
    make: MakeModel, streams: bool, version: str
) -> None:
    found = await rollout(asking(make(output_version=version), streams=streams), 'call write {"text": "He sa')
    (call,) = found.completions
    assert call.message is not None
    (made,) = call.message["tool_calls"]
    assert (made["function"], made["id"]) == ({"name": "write", "arguments": '{"text": "He sa'}, "call-write")


@pytest.mark.parametrize("said", ['call write "soon"', "call write null", "call write [1]"])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_that_is_no_object_is_text(make: MakeModel, streams: bool, said: str) -> None:
    found = await rollout(asking(make(), streams=streams), said)
    assert [call.message for call in found.completions] == [{"role": "assistant", "content": said}]
    assert found.final_text == said


@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_in_the_text_that_the_parser_did_not_take_is_noted(make: MakeModel, streams: bool) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    graph = asking(make().bind(tools=tools), streams=streams)
    said = ('{"name": "look", "arguments": {}}', '{"name": "jump", "arguments": {}}', 'call look {"text": "x"}')
    runs = [await rollout(graph, one, lambda _: 0.0) for one in said]
    assert [[call.text_call for call in run.completions] for run in runs] == [["look"], [None], [None]]
    note = "; 1 of 3 answers have a call in their text that the parser of tool calls did not take. `serve --tool-call"
    assert note in str(Evaluation(runs))
    without = await rollout(asking(make(), streams=streams), said[0])
    assert [call.text_call for call in without.completions] == [None]


@pytest.mark.parametrize("streams", [False, True])
async def test_blocks_are_no_text(make: MakeModel, streams: bool) -> None:
    model = make(output_version="v1")

    async def node(state: MessagesState) -> dict[str, Any]:
        answer = await ask(model, state["messages"], streams=streams)
        assert isinstance(answer.content, list)
        return {"messages": [answer]}

    graph: Any = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile()
    (call,) = (await rollout(graph, 'call write {"text": "hi"}')).completions
    assert call.message is not None
    assert call.message["content"] == ""
    assert [made["function"] for made in call.message["tool_calls"]] == [
        {"name": "write", "arguments": '{"text": "hi"}'}
    ]
    (call,) = (await rollout(graph, "say hi")).completions
    assert call.message == {"role": "assistant", "content": "hi"}
