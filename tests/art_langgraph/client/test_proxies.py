"""Proxies of the environment: loopback is asked directly, other servers by them, and errors name them."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import certifi
import httpx
import pytest
from openai import APIConnectionError, OpenAI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from art_langgraph import ChatART, TrainerClient
from art_langgraph.client.proxies import ProxyTransport, certificates, exempt_clients, get
from tests.support.patience import PATIENCE
from tests.support.proxies.refusing_proxy import RefusingProxy, refusing_proxy, without_proxies
from tests.support.servers.serving import serving
from tests.support.servers.trainer_server import TOKEN, TrainerServer
from trainer_server.wire import ConfigError, ServerUnreachable

ELSEWHERE = "http://trainer.example:8400"


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[RefusingProxy]:
    """A proxy that the environment of this process names."""
    without_proxies(monkeypatch)
    with refusing_proxy() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture(scope="module")
def hello() -> Iterator[str]:
    """The address of a server that says hello, and that is no trainer server."""

    async def say(_request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    with serving(Starlette(routes=[Route("/", say)])) as url:
        yield url


def test_clients_of_every_kind_ask_loopback_directly_behind_a_proxy(server: TrainerServer) -> None:
    from tests.support.mcp.server import server as tools

    with refusing_proxy() as proxy, serving(tools.streamable_http_app()) as mcp_url:
        command = [sys.executable, "-m", "tests.support.proxies.behind_proxy", server.url, TOKEN, f"{mcp_url}/mcp"]
        environment = {**os.environ, **proxy.environment, "NO_PROXY": "", "no_proxy": ""}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        answers = json.loads(done.stdout)
        assert answers.pop("elsewhere").startswith(
            f"no trainer server answers at http://trainer.example (ProxyError: HTTP 403, by the proxy {proxy.url} "
            "(http_proxy): if trainer.example needs no proxy, set NO_PROXY=trainer.example)"
        )
        assert answers == {
            "TrainerClient": "admin",
            "ChatART": "hello",
            "ChatOpenAI": "hello",
            "OpenAI": "hello 200",
            "connect": server.url,
            "MCP": "3",
            "record": True,
            "unsent": 0,
            "unchanged": True,
        }
        assert proxy.asked == ["GET http://trainer.example/api/token"]
        assert "langchain-openai injected" not in done.stderr
        assert "pass-word" not in done.stderr


@pytest.mark.parametrize(
    ("url", "status", "message"),
    [
        (ELSEWHERE, "407 Proxy Authentication Required", "ProxyError: HTTP 407, by the proxy"),
        (ELSEWHERE, "502 Bad Gateway", "ConnectError: HTTP 502, by the proxy"),
        ("https://trainer.example", "403 Forbidden", "ProxyError: 403 Forbidden, by the proxy"),
        ("https://trainer.example", "503 Service Unavailable", "ConnectError: 503 Service Unavailable, by the proxy"),
    ],
)
async def test_the_error_of_a_refusing_proxy_names_it_and_not_its_password(
    proxy: RefusingProxy, url: str, status: str, message: str
) -> None:
    proxy.status = status
    async with TrainerClient(url, TOKEN, retry_for=0) as trainer:
        with pytest.raises(ServerUnreachable) as raised:
            await trainer.token()
    variable = f"{url.partition(':')[0]}_proxy"
    assert f"({message} {proxy.url} ({variable}): if trainer.example needs no proxy, " in str(raised.value)
    assert "pass-word" not in str(raised.value)
    assert len(proxy.asked) == 1


async def test_a_proxy_that_is_not_there_is_named(proxy: RefusingProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    async with TrainerClient(ELSEWHERE, TOKEN, retry_for=0) as trainer:
        with pytest.raises(ServerUnreachable, match=r"failed, by the proxy http://127\.0\.0\.1:9 \(http_proxy\): "):
            await trainer.token()


def test_a_chat_model_says_once_that_a_proxy_refuses(proxy: RefusingProxy, caplog: pytest.LogCaptureFixture) -> None:
    model = ChatART(policy="agent", base_url="http://refused.example", api_key=TOKEN, retry_for=0, max_retries=0)
    for _ in range(2):
        with caplog.at_level(logging.WARNING), pytest.raises(APIConnectionError):
            model.invoke("hello")
    warnings = [text for text in caplog.messages if "refused" in text]
    assert warnings == [
        f"a request was refused: HTTP 403, by the proxy {proxy.url} (http_proxy): if refused.example needs no proxy, "
        "set NO_PROXY=refused.example"
    ]


def test_a_server_behind_a_proxy_that_passes_requests_on_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    without_proxies(monkeypatch)

    async def forward(request: Request) -> PlainTextResponse:
        return PlainTextResponse("no place", 503, headers={"X-Request-Id": "1"})

    with serving(Starlette(routes=[Route("/{path:path}", forward)])) as url:
        monkeypatch.setenv("HTTP_PROXY", url)
        answer = get(f"{ELSEWHERE}/health")
    assert (answer.status_code, answer.text) == (503, "no place"), "the server's own refusal stays one"


def test_a_proxy_that_cannot_be_used_is_an_error_only_for_those_that_need_it(
    hello: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_proxies(monkeypatch)
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://me:secret@proxy.corp:1080")
    assert get(hello).text == "hello"
    needs = r"socks5://proxy\.corp:1080 \(ALL_PROXY\) needs a package: pip install 'httpx\[socks\]'; or if trainer"
    with pytest.raises(ConfigError, match=needs):
        get(ELSEWHERE)
    monkeypatch.setenv("ALL_PROXY", "http://me:sec/ret@proxy.corp:port")
    with pytest.raises(ConfigError, match=r"http://proxy\.corp:port \(ALL_PROXY\) cannot be read"):
        get(ELSEWHERE)


def test_a_client_that_was_made_before_keeps_a_proxy_that_was_given_to_it(hello: str, proxy: RefusingProxy) -> None:
    def ask(client: Any) -> int:
        return int(client.get(hello).status_code)

    with refusing_proxy() as own, httpx.Client(proxy=own.url) as explicit, httpx.Client() as plain:
        exempt_clients()
        assert (ask(explicit), ask(plain)) == (403, 200)
        assert (len(own.asked), proxy.asked) == (1, [])
        with OpenAI(base_url=ELSEWHERE, api_key="x", max_retries=0) as client, pytest.raises(Exception, match="403"):
            client.models.list()
    assert proxy.asked == [f"GET {ELSEWHERE}/models"]


def test_clients_share_connections_by_proxy_and_certificates(
    hello: str, proxy: RefusingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = ProxyTransport()
    with httpx.Client(transport=transport) as http:
        for url in (hello, hello, ELSEWHERE, ELSEWHERE):
            try:
                http.get(url)
            except httpx.ProxyError:
                continue
        assert len(transport._pools._transports) == 2
    assert transport._pools._transports == {}
    trusted = certificates()
    assert certificates() is trusted
    monkeypatch.setenv("SSL_CERT_FILE", certifi.where())
    assert certificates() is not trusted
