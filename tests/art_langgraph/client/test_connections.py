"""Connections of any number: they are used again, closed when the server has closed them, and not lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx
import httpx2
import pytest

from art_langgraph.client import connections
from art_langgraph.client.connections import unlimited_transport

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Server:
    """Answers each request when `gate` is open; `/close` closes the connection afterwards."""

    def __init__(self) -> None:
        self.opened = 0
        self.open_now = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self.open_now += 1
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await self.gate.wait()
                writer.write(ANSWER)
                if b"/close" in head:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open_now -= 1
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    yield server, f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    listener.close()


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_requests_at_once_have_a_connection_each_which_later_ones_use_again(
    server: tuple[Server, str], library: Any
) -> None:
    site, url = server
    async with aclosing(library.AsyncClient(transport=unlimited_transport(library, 200))) as http:
        for _ in range(3):
            site.gate.clear()
            asking = [asyncio.create_task(http.get(url)) for _ in range(150)]
            while site.opened < 150:
                await asyncio.sleep(0.01)
            site.gate.set()
            assert {(await one).text for one in asking} == {"ok"}
        for _ in range(5):
            await http.get(url)
        assert site.opened == 150
    await until_closed(site, 0)


async def test_no_more_are_kept_than_may_wait(server: tuple[Server, str]) -> None:
    site, url = server
    async with aclosing(httpx.AsyncClient(transport=unlimited_transport(httpx, 3))) as http:
        site.gate.clear()
        asking = [asyncio.create_task(http.get(url)) for _ in range(10)]
        while site.opened < 10:
            await asyncio.sleep(0.01)
        site.gate.set()
        await asyncio.gather(*asking)
        await until_closed(site, 3)


async def test_a_connection_that_the_server_has_closed_is_not_used(server: tuple[Server, str]) -> None:
    site, url = server
    async with aclosing(httpx.AsyncClient(transport=unlimited_transport(httpx, 8))) as http:
        assert (await http.get(f"{url}/close")).text == "ok"
        await until_closed(site, 0)
        assert (await http.get(url)).text == "ok"
        assert site.opened == 2


async def test_a_connection_that_has_waited_too_long_is_closed(
    server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, url = server
    monkeypatch.setattr(connections, "_LOOK", 0.0)
    transport = unlimited_transport(httpx, 8, limits=httpx.Limits(keepalive_expiry=0.2))
    async with aclosing(httpx.AsyncClient(transport=transport)) as http:
        site.gate.clear()
        asking = [asyncio.create_task(http.get(url)) for _ in range(4)]
        while site.opened < 4:
            await asyncio.sleep(0.01)
        site.gate.set()
        await asyncio.gather(*asking)
        for _ in range(8):  # one is in use all the time
            await asyncio.sleep(0.05)
            await http.get(url)
        await until_closed(site, 1)
        assert site.opened == 4


async def test_a_request_that_is_cancelled_or_left_closes_its_connection(server: tuple[Server, str]) -> None:
    site, url = server
    async with aclosing(httpx.AsyncClient(transport=unlimited_transport(httpx, 8))) as http:
        await http.get(url)
        site.gate.clear()
        asking = asyncio.create_task(http.get(url))
        await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        site.gate.set()
        await until_closed(site, 0)
        async with http.stream("GET", url):
            pass  # its body is not read
        assert (await http.get(url)).text == "ok"
        await until_closed(site, 1)


async def test_a_server_that_is_gone_is_an_error_of_each_request(server: tuple[Server, str]) -> None:
    async with aclosing(httpx.AsyncClient(transport=unlimited_transport(httpx, 8))) as http:
        for _ in range(2):
            with pytest.raises(httpx.ConnectError):
                await http.get("http://127.0.0.1:9")


async def until_closed(site: Server, count: int) -> None:
    async with asyncio.timeout(5):
        while site.open_now != count:
            await asyncio.sleep(0.01)
