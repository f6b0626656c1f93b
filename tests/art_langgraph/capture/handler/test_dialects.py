"""Models that ask in another API than chat completions are captured: with ids, versions and messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_anthropic.chat_models import _get_default_async_httpx_client
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from art_langgraph import ChatART, TrainerClient, Trajectory, rollout
from art_langgraph.capture.answer import completion_id
from art_langgraph.capture.requests import attach
from tests.support.servers.trainer_server import TOKEN, TrainerServer

Make = Callable[..., BaseChatModel]
MODELS = ["ChatART", "ChatOpenAI", "ChatAnthropic"]


@pytest.fixture(params=MODELS)
def make(request: pytest.FixtureRequest, connected: TrainerServer) -> Make:
    """Makes ChatART or ChatOpenAI that use the Responses API, or Anthropic's chat model."""

    def chat(**options: Any) -> BaseChatModel:
        options = {"max_tokens": 60, **options}
        if request.param == "ChatART":
            return ChatART(policy="agent", use_responses_api=True, **options)
        if request.param == "ChatOpenAI":
            url = f"{connected.url}/v1"
            return ChatOpenAI(model="agent", base_url=url, api_key=TOKEN, use_responses_api=True, **options)
        _get_default_async_httpx_client.cache_clear()  # it would meet another test's event loop
        return ChatAnthropic(model_name="agent", base_url=connected.url, api_key=TOKEN, max_retries=0, **options)

    return chat


async def check(found: Trajectory) -> None:
    """The ledger has each completion, with the tokens of its message."""
    assert found.error is None, found.error
    async with TrainerClient() as trainer:
        for call in found.completions:
            assert call.id is not None
            row = await trainer.completion(call.id)
            assert row.version == call.version
            if row.message and row.message["content"]:
                assert call.message is not None
                assert "".join(map(chr, row.token_ids)) == call.message["content"]


@tool
def double(value: int) -> str:
    """Double a number."""
    return str(2 * value)


async def test_an_agent_with_tools(make: Make) -> None:
    found = await rollout(create_agent(make(), [double]), 'call double {"value": 4}')
    await check(found)
    assert [(one.tool, one.result) for one in found.tool_calls] == [("double", "8")]
    assert [one.id is not None for one in found.completions] == [True, True]
    assert found.versions == {"agent": [0]}
    assert found.final_text == "8"


class Number(BaseModel):
    """A number."""

    value: int


async def test_an_answer_that_cannot_be_parsed_counts_by_the_responses_api(connected: TrainerServer) -> None:
    model = ChatART(policy="agent", use_responses_api=True).with_structured_output(Number)

    async def node(state: MessagesState) -> None:
        await model.ainvoke('say {"value": "x"}')

    run = await rollout(StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile(), "go")
    assert str(run.error).startswith("ValidationError")
    (call,) = run.completions
    assert (call.trainable, call.version) == (True, 0)
    assert call.message == {"role": "assistant", "content": '{"value": "x"}'}


@pytest.mark.parametrize("how", ["invoke", "stream", "astream"])
async def test_every_way_of_asking_keeps_the_id(make: Make, how: str) -> None:
    model = make()
    attach()  # as a rollout does

    def whole() -> AIMessage:
        first, *rest = model.stream("say three")
        for chunk in rest:
            first = first + chunk
        return first

    async def collected() -> AIMessage:
        chunks = [chunk async for chunk in model.astream("say three")]
        answer = chunks[0]
        for chunk in chunks[1:]:
            answer = answer + chunk
        return answer

    if how == "astream":
        message = await collected()
    else:
        message = await asyncio.to_thread(whole if how == "stream" else lambda: model.invoke("say three"))
    assert message.text == "three"
    one = completion_id(message)
    assert one is not None
    async with TrainerClient() as trainer:
        assert "".join(map(chr, (await trainer.completion(one)).token_ids)) == "three"


async def test_a_streamed_node_is_captured(make: Make) -> None:
    model = make(streaming=True)

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
    found = await rollout(graph, "say three")
    await check(found)
    assert [one.version for one in found.completions] == [0]


async def test_the_rollout_and_its_temperature_reach_the_gateway(make: Make) -> None:
    found = await rollout(create_agent(make(), []), "say hi", temperature=0.5)
    (call,) = found.completions
    async with TrainerClient() as trainer:
        row = await trainer.completion(str(call.id))
    assert (row.rollout, row.sampling.temperature) == (found.rollout_id, 0.5)


def test_ids_of_other_servers_are_none_of_ours() -> None:
    for one in ("resp_0123456789abcdef0123456789abcdef0123456789abcdef", "msg_01XFDUDYJgAACzvnptvVoYEL", "chatcmpl-x"):
        assert completion_id(AIMessage("hi", id=one, response_metadata={"id": one})) is None
