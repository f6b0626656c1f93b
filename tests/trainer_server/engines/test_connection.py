"""HTTP to an engine: answers whole and as they come, and what is known of a request that was not answered."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from testbed.engine_app import make_app
from tests.support.servers.serving import serving
from trainer_server.engines import connection
from trainer_server.engines.connection import EngineConnection, RequestFailure
from trainer_server.engines.vllm.command import free_port

ASKED = {"model": "base", "messages": [{"role": "user", "content": "say hi"}], "max_tokens": 5}


async def test_an_answer_whole_and_as_it_comes() -> None:
    with serving(make_app()) as url:
        engine = EngineConnection(f"{url}/", None)
        answer = await engine.request("POST", "/v1/chat/completions", timeout=60, body=ASKED)
        assert (answer.status, "hi" in answer.text) == (200, True)
        async with engine.stream("POST", "/v1/chat/completions", body={**ASKED, "stream": True}) as coming:
            said = b"".join([chunk async for chunk in coming.chunks()])
        assert said.rstrip().endswith(b"data: [DONE]")
        await engine.close()
        assert (await engine.request("GET", "/health", timeout=60)).status == 200, "it opens a new connection"
        await engine.close()


async def test_an_engine_whose_machine_vanishes_is_noticed_during_a_long_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, make = list[socket.socket](), connection._watched_socket

    def kept(address: Any) -> socket.socket:
        made.append(make(address))
        return made[-1]

    monkeypatch.setattr(connection, "_watched_socket", kept)
    with serving(make_app()) as url:
        engine = EngineConnection(url, None)
        await engine.request("GET", "/health", timeout=60)
        (one,) = made
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        await engine.close()


async def test_what_went_wrong_does_not_tell_the_key() -> None:
    async def speak_no_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        writer.close()

    listener = await asyncio.start_server(speak_no_http, "127.0.0.1", 0)
    engine = EngineConnection(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", "secret-key")
    with pytest.raises(RequestFailure) as other:
        await engine.request("GET", "/health", timeout=60)
    assert "SSH-2.0" in str(other.value)
    assert "secret-key" not in str(other.value)
    await engine.close()
    listener.close()


async def test_what_is_known_of_a_request_that_was_not_answered() -> None:
    nobody = EngineConnection(f"http://127.0.0.1:{free_port()}", None)
    with pytest.raises(RequestFailure) as away:
        await nobody.request("GET", "/health", timeout=60)
    assert (away.value.reached, away.value.timed_out, away.value.out_of_files) == (False, False, False)
    await nobody.close()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/part" in head:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")
            await writer.drain()
        if b"/silent" in head:
            await reader.read()  # until the client gives up
        writer.close()

    listener = await asyncio.start_server(listen, "127.0.0.1", 0)
    engine = EngineConnection(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", None)
    for path, timed_out in (("/closed", False), ("/part", False), ("/silent", True)):
        with pytest.raises(RequestFailure) as lost:
            await engine.request("GET", path, timeout=0.2 if timed_out else 60)
        assert (lost.value.reached, lost.value.timed_out) == (True, timed_out), path
    await engine.close()
    listener.close()
    await asyncio.sleep(0.1)  # so that its last connection ends


async def test_a_cancelled_task_ends_also_when_its_request_runs_out_of_time_in_the_same_moment() -> None:
    """A supervisor that looks after its engine would go on for ever, and its server would not stop."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(listen, "127.0.0.1", 0)
    engine = EngineConnection(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", None)
    loop, limit = asyncio.get_running_loop(), 0.1
    for later in (-0.01, 0.01):  # the cancellation is the first of the two, or the second
        asked = asyncio.ensure_future(engine.request("GET", "/health", timeout=limit))
        loop.call_later(limit / 2, time.sleep, limit)  # so that both are due when the loop goes on
        loop.call_later(limit + later, asked.cancel)
        with pytest.raises(asyncio.CancelledError):
            await asked
    await engine.close()
    listener.close()
    await asyncio.sleep(0.1)  # so that its last connection ends
