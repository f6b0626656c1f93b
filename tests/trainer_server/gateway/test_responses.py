"""`/v1/responses`, asked by OpenAI's own client: its helpers accept the answers, and the tokens are in the ledger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.support.patience import PATIENCE
from tests.support.servers.trainer_server import TOKEN, TrainerServer, row
from trainer_server.wire.completions import ledger_id

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOL = {"type": "function", "name": "add", "description": "", "parameters": {"type": "object"}, "strict": False}


@pytest.fixture
async def client(server: TrainerServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=TOKEN, max_retries=0) as opened:
        yield opened


async def streamed(client: AsyncOpenAI, **body: Any) -> list[Any]:
    """The events, each of which has all fields that the SDK's type names."""
    stream = await client.responses.create(model="agent", stream=True, **body)
    events = [event async for event in stream]
    for at, event in enumerate(events):
        EVENT.validate_python(event.model_dump(), strict=True)
        assert event.sequence_number == at
    return events


async def test_an_answer_has_the_tokens_of_the_chat_request(client: AsyncOpenAI, server: TrainerServer) -> None:
    answer = await client.responses.create(model="agent", instructions="Be brief.", input="say hello", temperature=0)
    Response.model_validate(answer.model_dump(), strict=True)
    assert (answer.output_text, answer.status, answer.model) == ("hello", "completed", "agent@0")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len("Be brief.say hello"), 5)
    found = row(server, answer.id)
    chat = await client.chat.completions.create(
        model="agent", temperature=0, messages=[{"role": "system", "content": "Be brief."},
                                                {"role": "user", "content": "say hello"}],
    )  # fmt: skip
    same = row(server, chat.id)
    for name in ("prompt_token_ids", "token_ids", "logprobs", "sampling", "constrained"):
        assert found[name] == same[name]
    assert found["id"] == ledger_id(answer.id) == ledger_id(answer.output[0].id)
    assert found["message"]["content"] == "hello"
    assert found["request"]["messages"] == same["request"]["messages"]


async def test_the_header_names_the_completion(client: AsyncOpenAI) -> None:
    raw = await client.responses.with_raw_response.create(model="agent", input="say hi")
    assert raw.headers["x-art-completion"] == ledger_id(raw.parse().id)


async def test_streaming_gives_the_same_answer(client: AsyncOpenAI, server: TrainerServer) -> None:
    events = await streamed(client, input="say hello")
    assert [event.type for event in events] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        *["response.output_text.delta"] * 5, "response.output_text.done", "response.content_part.done",
        "response.output_item.done", "response.completed",
    ]  # fmt: skip
    final = events[-1].response
    assert (final.output_text, final.usage.output_tokens) == ("hello", 5)
    assert events[0].response.id == final.id
    assert row(server, final.id)["token_ids"] == [ord(char) for char in "hello"]


async def test_the_row_is_there_before_the_answer_is_complete(client: AsyncOpenAI, server: TrainerServer) -> None:
    async for event in await client.responses.create(model="agent", input="say hello", stream=True):
        if event.type == "response.output_text.done":
            assert row(server, event.item_id)["status"] == "complete"
            return
    pytest.fail("the text was not done")


async def test_the_stream_helper_collects_calls_and_text(client: AsyncOpenAI) -> None:
    calls = 'calls [["add", {"a": 1}], ["add", {"a": 2}]]'
    async with client.responses.stream(model="agent", input=calls, tools=[TOOL]) as stream:  # type: ignore[list-item]
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert [json.loads(item.arguments) for item in final.output if item.type == "function_call"] == [{"a": 1}, {"a": 2}]
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [json.loads(event.arguments) for event in done] == [{"a": 1}, {"a": 2}]
    assert len({item.call_id for item in final.output if item.type == "function_call"}) == 2


async def test_a_tool_loop_goes_on_from_the_items(client: AsyncOpenAI, server: TrainerServer) -> None:
    history: list[Any] = [{"role": "user", "content": 'call add {"a": 1}'}]
    first = await client.responses.create(model="agent", input=history, tools=[TOOL])  # type: ignore[list-item]
    (call,) = first.output
    assert call.type == "function_call"
    history += [call.model_dump(), {"type": "function_call_output", "call_id": call.call_id, "output": "say 2"}]
    second = await client.responses.create(model="agent", input=history, tools=[TOOL])  # type: ignore[list-item]
    assert second.output_text == "2"
    before, after = row(server, first.id), row(server, second.id)
    played = before["prompt_token_ids"] + before["token_ids"]
    assert after["prompt_token_ids"][: len(played)] == played


