"""The real vLLM, asked in every API that the gateway answers: the same conversation has the same tokens."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from anthropic import AsyncAnthropic
from art_examples.quickstart.agent import PROMPT
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI

from art_langgraph import ChatART, TrainerClient
from art_langgraph.capture.answer import completion_id
from tests.support.servers.real_server import Real, gap
from trainer_server.wire.completions import ledger_id

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("found_by_clients")]

TOOL = {
    "name": "get_taxi_fare",
    "description": "Fare of a taxi.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def models(real: Real) -> list[BaseChatModel]:
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 0}
    url, key = real.connection.url, real.connection.api_key
    return [
        ChatART(policy="dialects", **options),
        ChatOpenAI(
            model="dialects",
            base_url=f"{url}/v1",
            api_key=key,
            use_responses_api=True,
            http_async_client=httpx.AsyncClient(),  # the shared one belongs to the event loop of an earlier test
            **options,
        ),
        ChatAnthropic(model_name="dialects", base_url=url, api_key=key, **options),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_with_calls_has_the_same_tokens_in_each_api(real: Real, stream: bool) -> None:
    asked = [*PROMPT, HumanMessage("What does a taxi cost in Oslo?")]
    async with TrainerClient() as trainer:
        await trainer.create_policy("dialects")
        rows, answers = [], []
        for model in models(real):
            calling = model.bind_tools([{"type": "function", "function": TOOL}])
            if stream:
                chunks = [chunk async for chunk in calling.astream(asked)]
                answer = chunks[0]
                for chunk in chunks[1:]:
                    answer = answer + chunk
            else:
                answer = await calling.ainvoke(asked)
            answers.append(answer)
            rows.append(await trainer.completion(str(completion_id(answer))))
    chat = rows[0]
    assert chat.token_ids
    for row in rows[1:]:
        assert row.prompt_token_ids == chat.prompt_token_ids
        assert row.token_ids == chat.token_ids
        assert row.request["messages"][-1] == chat.request["messages"][-1]
    said = [(answer.text, [(call["name"], call["args"]) for call in answer.tool_calls]) for answer in answers]
    *others, messages = said
    assert others == [said[0]] * len(others)
    # A call that the model did not end is no JSON: Anthropic's API cannot say it, and it is text there.
    assert messages == said[0] or f'"name": "{said[0][1][0][0]}"' in messages[0]


async def test_token_ids_are_gone_on_with_as_the_messages_that_they_render(real: Real) -> None:
    url, key = real.connection.url, real.connection.api_key
    async with TrainerClient() as trainer, AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:
        await trainer.create_policy("dialects")
        asked: Any = [{"role": "user", "content": "Name a city in Norway."}]
        options: dict[str, Any] = {"model": "dialects", "max_tokens": 16, "temperature": 0}
        chat = await trainer.completion((await client.chat.completions.create(messages=asked, **options)).id)
        for stream in (False, True):
            answer = await client.completions.create(prompt=chat.prompt_token_ids, stream=stream, **options)
            parts = [part async for part in answer] if stream else [answer]
            row = await trainer.completion(str(ledger_id(parts[0].id)))
            assert (row.prompt_token_ids, row.token_ids) == (chat.prompt_token_ids, chat.token_ids)
            assert row.untrainable is None
            assert "".join(choice.text for part in parts for choice in part.choices) == chat.message["content"]
        sampled = await client.completions.create(
            prompt="The fjords of Norway", **{**options, "temperature": 1.0, "max_tokens": 24}
        )
        row = await trainer.completion(str(ledger_id(sampled.id)))
        assert gap(real, "dialects@0", row) < 0.1
    async with AsyncAnthropic(base_url=url, api_key=key) as anthropic:
        counted = await anthropic.messages.count_tokens(model="dialects", messages=asked)
    assert counted.input_tokens == len(chat.prompt_token_ids)
