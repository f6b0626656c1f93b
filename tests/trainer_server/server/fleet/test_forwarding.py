"""Requests that only the elected server answers, and what reaches it of them."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from tests.support.pages.programs import program
from tests.support.patience import PATIENCE
from tests.support.servers.serving import serving
from trainer_server.ledger.base import LedgerError
from trainer_server.server.access import bodies
from trainer_server.server.access.scopes import RULES, answered_anywhere
from trainer_server.server.app import create_app
from trainer_server.server.config import ServerConfig
from trainer_server.server.fleet import forwarding
from trainer_server.server.fleet.forwarding import ToLeader
from trainer_server.wire import Home

Leader = Callable[[], str | None]


class Told:
    """An application that tells what reached it."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        told = {"by": self.name, "path": scope["raw_path"].decode(), "query": scope["query_string"].decode()}
        told |= {"method": scope["method"], "size": len(body), "headers": headers}
        await send({"type": "http.response.start", "status": 207, "headers": [(b"x-two", b"1"), (b"x-two", b"2")]})
        await send({"type": "http.response.body", "body": json.dumps(told).encode()})


@pytest.fixture
def leader() -> Iterator[tuple[Told, str]]:
    told = Told("leader")
    with serving(told) as url:
        yield told, url


def follower(leader: Leader, leads: Callable[[], bool] = lambda: False, **settings: Any) -> ToLeader:
    return ToLeader(Told("follower"), leads=leads, leader=leader, **settings)


def test_a_request_is_passed_on_as_it_is(leader: tuple[Told, str]) -> None:
    with serving(follower(lambda: leader[1])) as url, httpx.Client(base_url=url) as http:
        for size in (3, forwarding._KEPT + 1):  # kept to be sent again; or sent as it comes
            answer = http.post(
                "/api/policies/%C3%BC%2Fp/steps?a=1&b=%20",
                content=b"x" * size,
                headers={"Authorization": "Bearer t", "Host": "art.example.com"},
            )
            told = answer.json()
            assert (answer.status_code, answer.headers.get_list("x-two")) == (207, ["1", "2"])
            assert (told["by"], told["method"], told["size"]) == ("leader", "POST", size)
            assert (told["path"], told["query"]) == ("/api/policies/%C3%BC%2Fp/steps", "a=1&b=%20")
            assert (told["headers"]["authorization"], told["headers"]["host"]) == ("Bearer t", "art.example.com")
        told = http.get("/").json()
        assert told["headers"]["host"] == leader[1].removeprefix("http://"), "an address is that of one server"


