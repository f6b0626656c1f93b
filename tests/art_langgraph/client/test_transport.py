"""One model object in several threads and event loops."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from art_langgraph import TrainerClient, rollout
from art_langgraph.client.transport import LoopTransport, PatientAsyncClient
from tests.support.patience import PATIENCE
from tests.support.runs.graphs import counting
from tests.support.servers.serving import serving
from tests.support.servers.trainer_server import TOKEN, TrainerServer


@pytest.fixture(scope="module")
def ports() -> Iterator[str]:
    """The address of a server that answers with the client's port."""

    async def port(request: Request) -> Response:
        assert request.client
        return PlainTextResponse(str(request.client.port))

    with serving(Starlette(routes=[Route("/", port)])) as url:
        yield url


def test_a_loop_keeps_its_connections_and_closes_them_when_it_ends(ports: str) -> None:
    transport = LoopTransport()
    client = httpx.AsyncClient(transport=transport)

    async def twice() -> list[str]:
        return [(await client.get(ports)).text for _ in range(2)]

    used = [asyncio.run(twice()) for _ in range(3)]
    assert all(first == second for first, second in used)
    assert len({first for first, _ in used}) == 3
    assert transport._pools == {}


@pytest.mark.slow
def test_a_loop_that_nobody_shut_down_is_forgotten(ports: str) -> None:
    transport = LoopTransport()
    client = httpx.AsyncClient(transport=transport)

    async def ask() -> None:
        await client.get(ports)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(ask())
    loop.close()
    assert list(transport._pools) == [loop]

    async def again() -> None:
        await client.get(ports)
        assert list(transport._pools) == [asyncio.get_running_loop()]
        await client.aclose()
        assert transport._pools == {}

    asyncio.run(again())
    del loop
    gc.collect()


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.usefixtures("connected")
def test_rollouts_in_several_threads_share_a_model(plain: bool) -> None:
    graph, begin = counting(plain=plain), threading.Barrier(4)

    def thread(_: int) -> list[Any]:
        begin.wait(PATIENCE)
        return [asyncio.run(rollout(graph, "x")) for _ in range(4)]

    with ThreadPoolExecutor(4) as pool:
        runs = [run for part in pool.map(thread, range(4)) for run in part]
    assert [run.error for run in runs] == [None] * 16
    assert sorted(int(run.final_text) for run in runs) == list(range(16))


def test_event_loops_share_a_client_of_openai_that_a_function_asks(connected: TrainerServer) -> None:
    client = AsyncOpenAI(base_url=f"{connected.url}/v1", api_key=TOKEN, max_retries=0)

    async def agent(question: str) -> str | None:
        messages: Any = [{"role": "user", "content": question}]
        answer = await client.chat.completions.create(model="agent", messages=messages, max_tokens=20)
        return answer.choices[0].message.content

    runs = [asyncio.run(rollout(agent, "say hello")) for _ in range(3)]
    assert [(run.error, run.output) for run in runs] == [(None, "hello")] * 3


def test_a_plain_chat_openai_may_be_shared_with_this_transport(connected: TrainerServer) -> None:
    model = ChatOpenAI(
        model="agent", base_url=f"{connected.url}/v1", api_key=SecretStr(TOKEN), max_retries=0, max_tokens=20,
        http_async_client=httpx.AsyncClient(transport=LoopTransport()),
    )  # fmt: skip

    def thread(_: int) -> list[str]:
        return [asyncio.run(model.ainvoke("say hello")).text for _ in range(4)]

    with ThreadPoolExecutor(4) as pool:
        assert [text for texts in pool.map(thread, range(4)) for text in texts] == ["hello"] * 16


async def test_a_server_that_stalls_is_asked_again_but_not_for_an_answer_of_a_model() -> None:
    asked: list[str] = []

    async def slow_at_first(request: Request) -> Response:
        asked.append(request.url.path)
        client._http.timeout = httpx.Timeout(PATIENCE)  # of the requests after this one
        await asyncio.sleep(2.0 if len(asked) == 1 else 0)
        return PlainTextResponse("[]")

    with serving(Starlette(routes=[Route("/{path:path}", slow_at_first, methods=["GET", "POST"])])) as url:
        async with TrainerClient(url, TOKEN, retry_for=20) as client:
            client._http.timeout = httpx.Timeout(0.3)
            assert (await client._request("GET", "/api/jobs")).text == "[]"
        assert len(asked) == 2
        asked.clear()
        async with PatientAsyncClient(20, timeout=0.3) as model:
            with pytest.raises(httpx.ReadTimeout):
                await model.post(f"{url}/v1/chat/completions")
        assert len(asked) == 1


async def test_proxies_of_the_environment_are_asked_except_for_those_without(
    ports: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def proxy(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await PlainTextResponse("by the proxy")(scope, receive, send)

    with serving(proxy) as url:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, url)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.setenv(name, "127.0.0.1")
        async with PatientAsyncClient(0, transport=LoopTransport()) as client:
            assert (await client.get("http://trainer.example/health")).text == "by the proxy"
            assert (await client.get(ports)).text.isdecimal()
