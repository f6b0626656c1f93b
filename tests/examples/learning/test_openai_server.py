"""A function as a chat completions API, as OpenAI's client sees it."""

from __future__ import annotations

from typing import Any

import pytest
from art_examples.learning.openai_server import completion, litellm_server, openai_server
from openai import AsyncOpenAI, InternalServerError

from tests.support.servers.judge_app import endpoint

ASKED: list[Any] = [{"role": "user", "content": "Hello"}]


async def echo(body: dict[str, Any]) -> dict[str, Any]:
    return completion(body["model"], body["messages"][-1]["content"])


async def test_it_answers_at_once_and_as_a_stream() -> None:
    async with openai_server(echo) as url, AsyncOpenAI(base_url=url, api_key="none") as client:
        whole = await client.chat.completions.create(model="m", messages=ASKED)
        stream = await client.chat.completions.create(model="m", messages=ASKED, stream=True)
        chunks = [chunk.choices[0].delta.content async for chunk in stream]
    assert (whole.model, whole.choices[0].message.content) == ("m", "Hello")
    assert chunks == ["Hello"]


async def test_what_the_function_raises_is_told_to_the_client() -> None:
    async def broken(body: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("the key")

    async with openai_server(broken) as url, AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        with pytest.raises(InternalServerError, match="KeyError: 'the key'"):
            await client.chat.completions.create(model="m", messages=ASKED)


async def test_a_model_of_litellm_is_asked_at_temperature_0_with_the_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    tool: Any = {"type": "function", "function": {"name": "price", "parameters": {"type": "object"}}}
    with endpoint("It is 5.") as fake:
        monkeypatch.setenv("OPENAI_API_BASE", fake.url)
        monkeypatch.setenv("OPENAI_API_KEY", "a-key")
        async with litellm_server("openai/some-model") as url, AsyncOpenAI(base_url=url, api_key="none") as client:
            said = await client.chat.completions.create(model="x", messages=ASKED, tools=[tool], max_tokens=1)
    assert said.choices[0].message.content == "It is 5."
    (request,) = fake.requests
    assert (request["model"], request["temperature"], request["tools"]) == ("some-model", 0.0, [tool])
    assert request["max_tokens"] > 1
