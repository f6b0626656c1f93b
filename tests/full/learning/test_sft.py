"""Warm starts on the real engine: rendered as vLLM prompts, learnt, answered by vLLM."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import AutoTokenizer

from art_langgraph import SFTConfig, TrainerClient
from tests.support.servers.real_server import Real
from trainer_server.engines.package_models import EMBEDDED, PACKAGE_MODELS
from trainer_server.jobs.queue import JobQueue
from trainer_server.wire import Completion

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("found_by_clients")]

SYSTEM = "You answer questions about cities. First call the right tool, then answer with the value that it gave."
CITIES = ("Rome", "Oslo", "Cairo", "Lima", "Tokyo", "Quito", "Athens", "Dublin")


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": name, "description": f"{name} of a city", "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [tool("get_time"), tool("get_weather")]


def call(name: str, city: str) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps({"city": city})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def asked(city: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"What time is it in {city}?"}]


def whole(city: str, value: str) -> dict[str, Any]:
    answer = {"role": "assistant", "content": f"It is {value} in {city}."}
    result = {"role": "tool", "tool_call_id": "c", "content": value}
    return {"messages": [*asked(city), call("get_time", city), result, answer], "tools": TOOLS}


async def answers(real: Real, trainer: TrainerClient, model: str, messages: list[dict[str, Any]]) -> Completion:
    body = {"model": model, "messages": messages, "tools": TOOLS, "max_tokens": 48, "temperature": 0}
    async with real.http() as http:
        found = (await http.post("/v1/chat/completions", json=body)).raise_for_status().json()
    return await trainer.completion(found["id"])


async def test_eight_demonstrations_teach_a_tool_call(real: Real) -> None:
    """With nothing shown in its prompt, the model calls no tool; afterwards it does, for cities it was not shown."""
    async with TrainerClient() as trainer:
        await trainer.create_policy("warm")
        before = [await answers(real, trainer, "warm", asked(city)) for city in ("Madrid", "Vienna")]
        assert not any((one.message or {}).get("tool_calls") for one in before)
        demonstrations = [whole(city, f"1{hour}:30") for hour, city in enumerate(CITIES)]
        result = await trainer.sft(
            "warm", demonstrations, SFTConfig(lr=1e-3, num_train_epochs=5, per_device_train_batch_size=2)
        )
        assert result.version == 1
        assert result.metrics["loss_last"] < 0.2 * result.metrics["loss_first"]
        assert (result.metrics["rows"], result.metrics["turns"]) == (8, 16)
        after = [await answers(real, trainer, "warm", asked(city)) for city in ("Madrid", "Vienna")]
        for city, one in zip(("Madrid", "Vienna"), after, strict=True):
            (made,) = (one.message or {})["tool_calls"]
            assert made["function"]["name"] == "get_time"
            assert json.loads(made["function"]["arguments"]) == {"city": city}

        # What a demonstration of these very answers renders to is what the ledger has of them: tool call, end and text.
        madrid = after[0]
        result_message = {"role": "tool", "tool_call_id": "c", "content": "09:15"}
        turns = [*asked("Madrid"), dict(madrid.message or {}), result_message]
        last = await answers(real, trainer, "warm", turns)
        conversation = {"messages": [*turns, {"role": "assistant", "content": (last.message or {})["content"]}]}
        again = await trainer.sft("warm", [{**conversation, "tools": TOOLS}], SFTConfig(num_train_epochs=1))
    rows = JobQueue(real.home.jobs).rows(again.metrics["job"]["id"])
    assert rows is not None
    assert rows.turns_skipped == {}
    (row,) = rows.rows
    (first, first_end), (second, second_end) = row.loss_spans
    assert row.ids[:first] == madrid.prompt_token_ids
    assert row.ids[first:first_end] == madrid.token_ids
    assert row.ids[:second] == last.prompt_token_ids
    assert row.ids[second:second_end] == last.token_ids


async def test_a_completion_as_text_is_rendered_to_the_ledgers_prompt(real: Real) -> None:
    """Whatever the shape of the request: system or none, tools or none, history with calls, parts, blank lines."""
    shapes: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": "Name a sea."}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Name a sea.\n\n"}]}]},
        {"messages": [{"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": " Hé? ∂x"}]},
        {"messages": asked("Rome"), "tools": TOOLS},
        {"messages": [*whole("Rome", "9:30")["messages"], {"role": "user", "content": "And Oslo?"}], "tools": TOOLS},
    ]
    async with TrainerClient() as trainer:
        await trainer.create_policy("shapes")
        ledger, conversations = [], []
        for shape in shapes:
            async with real.http() as http:
                body = {"model": EMBEDDED, **shape, "max_tokens": 4}
                found = (await http.post("/v1/chat/completions", json=body)).raise_for_status().json()
            ledger.append(await trainer.completion(found["id"]))
            answer = {"role": "assistant", "content": "\n\nThe answer."}
            conversations.append({**shape, "messages": [*shape["messages"], answer]})
        config = SFTConfig(num_train_epochs=1, train_on="last")
        result = await trainer.sft("shapes", conversations, config)
    rows = JobQueue(real.home.jobs).rows(result.metrics["job"]["id"])
    assert rows is not None
    tokenizer = AutoTokenizer.from_pretrained(PACKAGE_MODELS["embedded"].ensure(real.cache))
    for row, completion in zip(rows.rows, ledger, strict=True):
        ((start, _),) = row.loss_spans
        assert row.ids[:start] == completion.prompt_token_ids
        text = tokenizer.decode(row.ids)
        assert text.endswith("<|im_start|>assistant\n\n\nThe answer.<|im_end|>")
        # Tokenized as one text, the newlines of prompt and answer would have merged: no prompt ends like that.
        assert tokenizer.encode(text, add_special_tokens=False) != row.ids
