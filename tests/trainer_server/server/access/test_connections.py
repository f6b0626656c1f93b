"""Connections: how many, how large heads are, how long they may say nothing, and what the server's end cuts off."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.patience import PATIENCE, until
from trainer_server.server.access import connections
from trainer_server.server.access.connections import DrainingServer, Limits, patient_protocol
from trainer_server.server.access.layers import StopHandler


@pytest.mark.parametrize("files", [256, 1024, 4096, 2**20, resource.RLIM_INFINITY])
def test_all_connections_together_fit_into_the_files(files: int) -> None:
    limits = Limits.of(files)
    assert 0 < limits.running < limits.running + limits.waiting < limits.connections
    assert files == resource.RLIM_INFINITY or limits.connections + limits.running + 128 <= files


def test_eight_hundred_chats_fit_into_the_usual_limit() -> None:
    limits = Limits.of(1024)
    assert limits.running + limits.waiting == 800


def test_the_soft_limit_of_files_is_raised_to_the_hard_one() -> None:
    code = "import resource; from trainer_server.server.access.connections import Limits, raise_file_limit"
    code += "; raise_file_limit(); print(resource.getrlimit(resource.RLIMIT_NOFILE), Limits.here().running)"
    line = ["sh", "-c", 'ulimit -Sn 256; ulimit -Hn 512; exec "$@"', "sh", sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "(512, 512) 32\n"
    assert "few files may be open (ulimit -n): 32 chat requests are answered at once" in done.stderr


LARGE = 32 * 2**20
"""Bytes of an answer that no socket's buffers hold."""


async def slow(request: Request) -> Response:
    await asyncio.sleep(600)
    return Response()


async def drip(_request: Request) -> Response:
    async def drops() -> AsyncIterator[bytes]:
        while not stopped.is_set():
            yield b"data: {}\n\n"
            await asyncio.sleep(0.01)
        yield b"data: end\n\n"

    stopped: asyncio.Event = _request.app.state.stopped
    return StreamingResponse(drops(), media_type="text/event-stream")


async def pour(_request: Request) -> Response:
    async def floods() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 2**20
            await asyncio.sleep(0)

    return StreamingResponse(floods())


async def large(_request: Request) -> Response:
    return Response(b"x" * LARGE)


async def hello(_request: Request) -> Response:
    return PlainTextResponse("hello")


async def names(request: Request) -> Response:
    """The names of the headers, when the body is whole."""
    await request.body()
    return PlainTextResponse(" ".join(name.decode() for name, _ in request.scope["headers"]))


def application() -> Starlette:
    routes = [Route("/slow", slow), Route("/drip", drip), Route("/pour", pour), Route("/large", large)]
    routes.append(Route("/names", names, methods=["POST"]))
    app = Starlette(routes=[*routes, Route("/", hello, methods=["GET", "POST"])])
    app.add_middleware(StopHandler)
    app.state.stopped = asyncio.Event()
    return app