@pytest.mark.parametrize("size", [9, forwarding._KEPT + 1])
async def test_a_body_that_stops_coming_is_not_waited_for(
    leader: tuple[Told, str], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(bodies, "BODY_TIMEOUT", 0.05)
    parts: list[dict[str, object]] = [{"type": "http.request", "body": b"[", "more_body": True}]
    sent: list[Any] = []

    async def receive() -> Any:
        return parts.pop() if parts else await asyncio.Future()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-length", str(size).encode())]
    scope = {"type": "http", "method": "POST", "path": "/api/policies", "headers": headers, "query_string": b""}
    async with asyncio.timeout(PATIENCE):
        await follower(lambda: leader[1])(scope, receive, send)
    assert sent[0]["status"] == 408


def test_without_a_token_nothing_is_passed_on(tmp_path: Path, base_model: Path) -> None:
    class Nobody:
        def address(self) -> str:
            raise AssertionError("the elected server was looked for")

    config = ServerConfig(Home(tmp_path), model=str(base_model), engine="tests.support.engines.letters:make")
    app = create_app(config, "token", election=Nobody())  # type: ignore[arg-type]
    answer = TestClient(app, base_url="http://127.0.0.1").post("/api/policies", json={"name": "p"})
    assert answer.status_code == 401


def test_what_every_server_answers_goes_nowhere(leader: tuple[Told, str]) -> None:
    with serving(follower(lambda: leader[1])) as url, httpx.Client(base_url=url) as http:
        for path in ("/v1/chat/completions", "/rollouts/r/v1/responses", "/api/rollouts/r/reward"):
            assert http.post(path).json()["by"] == "follower"
        assert http.get("/health").json()["by"] == "follower"
        assert http.get("/api/policies").json()["by"] == "leader"
        assert http.get("/api/unknown").json()["by"] == "leader"


def test_a_server_that_is_elected_meanwhile_answers_by_itself() -> None:
    elected: list[bool] = []

    def nobody() -> str | None:
        elected.append(True)
        return None

    with serving(follower(nobody, lambda: len(elected) > 1)) as url:
        answer = httpx.post(f"{url}/api/policies", content=b"abc")
    assert (answer.json()["by"], answer.json()["size"]) == ("follower", 3)


@contextmanager
def dies_when_asked() -> Iterator[tuple[str, list[bytes]]]:
    """The address of a server that closes the connection once it has received a request, and what it received."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        received: list[bytes] = []

        def receive() -> None:
            connection, _ = listener.accept()
            with connection:
                received.append(connection.recv(10_000))

        thread = threading.Thread(target=receive)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", received
        thread.join()


def test_a_request_waits_for_a_server_to_be_elected_and_is_sent_again(leader: tuple[Told, str]) -> None:
    with socket.socket() as closed, dies_when_asked() as (killed, received):
        closed.bind(("127.0.0.1", 0))
        places = [None, f"http://127.0.0.1:{closed.getsockname()[1]}", killed]
        with serving(follower(lambda: places.pop(0) if places else leader[1])) as url:
            answer = httpx.post(f"{url}/api/policies", content=b"abc", timeout=30)
    assert received[0].startswith(b"POST /api/policies HTTP/1.1")
    assert (answer.json()["by"], answer.json()["size"]) == ("leader", 3)


@pytest.mark.parametrize("address", ["/api/policies/p/steps", "/api/policies/p/sft"])
@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": ""}])
def test_a_job_that_is_queued_again_has_the_key_that_it_had(
    leader: tuple[Told, str], address: str, headers: dict[str, str]
) -> None:
    with dies_when_asked() as (killed, received):
        places = [killed]
        with serving(follower(lambda: places.pop(0) if places else leader[1])) as url:
            again = httpx.post(f"{url}{address}", content=b"abc", headers=headers, timeout=30).json()
            other = httpx.post(f"{url}{address}", content=b"abc", headers=headers, timeout=30).json()
    key = again["headers"]["idempotency-key"]
    lines = received[0].partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
    assert [line for line in lines if line.startswith(b"idempotency-key")] == [f"idempotency-key: {key}".encode()]
    assert len(key) == 32
    assert other["headers"]["idempotency-key"] != key, "another request is another job"


def test_a_server_that_is_elected_meanwhile_gets_the_key_too(leader: tuple[Told, str]) -> None:
    asked: list[int] = []

    def nobody() -> str | None:
        asked.append(1)
        return None

    with serving(follower(nobody, lambda: len(asked) > 1)) as url:
        told = httpx.post(f"{url}/api/policies/p/steps", content=b"abc").json()
    assert (told["by"], len(told["headers"]["idempotency-key"])) == ("follower", 32)


def test_only_requests_that_queue_jobs_get_a_key_and_a_key_of_the_client_stays(leader: tuple[Told, str]) -> None:
    with serving(follower(lambda: leader[1])) as url, httpx.Client(base_url=url) as http:
        for method, path in (
            ("GET", "/api/policies/p/steps"),
            ("POST", "/api/policies"),
            ("POST", "/api/jobs/j/cancel"),
        ):
            assert "idempotency-key" not in http.request(method, path).json()["headers"]
        told = http.post("/api/policies/p/steps", headers={"Idempotency-Key": "mine"}).json()
        assert told["headers"]["idempotency-key"] == "mine"


async def test_an_elected_server_whose_machine_vanishes_is_noticed(leader: tuple[Told, str]) -> None:
    layer = follower(lambda: leader[1])
    transport = httpx.ASGITransport(app=layer)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.get("/api/jobs")).json()["by"] == "leader"
    assert layer._client is not None
    (kept,) = layer._client._transport._pool.connections  # type: ignore[attr-defined]
    made = kept._connection._network_stream.get_extra_info("socket")
    assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
    assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
    await layer._client.aclose()


def test_without_a_server_that_trains_the_reason_is_told() -> None:
    def away() -> str | None:
        raise LedgerError("the database is away")

    for leader, why in ((away, "the database is away"), ((lambda: None), "no server is elected")):
        with serving(follower(leader, patience=0.3)) as url:
            answer = httpx.get(f"{url}/api/jobs")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_leader")
        assert why in answer.json()["error"]["message"]


def test_the_certificate_of_the_fleet_is_trusted_and_no_other(tmp_path: Path) -> None:
    for name in ("own", "other"):
        line = [program("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-days", "2", "-subj", f"/CN={name}.example.com", "-keyout", tmp_path / f"{name}.key", "-out",
                tmp_path / f"{name}.pem"]  # fmt: skip
        subprocess.run(line, check=True, capture_output=True)

    async def ask(trusted: str) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "own.pem", tmp_path / "own.key")

        async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
            port = server.sockets[0].getsockname()[1]
            trusting = forwarding._trusting(tmp_path / f"{trusted}.pem")
            async with httpx.AsyncClient(verify=trusting) as http:
                return (await http.get(f"https://127.0.0.1:{port}/")).text

    assert asyncio.run(ask("own")) == "ok"
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(ask("other"))


def test_what_changes_policies_or_shows_jobs_is_for_the_one_that_trains() -> None:
    for name, rule in RULES.items():
        method, path = name.split()
        if rule.action is not None and rule.action != "version.fetch":
            assert not answered_anywhere(method, path), name
    assert answered_anywhere("GET", "/api/policies/p/versions/3/files")
    assert not answered_anywhere("GET", "/api/rollouts/r/records/c")
