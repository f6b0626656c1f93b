"""vLLM's HTTP: what its answers and its silence become for the rest of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from testbed.engine_app import make_app
from tests.support.serving import serving
from trainer_server.engines.base import AdapterLost, AdapterRefused, EngineLost, RequestRefused
from trainer_server.engines.vllm.command import free_port
from trainer_server.engines.vllm.dialect import VLLMClient
from trainer_server.wire import EngineError


@pytest.fixture
async def engine() -> AsyncIterator[tuple[VLLMClient, dict[str, Any]]]:
    app = make_app()
    with serving(app) as url:
        client = VLLMClient(url, None, base="base", cpu=True)
        yield client, app.state.engine
        await client.close()


def question(text: str, model: str = "base", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 20, **more}


async def test_an_answer_whole_and_in_chunks(engine: tuple[VLLMClient, dict[str, Any]]) -> None:
    client, _ = engine
    async with client.chat(question("say hi")) as reply:
        (choice,) = (await reply.whole())["choices"]
    assert choice["token_ids"] == [ord("h"), ord("i")]
    async with client.chat(question("say hi", stream=True)) as reply:
        chunks = [chunk async for chunk in reply.chunks()]
    assert chunks[0]["prompt_token_ids"]
    assert "".join(part["delta"].get("content") or "" for chunk in chunks for part in chunk["choices"]) == "hi"


async def test_a_chunk_ends_at_a_line_feed_and_nowhere_else(engine: tuple[VLLMClient, dict[str, Any]]) -> None:
    client, _ = engine
    async with client.chat(question("say a\u2028b\x85c\x1cd", stream=True)) as reply:
        chunks = [chunk async for chunk in reply.chunks()]
    said = "".join(part["delta"].get("content") or "" for chunk in chunks for part in chunk["choices"])
    assert said == "a\u2028b\x85c\x1cd"


async def test_no_seed_reaches_a_vllm_on_cpus(engine: tuple[VLLMClient, dict[str, Any]]) -> None:
    client, state = engine
    for cpu in (True, False):
        client._cpu = cpu
        async with client.chat(question("say hi", seed=7)) as reply:
            await reply.whole()
        assert ("seed" in state["requests"][-1]) is not cpu


async def test_leaving_early_aborts_the_generation(engine: tuple[VLLMClient, dict[str, Any]]) -> None:
    client, state = engine
    async with client.chat(question("slow", stream=True)) as reply:
        await anext(reply.chunks())
    async with asyncio.timeout(10):
        while not state["aborted"]:
            await asyncio.sleep(0.02)


async def test_refusals_are_told_apart(engine: tuple[VLLMClient, dict[str, Any]]) -> None:
    client, _ = engine
    with pytest.raises(AdapterLost, match="does not hold p@3"):
        async with client.chat(question("say hi", "p@3")):
            pass
    with pytest.raises(RequestRefused) as refused:
        async with client.chat(question("x" * 3_000)):
            pass
    assert (refused.value.status, refused.value.too_long) == (400, True)
    with pytest.raises(RequestRefused, match="the template says no"):
        await client.render({"messages": [{"role": "user", "content": "unrenderable"}]}, generation=True)


async def test_an_adapter_that_is_not_there_is_refused_and_a_start_is_waited_for(
    engine: tuple[VLLMClient, dict[str, Any]], tmp_path: Path
) -> None:
    client, state = engine
    with pytest.raises(AdapterRefused, match="p@1"):
        await client.load("p@1", tmp_path)
    state["unloadable"] = 1
    with pytest.raises(EngineError, match="answered 503") as starting:
        await client.load("p@1", tmp_path)
    assert not isinstance(starting.value, AdapterRefused)


async def test_silence_says_whether_the_request_arrived(engine: tuple[VLLMClient, dict[str, Any]]) -> None:
    client, _ = engine
    with pytest.raises(EngineLost) as broken:
        async with client.chat(question("die", stream=True)) as reply:
            [chunk async for chunk in reply.chunks()]
    assert broken.value.reached
    nobody = VLLMClient(f"http://127.0.0.1:{free_port()}", None, base="base", cpu=True)
    assert not await nobody.healthy()
    with pytest.raises(EngineLost) as away:
        async with nobody.chat(question("say hi")):
            pass
    assert not away.value.reached
    await nobody.close()
