"""Places at the engines: so many requests at once, others in line, and 429 beyond the line."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.support.patience import PATIENCE
from tests.support.servers.trainer_server import TOKEN, TrainerServer
from trainer_server.gateway import sampler as module
from trainer_server.gateway.errors import APIError
from trainer_server.gateway.sampler import Admission


async def test_requests_stand_in_line_and_are_refused_beyond_it() -> None:
    places, order = Admission(running=2, waiting=1), []
    leave = [asyncio.Event() for _ in range(3)]

    async def ask(number: int) -> None:
        with places.admit("agent" if number else None):
            async with places.turn():
                order.append(number)
                await leave[number].wait()

    asked = [asyncio.create_task(ask(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert order == [0, 1]
    assert (places.running, places.under_way, dict(places.by_policy)) == (2, 3, {None: 1, "agent": 2})
    with pytest.raises(APIError) as refused:
        await ask(3)
    assert (refused.value.status, refused.value.retry_after) == (429, module.RETRY_AFTER)
    assert refused.value.response().headers["Retry-After"] == str(module.RETRY_AFTER)
    assert places.refusal_count == 1
    leave[1].set()
    await asked[1]
    async with asyncio.timeout(PATIENCE):
        while order != [0, 1, 2]:
            await asyncio.sleep(0)
    asked[2].cancel()
    asked[0].cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    leave[0].set()
    await ask(0)  # all places are free again
    assert (places.running, places.under_way, dict(places.by_policy)) == (0, 0, {})


async def test_chat_openai_waits_out_a_refusal(server: TrainerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own retry does, with the seconds that the server names."""
    monkeypatch.setattr(module, "RETRY_AFTER", 1)
    places, statuses = Admission(running=1, waiting=0), []
    monkeypatch.setattr(server.app.state.server.gateway.sampler, "admission", places)

    async def note(answer: httpx.Response) -> None:
        statuses.append(answer.status_code)

    async with httpx.AsyncClient(event_hooks={"response": [note]}) as http:
        model = ChatOpenAI(
            model="agent", base_url=f"{server.url}/v1", api_key=SecretStr(TOKEN), http_async_client=http, max_tokens=50
        )
        first = asyncio.create_task(model.ainvoke("after 0.5 say one"))
        async with asyncio.timeout(PATIENCE):
            while not places.under_way:
                await asyncio.sleep(0.01)
        second = await model.ainvoke("say two")
        assert [(await first).text, second.text] == ["one", "two"]
    assert sorted(statuses)[:3] == [200, 200, 429]  # once, or more often where the first takes its time
    assert places.refusal_count == statuses.count(429) == len(statuses) - 2
