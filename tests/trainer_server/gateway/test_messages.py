"""`/v1/messages`, asked by Anthropic's own client: its helpers accept the answers, and the tokens are in the ledger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.support.patience import PATIENCE
from tests.support.servers.trainer_server import TOKEN, TrainerServer, row
from trainer_server.wire.completions import ledger_id

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
TOOL: Any = {"name": "add", "description": "", "input_schema": {"type": "object"}}


@pytest.fixture
async def client(server: TrainerServer) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=server.url, api_key=TOKEN, max_retries=0) as opened:
        yield opened


async def ask(client: AsyncAnthropic, content: Any, **body: Any) -> Message:
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    answer = await client.messages.create(**{"model": "agent", "max_tokens": 100, "messages": messages, **body})
    Message.model_validate(answer.model_dump(), strict=True)
    return answer


async def streamed(client: AsyncAnthropic, content: str, **body: Any) -> tuple[list[str], Message]:
    """The kinds of the events, and the message that the client's helper makes of them."""
    messages: Any = [{"role": "user", "content": content}]
    kinds = []
    async with client.messages.stream(**{"model": "agent", "max_tokens": 100, "messages": messages, **body}) as stream:
        async for event in stream:
            if not hasattr(event, "snapshot") and not hasattr(event, "parsed_snapshot"):
                kinds.append(event.type)
        return kinds, await stream.get_final_message()


async def test_an_answer_has_the_tokens_of_the_chat_request(client: AsyncAnthropic, server: TrainerServer) -> None:
    answer = await ask(client, "say hello", system="Be brief.", extra_body={"temperature": 0})
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "hello"}]
    assert (answer.stop_reason, answer.model) == ("end_turn", "agent@0")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len("Be brief.say hello"), 5)
    found = row(server, answer.id)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "say hello"}]
    with server.http() as http:
        body = {"model": "agent", "messages": messages, "max_tokens": 100, "temperature": 0}
        same = row(server, http.post("/v1/chat/completions", json=body).json()["id"])
    for name in ("prompt_token_ids", "token_ids", "logprobs", "sampling", "constrained"):
        assert found[name] == same[name]
    assert found["id"] == ledger_id(answer.id)
    assert found["request"]["messages"] == messages


async def test_the_header_names_the_completion(client: AsyncAnthropic) -> None:
    asked: Any = [{"role": "user", "content": "say hi"}]
    raw = await client.messages.with_raw_response.create(model="agent", max_tokens=9, messages=asked)
    assert raw.headers["x-art-completion"] == ledger_id((await raw.parse()).id)