async def test_a_response_is_continued_by_its_id(client: AsyncOpenAI, server: TrainerServer) -> None:
    first = await client.responses.create(
        model="agent", instructions="One.", input='call add {"a": 1}', tools=[TOOL],  # type: ignore[list-item]
    )  # fmt: skip
    output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "say 2"}  # type: ignore[union-attr]
    second = await client.responses.create(
        model="agent", instructions="Two.", input=[output], previous_response_id=first.id  # type: ignore[list-item]
    )  # fmt: skip
    assert second.previous_response_id == first.id
    third = await client.responses.create(model="agent", input="say 3", previous_response_id=second.id)
    asked = row(server, third.id)["request"]["messages"]
    assert [message["role"] for message in asked] == ["user", "assistant", "tool", "assistant", "user"]
    assert asked[1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert row(server, second.id)["request"]["messages"][0] == {"role": "system", "content": "Two."}


@pytest.mark.parametrize("system", [None, "Be short.", [{"type": "input_text", "text": "Be short."}]])
async def test_a_hint_holds_for_its_own_rollout_alone(client: AsyncOpenAI, server: TrainerServer, system: Any) -> None:
    """Without it in the ledger's row, an answer that had read it would be trained."""
    beginning = [] if system is None else [{"role": "system", "content": system}]
    said: list[Any] = [*beginning, {"role": "user", "content": "say 1"}]
    with server.http() as http:
        rollout = f"hint-{type(system).__name__}"
        assert http.put(f"/api/rollouts/{rollout}", json={"hints": {"agent": "SECRET"}}).is_success
    at = {"extra_headers": {"X-ART-Rollout": rollout}}
    first = await client.responses.create(model="agent", input=said, **at)
    again = await client.responses.create(model="agent", input="say 2", previous_response_id=first.id, **at)
    other = await client.responses.create(model="agent", input="say 2", previous_response_id=first.id)
    rows = [row(server, answer.id) for answer in (first, again, other)]
    assert [str(row["request"]["messages"]).count("SECRET") for row in rows] == [1, 1, 0]
    assert [row["hint"] for row in rows] == ["SECRET", "SECRET", None]
    messages = [message for message in rows[2]["request"]["messages"] if message["role"] != "system"]
    assert [message["content"] for message in messages] == ["say 1", "1", "say 2"]
    before, after = rows[:2]
    played = before["prompt_token_ids"] + before["token_ids"]
    assert after["prompt_token_ids"][: len(played)] == played


async def test_an_answer_that_the_ledger_does_not_have_is_not_continued(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="send the whole conversation"):
        await client.responses.create(model="agent", input="x", previous_response_id=f"resp_{'0' * 32}")


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_is_an_item_and_comes_back(client: AsyncOpenAI, server: TrainerServer, stream: bool) -> None:
    body: dict[str, Any] = {"input": "think so it is|yes", "reasoning": {"summary": "auto"}}
    if stream:
        events = await streamed(client, **body)
        kinds = {event.type for event in events}
        assert {"response.reasoning_text.delta", "response.reasoning_summary_text.done"} <= kinds
        answer = events[-1].response
    else:
        answer = await client.responses.create(model="agent", **body)
    thought, said = answer.output
    assert (thought.content[0].text, thought.summary[0].text, answer.output_text) == ("so it is", "so it is", "yes")
    history = [
        {"role": "user", "content": "?"},
        thought.model_dump(),
        said.model_dump(),
        {"role": "user", "content": "x"},
    ]
    again = await client.responses.create(model="agent", input=history)
    assert row(server, again.id)["request"]["messages"][1] == {
        "role": "assistant", "content": "yes", "reasoning": "so it is",
    }  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_cut_is_incomplete(client: AsyncOpenAI, stream: bool) -> None:
    body: dict[str, Any] = {"input": "cut hello", "max_output_tokens": 3}
    if stream:
        event = (await streamed(client, **body))[-1]
        assert event.type == "response.incomplete"
        answer = event.response
    else:
        answer = await client.responses.create(model="agent", **body)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.output_text == "hel"


async def test_log_probabilities_are_given_when_they_are_included(client: AsyncOpenAI) -> None:
    wanted: Any = ["message.output_text.logprobs"]
    answer = await client.responses.create(model="agent", input="say hi", include=wanted)
    (part,) = answer.output[0].content  # type: ignore[union-attr]
    assert [entry.token for entry in part.logprobs or []] == ["h", "i"]  # type: ignore[union-attr]
    plain = await client.responses.create(model="agent", input="say hi")
    assert plain.output[0].content[0].logprobs == []  # type: ignore[union-attr]


async def test_parsed_output_of_the_sdk(client: AsyncOpenAI) -> None:
    class Sum(BaseModel):
        total: int

    answer = await client.responses.parse(model="agent", input='say {"total": 3}', text_format=Sum)
    assert answer.output_parsed == Sum(total=3)


async def test_errors_are_raised_by_the_client(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="this server runs no tool of type 'web_search'") as refused:
        await client.responses.create(model="agent", input="x", tools=[{"type": "web_search"}])
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "tools")
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await client.responses.create(model="nobody", input="x")
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        await client.responses.create(model="agent", input="x" * 3000)


async def test_an_engine_that_dies_in_a_stream_is_an_error_there(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.APIError, match="went away") as raised:
        await streamed(client, input="die")
    assert raised.value.code == "engine_lost"


async def test_a_client_that_leaves_ends_the_generation(client: AsyncOpenAI, server: TrainerServer) -> None:
    before = server.engine["aborted"]
    async with asyncio.timeout(PATIENCE):
        stream = await client.responses.create(model="agent", input="slow", stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        while server.engine["aborted"] == before:
            await asyncio.sleep(0.02)


async def test_an_image_from_elsewhere_is_not_fetched(client: AsyncOpenAI) -> None:
    image = {"type": "input_image", "image_url": "http://10.0.0.1/secret.png"}
    with pytest.raises(openai.BadRequestError, match="does not fetch"):
        await client.responses.create(model="agent", input=[{"role": "user", "content": [image]}])  # type: ignore[list-item]


async def test_a_body_that_is_no_object_is_refused(server: TrainerServer) -> None:
    async with httpx.AsyncClient(base_url=server.url, headers=server.headers) as http:
        for path in ("/v1/responses", "/v1/messages", "/v1/completions"):
            answer = await http.post(path, json=[1])
            assert (answer.status_code, answer.json()["error"]["message"]) == (400, "the body must be a JSON object")
