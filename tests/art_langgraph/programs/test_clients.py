"""Which requests of httpx's clients say which rollout they are made in."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from art_langgraph.capture.handler import ARTCallbackHandler
from art_langgraph.capture.scope import Scope, recording
from art_langgraph.programs.clients import tie_clients
from tests.support.patience import PATIENCE
from tests.support.servers.serving import serving

KEYED = {"Authorization": "Bearer key"}


async def _headers(request: Request) -> Response:
    kept = {name: value for name, value in request.headers.items() if name.startswith("x-art-")}
    return JSONResponse(kept, 500 if request.url.path.endswith("/failing") else 200)


@pytest.fixture(scope="module")
def home() -> Iterator[str]:
    with serving(Starlette(routes=[Route("/{path:path}", _headers, methods=["GET", "POST"])])) as url:
        yield url


@pytest.fixture(autouse=True)
def tied(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_BASE_URL", home)
    monkeypatch.setenv("ART_API_KEY", "key")
    tie_clients()
    tie_clients()


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
async def test_requests_to_the_server_say_their_rollout(home: str, library: str) -> None:
    http: Any = pytest.importorskip(library)
    scope = Scope(temperature=0.5, version={"agent": 3, "critic": 1})
    with recording(scope, ARTCallbackHandler(scope)):
        expected = {
            "x-art-rollout": scope.rollout_id,
            "x-art-temperature": "0.5",
            "x-art-version": "agent=3,critic=1",
        }
        async with http.AsyncClient(headers={"x-api-key": "key"}) as client:
            assert (await client.post(f"{home}/v1/messages")).json() == expected
        assert await asyncio.to_thread(lambda: http.post(f"{home}/v1/responses", headers=KEYED).json()) == expected
        assert http.post(f"{home.replace('127.0.0.1', 'localhost')}/v1/x", headers=KEYED).json() == expected
        own = http.post(f"{home}/rollouts/{scope.rollout_id}/v1/chat/completions", headers=KEYED).json()
        assert own == expected
        assert scope.mark_count == 4
        http.post(f"{home}/v1/failing", headers=KEYED)
        assert scope.mark_count == 4, "answers are counted, not attempts"
        assert scope.outside
        assert scope.servers == {(home, "key")}
    assert http.post(f"{home}/v1/messages", headers=KEYED).json() == {}


def test_other_requests_are_left_alone(home: str) -> None:
    scope = Scope(temperature=0.5)
    elsewhere_app = Starlette(routes=[Route("/{path:path}", _headers, methods=["GET", "POST"])])
    with serving(elsewhere_app) as elsewhere, recording(scope, ARTCallbackHandler(scope)):
        for url in (f"{elsewhere}/v1/messages", f"{home}/api/policies", f"{home}/rollouts/other/v1/x"):
            assert httpx.post(url, headers=KEYED).json() == {}
        assert httpx.get(f"{home}/v1/models", headers=KEYED).json() == {}
        assert httpx.post(f"{home}/v1/x", headers={"Authorization": "Bearer of-another"}).json() == {}
        said = httpx.post(f"{home}/v1/x", headers={**KEYED, "X-ART-Rollout": "mine"}).json()
        assert said == {"x-art-rollout": "mine"}
        bare: list[Any] = []
        thread = threading.Thread(target=lambda: bare.append(httpx.post(f"{home}/v1/x", headers=KEYED).json()))
        thread.start()
        thread.join()
        assert bare == [{}]
    assert not scope.outside


def test_a_method_is_wrapped_once() -> None:
    for library in ("httpx", "httpx2"):
        try:
            module: Any = importlib.import_module(library)
        except ImportError:
            continue
        assert not hasattr(module.Client.send.__wrapped__, "__wrapped__")
        assert not hasattr(module.AsyncClient.send.__wrapped__, "__wrapped__")


async def test_a_client_that_nobody_closed_ends_no_connection_of_others(home: str) -> None:
    """The garbage collector frees the numbers of its sockets, and asyncio stops reading from them a little later."""
    loop, address = asyncio.get_running_loop(), httpx.URL(home)

    async def agent() -> None:
        client = AsyncOpenAI(base_url=f"{home}/v1", api_key="key")
        await client.chat.completions.create(model="p", messages=[{"role": "user", "content": "x"}])

    gc.disable()
    try:
        await asyncio.create_task(agent())
        await asyncio.sleep(0.05)
        gc.collect()
        with socket.create_connection((address.host, address.port or 80)) as other:
            answered = asyncio.Event()
            loop.add_reader(other, answered.set)
            await asyncio.sleep(0.05)
            other.sendall(b"GET /health HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n")
            await asyncio.wait_for(answered.wait(), PATIENCE)
            loop.remove_reader(other)
    finally:
        gc.enable()


async def test_clients_of_rollouts_that_nobody_closed_close_without_an_error(home: str) -> None:
    """Several connections take several turns of the loop to close."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

    async def agent() -> None:
        client = AsyncOpenAI(base_url=f"{home}/v1", api_key="key", max_retries=0)
        ask = functools.partial(client.chat.completions.create, model="p", messages=[{"role": "user", "content": "x"}])
        await ask()  # outside of any rollout, by connections of another kind
        scope = Scope()
        with recording(scope, ARTCallbackHandler(scope)):
            await asyncio.gather(*[ask() for _ in range(4)])

    gc.disable()
    try:
        await asyncio.create_task(agent())
        for _ in range(3):  # the client; the tasks that close it; what they leave
            gc.collect()
            await asyncio.sleep(0.05)
    finally:
        gc.enable()
    assert errors == []