async def test_streaming_gives_the_same_answer(client: AsyncAnthropic, server: TrainerServer) -> None:
    kinds, answer = await streamed(client, "say hello")
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "hello"}]
    assert (answer.stop_reason, answer.usage.input_tokens, answer.usage.output_tokens) == ("end_turn", 9, 5)
    assert row(server, answer.id)["token_ids"] == [ord(char) for char in "hello"]
    assert kinds[0] == "message_start"
    async with httpx.AsyncClient(base_url=server.url, headers={"x-api-key": TOKEN}) as http:
        body = {"model": "agent", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "say hi"}]}
        text = (await http.post("/v1/messages", json=body)).text
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines]
    assert [event["type"] for event in events] == [
        "message_start", "ping", "content_block_start", "content_block_delta", "content_block_delta",
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    for event in events:
        if event["type"] != "ping":
            EVENT.validate_python(event, strict=True)


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_of_tools(client: AsyncAnthropic, stream: bool) -> None:
    asked = 'calls [["add", {"a": 1}], ["add", {"a": "ü"}]]'
    answer = (await streamed(client, asked, tools=[TOOL]))[1] if stream else await ask(client, asked, tools=[TOOL])
    assert [block.input for block in answer.content if block.type == "tool_use"] == [{"a": 1}, {"a": "ü"}]
    assert answer.stop_reason == "tool_use"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_this_api_cannot_say_is_text(client: AsyncAnthropic, stream: bool) -> None:
    """A policy that explores writes such calls; its run goes on."""
    for arguments in ("{oops", "[1]"):
        asked = f"call add {arguments}"
        answer = (await streamed(client, asked, tools=[TOOL]))[1] if stream else await ask(client, asked, tools=[TOOL])
        (block,) = answer.content
        assert block.type == "text"
        assert "add" in block.text
        assert arguments in block.text
        assert answer.stop_reason == "end_turn"


async def test_a_tool_loop_goes_on_where_the_turn_ended(client: AsyncAnthropic, server: TrainerServer) -> None:
    first = await ask(client, 'call add {"a": 1}', tools=[TOOL])
    (call,) = first.content
    assert call.type == "tool_use"
    history = [
        {"role": "user", "content": 'call add {"a": 1}'},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "say 2"}]},
    ]
    second = await ask(client, history, tools=[TOOL])
    before, after = row(server, first.id), row(server, second.id)
    played = before["prompt_token_ids"] + before["token_ids"]
    assert after["prompt_token_ids"][: len(played)] == played
    assert second.content[0].to_dict() == {"type": "text", "text": "2"}


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_is_a_block_and_comes_back(client: AsyncAnthropic, server: TrainerServer, stream: bool) -> None:
    asked = "think so it is|yes"
    answer = (await streamed(client, asked))[1] if stream else await ask(client, asked)
    thought, said = answer.content
    assert (thought.type, said.type) == ("thinking", "text")
    assert (thought.thinking, said.text) == ("so it is", "yes")  # type: ignore[union-attr]
    history = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer.content}]
    again = await ask(client, [*history, {"role": "user", "content": "x"}])
    assert row(server, again.id)["request"]["messages"][1] == {
        "role": "assistant", "content": "yes", "reasoning": "so it is",
    }  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_cut_says_so(client: AsyncAnthropic, stream: bool) -> None:
    answer = (await streamed(client, "cut hi"))[1] if stream else await ask(client, "cut hi")
    assert answer.stop_reason == "max_tokens"


async def test_more_tokens_than_the_context_leaves_means_all_of_them(client: AsyncAnthropic) -> None:
    answer = await ask(client, "say hello", max_tokens=20_000)
    assert answer.content[0].to_dict() == {"type": "text", "text": "hello"}
    with pytest.raises(anthropic.BadRequestError, match="maximum context length"):
        await ask(client, "x" * 3000, max_tokens=20_000)


async def test_tokens_are_counted_as_they_are_rendered(client: AsyncAnthropic) -> None:
    messages: Any = [{"role": "user", "content": "say hello"}]
    counted = await client.messages.count_tokens(model="agent", system="Be brief.", messages=messages)
    assert counted.input_tokens == len("Be brief.say hello")
    unrenderable: Any = [{"role": "user", "content": "unrenderable"}]
    with pytest.raises(anthropic.BadRequestError, match="the template says no"):
        await client.messages.count_tokens(model="agent", messages=unrenderable)


async def test_errors_have_the_shape_that_the_client_knows(client: AsyncAnthropic, server: TrainerServer) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        await ask(client, "x", tools=[{"type": "web_search_20250305", "name": "web_search"}])
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["type"] == "error"
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    assert "is a tool of Anthropic's" in refused.value.body["error"]["message"]
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        await ask(client, "x", model="nobody")
    stranger = AsyncAnthropic(base_url=server.url, api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError, match="authentication_error"):
        await ask(stranger, "x")
    await stranger.close()


async def test_an_engine_that_dies_in_a_stream_is_an_error_there(client: AsyncAnthropic) -> None:
    with pytest.raises(anthropic.APIStatusError, match="went away"):
        await streamed(client, "die")


async def test_a_client_that_leaves_ends_the_generation(client: AsyncAnthropic, server: TrainerServer) -> None:
    before = server.engine["aborted"]
    messages: Any = [{"role": "user", "content": "slow"}]
    async with asyncio.timeout(PATIENCE):
        async with client.messages.stream(model="agent", max_tokens=9, messages=messages) as stream:
            async for event in stream:
                if event.type == "content_block_delta":
                    break
        while server.engine["aborted"] == before:
            await asyncio.sleep(0.02)
