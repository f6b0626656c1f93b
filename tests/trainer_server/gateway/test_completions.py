"""`/v1/completions`, asked by OpenAI's own client: a prompt of text or of token ids; exact tokens in the ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types import Completion

from testbed.engine_app import UNIFORM
from tests.support.homes.jobs import finish
from tests.support.servers.trainer_server import TOKEN, TrainerServer, row
from trainer_server.wire.completions import ledger_id


@pytest.fixture
async def client(server: TrainerServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=TOKEN, max_retries=0) as opened:
        yield opened


@pytest.mark.parametrize("ids", [False, True])
async def test_a_prompt_is_a_text_or_token_ids(client: AsyncOpenAI, server: TrainerServer, ids: bool) -> None:
    prompt = [ord(char) for char in "say hello"]
    answer = await client.completions.create(model="agent", prompt=prompt if ids else "say hello", temperature=0.5)
    Completion.model_validate(answer.model_dump(), strict=True)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason, choice.logprobs) == ("hello", "stop", None)
    assert (answer.model, answer.system_fingerprint) == ("agent@0", ledger_id(answer.id))
    found = row(server, answer.id)
    assert (found["prompt_token_ids"], found["token_ids"]) == (prompt, [ord(char) for char in "hello"])
    assert (found["logprobs"], found["status"], found["untrainable"]) == ([UNIFORM] * 5, "complete", None)
    assert (found["sampling"]["temperature"], found["sampling"]["max_tokens"]) == (0.5, 16)
    assert found["request"] == {"api": "completions", **({} if ids else {"prompt": "say hello"})}
    assert found["message"] == {"role": "assistant", "content": "hello"}


async def test_streaming_gives_the_same_answer(client: AsyncOpenAI, server: TrainerServer) -> None:
    options: Any = {"include_usage": True}
    stream = await client.completions.create(
        model="agent", prompt="say hello", stream=True, echo=True, stream_options=options
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "say hellohello"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    assert row(server, chunks[0].id)["token_ids"] == [ord(char) for char in "hello"]


async def test_several_choices_have_a_row_each(client: AsyncOpenAI, server: TrainerServer) -> None:
    answer = await client.completions.create(model="agent", prompt="say hi", n=2, echo=True)
    assert [choice.text for choice in answer.choices] == ["say hihi"] * 2
    for one in (ledger_id(answer.id), f"{ledger_id(answer.id)}.1", f"{answer.id}.1"):
        assert row(server, str(one))["token_ids"] == [ord("h"), ord("i")]


async def test_log_probabilities_and_token_ids_are_given_when_asked_for(client: AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model="agent", prompt="say hi", logprobs=1, extra_body={"return_token_ids": True}
    )
    (choice,) = answer.choices
    assert choice.logprobs is not None
    assert (choice.logprobs.tokens, choice.logprobs.token_logprobs) == (["h", "i"], [UNIFORM] * 2)
    assert choice.logprobs.text_offset == [0, 1]
    assert choice.model_extra is not None
    assert choice.model_extra["token_ids"] == [ord("h"), ord("i")]
    assert choice.model_extra["prompt_token_ids"] == [ord(char) for char in "say hi"]


async def test_answers_to_prompts_of_token_ids_are_trained_on(client: AsyncOpenAI, server: TrainerServer) -> None:
    with server.http() as http:
        assert http.post("/api/policies", json={"name": "texts"}).status_code == 201
        prompts = [[ord(char) for char in f"say {letter}{letter}"] for letter in "abcd"]
        answers = [await client.completions.create(model="texts", prompt=prompt) for prompt in prompts]
        trajectories = [
            {"id": f"t{at}", "reward": float(at % 2), "completions": [ledger_id(answer.id)]}
            for at, answer in enumerate(answers)
        ]
        body = {"groups": [{"scenario_id": "s", "trajectories": trajectories}], "config": {"lr": 1e-2}}
        job = finish(http, http.post("/api/policies/texts/steps", json=body))
    assert job["result"]["version"] == 1, job
    assert job["result"]["metrics"]["trajectories"] == 4


async def test_errors_are_raised_by_the_client(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="2 prompts: send one request for each"):
        await client.completions.create(model="agent", prompt=["a", "b"])
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await client.completions.create(model="nobody", prompt="a")