@asynccontextmanager
async def served(most: int = 100, grace: float = 0.0, timeout: int = 1) -> AsyncIterator[tuple[DrainingServer, int]]:
    """The server in the test's own event loop, and its port."""
    app = application()
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            app,
            http=patient_protocol(most),
            ws="none",
            log_level="critical",
            timeout_graceful_shutdown=timeout,
            timeout_keep_alive=60,
        )
        server = DrainingServer(config, grace=grace, end=app.state.stopped.set)
        task = asyncio.create_task(server._serve([listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        yield server, listener.getsockname()[1]
        server.should_exit = True
        await task


async def closed_after(port: int, said: bytes) -> None:
    """Waits until the server has closed the connection of a client that says this and nothing more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    async with asyncio.timeout(PATIENCE):
        with suppress(ConnectionResetError):
            while await reader.read(1000):
                pass
    writer.close()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\nsome",
    ],
)
async def test_a_client_that_asks_nothing_is_closed(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    """Before its first request, in the middle of headers, and of a body that nobody reads."""
    monkeypatch.setattr(connections, "HEADER_TIMEOUT", 0.1)
    async with served() as (_, port):
        await closed_after(port, said)


@pytest.mark.parametrize("begun", [b"", b"GET /"])
async def test_a_connection_is_closed_long_after_its_answer(monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    """Also where a next request has begun together with the first one."""
    monkeypatch.setattr(connections, "KEEP_ALIVE", 0.1)
    async with served() as (_, port):
        await closed_after(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + begun)


async def test_a_connection_is_kept_after_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """For longer than headers may take; those of the next request may take no longer than those of the first."""
    monkeypatch.setattr(connections, "HEADER_TIMEOUT", 0.1)
    async with served() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(PATIENCE):
            for _ in range(2):
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
                await asyncio.sleep(0.4)
            writer.write(b"GET / HTTP/1.1\r\nHost")
            with suppress(ConnectionResetError):
                assert await reader.read(1000) == b""
        writer.close()


async def test_a_request_that_takes_long_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT", 0.3)
    async with served() as (_, port), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        async with http.stream("GET", "/drip") as answer:
            lines = answer.aiter_lines()
            for _ in range(80):
                assert await anext(lines) in ("data: {}", "")
        assert (await http.get("/")).text == "hello"


GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST /names HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


async def flood(port: int, head: bytes, piece: bytes, most: int = 2**20) -> tuple[int, bytes]:
    """Sends a head, and then the same piece until the server answers or closes the connection, or has got `most` bytes.
    Returns how many bytes it took, and the first line of its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    line, sent = asyncio.create_task(reader.readline()), 0
    async with asyncio.timeout(PATIENCE):
        with suppress(ConnectionError):
            while sent < most and not line.done():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
                sent += len(piece)
        try:
            return sent, await line
        except ConnectionError:
            return sent, b""
        finally:
            writer.close()


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (GET, b"x: y\r\n" * 100),
        (GET, b"x: " + b"y" * 5000 + b"\r\n"),
        (GET + b"x: ", b"y" * 1000),
        (GET, b"x" * 1000),
        (b"GET /", b"a" * 1000),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"x: y\r\n" * 20_000 + b"\r\n", b"\r\n"),
        (CHUNKED + b"0\r\n", b"x: y\r\n" * 100),
        (CHUNKED + b"0\r\nx: ", b"y" * 1000),
        (CHUNKED + b"3\r\nabc\r\n0\r\n", b"x: " + b"y" * 5000 + b"\r\n"),
        (CHUNKED + b"3;", b"a" * 1000),
        (CHUNKED, b"0" * 1000),
    ],
)
async def test_heads_and_trailers_have_an_end(head: bytes, piece: bytes) -> None:
    """In many fields, in one, in the address, in a chunk's size; in one piece, and in many."""
    async with served() as (_, port):
        sent, line = await flood(port, head, piece)
        assert line == b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
        assert sent < 2**20
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            assert (await http.get("/")).text == "hello"


async def test_trailers_are_cut_off_in_the_middle_of_an_answer() -> None:
    """It cannot be answered 431 any more."""
    async with served() as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CHUNKED.replace(b"POST /names", b"GET /drip") + b"0\r\n")
        async with asyncio.timeout(PATIENCE):
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
            writer.write(b"x: y\r\n" * 1000)
            with suppress(ConnectionError):
                assert b"HTTP/1.1 431" not in await reader.read()
        writer.close()
        await until(lambda: not server.server_state.connections)


async def test_the_largest_head_is_taken() -> None:
    fields = connections.MOST_FIELDS - 1
    small = b"".join(b"x-%d: y\r\n" % number for number in range(fields))
    for more in (small, b"x: " + b"y" * (connections.MOST_HEAD - 100) + b"\r\n"):
        async with served() as (_, port):
            _, line = await flood(port, GET + more + b"\r\n", b"", most=0)
            assert line == b"HTTP/1.1 200 OK\r\n"


async def test_trailers_are_no_headers() -> None:
    """Neither of their own request nor of the next one on the connection."""
    trailed = CHUNKED + b"3\r\nabc\r\n0\r\nX-ART-Temperature: 0\r\nAuthorization: Bearer x\r\n\r\n"
    async with served() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(trailed + CHUNKED.replace(b"chunked", b"chunked\r\nConnection: close") + b"0\r\n\r\n")
        async with asyncio.timeout(PATIENCE):
            answers = await reader.read()
        writer.close()
    bodies = [answer.partition(b"\r\n\r\n")[2] for answer in answers.split(b"HTTP/1.1 200 OK")[1:]]
    assert bodies == [b"host transfer-encoding", b"host transfer-encoding connection"]


