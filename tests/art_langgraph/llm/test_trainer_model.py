"""The base model of a trainer server: its answers, its tool calls, and how it is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from art_langgraph import LLM, ChatART, LLMError, rollout
from art_langgraph.llm.trainer_model import POLICY, TrainerModel, find_model
from tests.support.servers.judge_app import Fault, endpoint
from tests.support.servers.trainer_server import TOKEN, TrainerServer
from trainer_server.common import Connection
from trainer_server.wire import ConfigError

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_price",
        "description": "Gets a price.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}},
    },
}


class Count(BaseModel):
    number: int


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def test_the_base_model_answers_through_the_gateway(connected: TrainerServer) -> None:
    model = await find_model(POLICY)
    assert isinstance(model, TrainerModel)
    assert model.model == "base"
    assert (await model.ask([user('say {"number": 3}')], Count)).number == 3
    turn = await model.act([user('call get_price {"item": "it-7"}')], [TOOL])
    assert [(call.tool, call.arguments) for call in turn.calls] == [("get_price", {"item": "it-7"})]
    typed, acted = connected.engine["requests"][-2:]
    assert typed["model"] == acted["model"] == "base", "no adapter answers"
    assert (typed["temperature"], acted["temperature"]) == (0.8, 0.0)
    assert acted["chat_template_kwargs"] == {"enable_thinking": False}
    assert (model.usage.calls, model.usage.cost) == (2, 0.0)


async def test_no_rollout_records_it(connected: TrainerServer) -> None:
    """So no step trains it."""
    model, policy = TrainerModel(Connection(connected.url, TOKEN), "base"), ChatART(policy="agent", max_tokens=50)

    async def node(state: MessagesState) -> dict[str, Any]:
        await model.ask([user('say {"number": 3}')], Count)
        await model.act([user('call get_price {"item": "it-7"}')], [TOOL])
        return {"messages": [await policy.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
    run = await rollout(graph, "say hello")
    assert [completion.message["content"] for completion in run.completions if completion.message] == ["hello"]
    assert len(run.completions) == 1


async def test_what_it_said_goes_into_the_next_request(connected: TrainerServer) -> None:
    model = TrainerModel(Connection(connected.url, TOKEN), "base")
    turn = await model.act([user("call get_price {}")], [TOOL])
    result = {"role": "tool", "tool_call_id": turn.calls[0].id, "content": "say 20"}
    assert (await model.act([user("call get_price {}"), turn.message, result], [TOOL])).text == "20"


async def test_without_a_parser_of_tool_calls_it_is_asked_for_json() -> None:
    def answer(body: dict[str, Any]) -> str | Fault:
        if "tools" in body:
            return Fault(400, '"auto" tool choice requires --enable-auto-tool-choice')
        asked = len(body["messages"])
        return json.dumps({"calls": [{"tool": "get_price", "arguments": {"item": str(asked)}}], "text": ""})

    with endpoint(answer) as at:
        model = TrainerModel(Connection(at.url.removesuffix("/v1"), "key"), "base")
        system = {"role": "system", "content": "Be short."}
        turn = await model.act([system, user("How much?")], [TOOL])
        result = {"role": "tool", "tool_call_id": turn.calls[0].id, "content": "20"}
        again = await model.act([system, user("How much?"), turn.message, result], [TOOL])
    assert [call.arguments for call in (*turn.calls, *again.calls)] == [{"item": "2"}, {"item": "4"}]
    assert ["tools" in body for body in at.requests] == [True, False, False], "it is not asked with tools again"
    prompt, _, call, gave = at.requests[-1]["messages"]
    assert prompt["content"].startswith("Be short.\n\nThe tools:\n")
    assert json.loads(call["content"]) == {"calls": [{"tool": "get_price", "arguments": {"item": "2"}}]}
    assert gave == user("The call gave: 20")


async def test_arguments_that_cannot_be_read_are_a_call_without_them() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "get_price", "arguments": '{"item": '}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "base", "choices": [choice]}
    with endpoint(Fault(body=json.dumps(body).encode())) as at:
        model = TrainerModel(Connection(at.url.removesuffix("/v1"), "key"), "base")
        turn = await model.act([user("How much?")], [TOOL])
    assert [(call.tool, call.arguments) for call in turn.calls] == [("get_price", None)]


async def test_an_answer_that_does_not_come_is_an_error() -> None:
    with endpoint(Fault(401, "who are you?")) as at:
        model = TrainerModel(Connection(at.url.removesuffix("/v1"), "key"), "base")
        with pytest.raises(LLMError, match="who are you") as caught:
            await model.act([user("How much?")], [TOOL])
    assert caught.value.kind == "auth"


async def test_other_models_are_what_they_are() -> None:
    model = LLM("judge", base_url="http://127.0.0.1:9", cache=None)
    assert await find_model(model) is model


async def test_without_a_trainer_server_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_HOME", str(tmp_path))
    monkeypatch.delenv("ART_BASE_URL", raising=False)
    monkeypatch.delenv("ART_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"no token.*art-langgraph serve.*provider/name"):
        await find_model(POLICY)
    monkeypatch.setenv("ART_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("ART_API_KEY", "key")
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:9.*art-langgraph serve.*provider/name"):
        await find_model(POLICY)
