"""Tool calls of the embedded model: parsed, streamed, and trained as what vLLM sampled."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from art_examples.quickstart.agent import PROMPT
from langchain_core.messages import convert_to_openai_messages

from art_langgraph import ChatART, TrainerClient
from tests.support.servers.real_server import Real
from trainer_server.engines.package_models import EMBEDDED

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("found_by_clients")]


async def test_vllm_says_of_a_new_version_what_the_trainer_computes(real: Real) -> None:
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": city}}
        for name in ("get_taxi_fare", "get_weather", "get_time")
    ]
    shown = convert_to_openai_messages(PROMPT)  # without demonstrations the embedded model calls nothing
    calls = {"tools": tools, "messages": [*shown, {"role": "user", "content": "What does a taxi cost in Oslo?"}]}
    kinds: list[dict[str, Any]] = [{}, {"stream": True}, {"n": 2}, calls, {"max_tokens": 3}]
    async with TrainerClient() as trainer, real.http() as http:
        await trainer.create_policy("exact")

        async def ask(number: int) -> list[str]:
            kind = kinds[number % len(kinds)]
            messages = [{"role": "user", "content": f"Say something about the number {number}."}]
            body = {"model": "exact", "max_tokens": 48, "messages": messages, **kind}
            answer = (await http.post("/v1/chat/completions", json=body)).raise_for_status()
            first = json.loads(answer.text.split("\n\n")[0].removeprefix("data: ") if "stream" in kind else answer.text)
            return [first["id"], *([f"{first['id']}.1"] if "n" in kind else [])]

        gaps = []
        answered: list[str] = []
        for version in (1, 2, 3):
            found = [one for ids in await asyncio.gather(*(ask(number) for number in range(10))) for one in ids]
            answered += found
            refs = [{"id": one, "reward": at % 2, "completions": [one]} for at, one in enumerate(found)]
            body = {"groups": [{"scenario_id": "s", "trajectories": refs}], "config": {"lr": 1e-3}}
            job = (await http.post("/api/policies/exact/steps", json=body)).raise_for_status().json()
            while job["status"] in ("queued", "running"):
                job = (await http.get(f"/api/jobs/{job['id']}", params={"wait": 50})).json()
            assert job["error"] is None
            result = job["result"]
            assert result["version"] == version
            assert (len(found), result["metrics"]["completions_skipped"]) == (12, {})
            gaps.append(result["metrics"]["logp_gap"])
            print(f"\nlogp_gap of exact@{version - 1}: {gaps[-1]:.4f}")
            assert result["metrics"]["sampler_ratio_mean"] == pytest.approx(1.0, abs=0.02), (version, result["metrics"])
        assert max(gaps) <= 0.03, gaps
        ends = [(await trainer.completion(one)).finish_reason for one in answered]
    assert {"stop", "length", "tool_calls"} <= set(ends)


async def test_tools_are_called_as_openai_has_it(real: Real) -> None:
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool

    @tool
    def get_time(city: str) -> str:
        """Local time in a city."""
        return city

    model = ChatART(policy=EMBEDDED, max_tokens=48, temperature=0).bind_tools([get_time])
    messages = [*PROMPT, HumanMessage("What time is it in Madrid?")]
    answer = await model.ainvoke(messages)
    assert [call["name"] for call in answer.tool_calls] == ["get_time"]
    async with real.http() as http:
        (engine,) = (await http.get("/api/engines")).json()["engines"]
        assert engine["missing"] == {}
        assert (engine["tool_parser"], engine["reasoning_parser"], engine["max_model_len"]) == ("hermes", None, 8192)
        assert (await http.get("/ready")).json()["tool_parser"] == "hermes"

    async def stream() -> list[tuple[str, Any]]:
        streamed = None
        async for chunk in model.astream(messages):
            streamed = chunk if streamed is None else streamed + chunk
        assert streamed is not None
        return [(call["name"], call["args"]) for call in streamed.tool_calls]

    called = [(call["name"], call["args"]) for call in answer.tool_calls]
    assert await stream() == called
    # Of 40 streams at once, most get two to five tokens in an event, which may begin in the middle of a call.
    assert await asyncio.gather(*(stream() for _ in range(40))) == [called] * 40