async def test_trailers_that_trickle_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an answer that did not wait for them; whoever waits for a body has a limit of his own."""
    monkeypatch.setattr(connections, "HEADER_TIMEOUT", 0.1)
    async with served() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CHUNKED.replace(b"/names", b"/") + b"0\r\n")
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionError):
                while not reader.at_eof():
                    writer.write(b"x")
                    await writer.drain()
                    await reader.read(1000)
        writer.close()


async def test_a_head_that_trickles_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT", 0.1)
    async with served() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionError):
                while not reader.at_eof():
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.01)
        writer.close()


async def test_a_client_cannot_send_requests_without_end_before_their_answers() -> None:
    async with served() as (server, port):
        await flood(port, b"", (GET + b"\r\n") * 1000, most=2**24)
        await until(lambda: not server.server_state.connections)
        assert server.server_state.total_requests < 1000
        _, line = await flood(port, (GET + b"\r\n") * 50, b"", most=0)
        assert line == b"HTTP/1.1 200 OK\r\n"


async def test_idle_connections_lock_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_YOUNG", 0.0)
    async with served(most=5) as (server, port):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        await until(lambda: len(server.server_state.connections) == 5)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            assert (await http.get("/")).text == "hello"
        for _, writer in idle:
            writer.close()


async def test_clients_that_do_not_take_their_answers_lock_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_YOUNG", 0.0)
    async with served(most=2) as (server, port):
        clients = [await asyncio.open_connection("127.0.0.1", port, limit=1) for _ in range(2)]
        for _, writer in clients:
            writer.write(b"GET /pour HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: all(one.flow.write_paused for one in server.server_state.connections))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            assert (await http.get("/")).text == "hello"
        for _, writer in clients:
            writer.transport.abort()
        await until(lambda: not server.server_state.connections)


async def test_an_answer_reaches_a_slow_client_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT", 0.1)
    monkeypatch.setattr(connections, "KEEP_ALIVE", 0.1)
    async with served() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(LARGE // 2**16):
            await reader.readexactly(2**16)
            await asyncio.sleep(0.001)
        writer.close()


async def test_requests_under_way_are_not_closed_for_new_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_YOUNG", 0.0)
    async with served(most=2) as (server, port), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        async with http.stream("GET", "/drip") as first, http.stream("GET", "/drip") as second:
            answer = await http.get("/")
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
            assert answer.json()["error"]["code"] == "too_many_connections"
            for begun in (first, second):
                assert await anext(begun.aiter_lines()) == "data: {}"
        await until(lambda: not server.server_state.connections)


async def test_each_of_many_connections_gets_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are refused too, whose requests nobody reads."""
    monkeypatch.setattr(connections, "_MOST_REFUSED", 100)
    monkeypatch.setattr(connections, "_REFUSED_CLOSE_TIMEOUT", PATIENCE)
    asked = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100000

    async def ask(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(asked)
        answer = await reader.read()
        writer.close()
        return answer.partition(b"\r\n")[0]

    async with served(most=3) as (_, port):
        lines = await asyncio.gather(*(ask(port) for _ in range(60)))
    assert {line.split()[1] for line in lines} == {b"200", b"503"}


async def test_refused_connections_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_REFUSED_CLOSE_TIMEOUT", 600.0)
    monkeypatch.setattr(connections, "_MOST_REFUSED", 2)
    async with (
        served(most=1) as (server, port),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
        http.stream("GET", "/drip"),
    ):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
        for reader, _ in silent[-2:]:
            assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 503")
        await until(lambda: len(server.server_state.connections) == 3)
        for _, writer in silent:
            writer.close()
        await until(lambda: len(server.server_state.connections) == 1)


async def test_what_the_servers_end_cuts_off_is_told_so() -> None:
    async with served(timeout=0) as (server, port), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        asking = asyncio.create_task(http.get("/slow", timeout=PATIENCE))
        await until(lambda: bool(server.server_state.tasks))
        server.should_exit = True
        answer = await asking
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    assert answer.json()["error"]["code"] == "server_stopping"


async def test_streams_are_told_to_end_after_the_grace_time() -> None:
    async with (
        served(timeout=10) as (server, port),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
        http.stream("GET", "/drip", timeout=PATIENCE) as answer,
    ):
        server.should_exit = True
        said = [line async for line in answer.aiter_lines() if line]
    assert said[-1] == "data: end"


def test_the_error_is_one_that_clients_retry() -> None:
    sent: list[dict[str, Any]] = []

    async def cancelled(*_: Any) -> None:
        raise asyncio.CancelledError

    async def send(message: Any) -> None:
        sent.append(dict(message))

    asyncio.run(StopHandler(cancelled)({"type": "http", "path": "/v1/models"}, None, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 503
    assert json.loads(sent[1]["body"])["error"]["type"] == "server_error"
