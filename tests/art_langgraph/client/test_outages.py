"""A server that is gone is asked again for so long as was said, by all requests of the process together."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import httpx
import pytest

from art_langgraph import TrainerClient
from art_langgraph.cli.server_check import check_address
from art_langgraph.client.outages import outages, retry_seconds
from art_langgraph.client.transport import PatientAsyncClient, PatientClient
from tests.support.clock import Clock, still_clock
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.wire import ConfigError, ServerUnreachable

Handler = Callable[[httpx.Request], httpx.Response]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return still_clock(monkeypatch)


def lost(times: float, error: type[httpx.TransportError] = httpx.ConnectError) -> tuple[Handler, list[str]]:
    """A server that is gone for the first so many requests, and the list of what it was sent."""
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.content.decode())
        if len(asked) <= times:
            raise error("gone", request=request)
        return httpx.Response(200, text="here")

    return handle, asked


def patient(handle: Handler, retry_for: float = 120.0) -> PatientAsyncClient:
    return PatientAsyncClient(retry_for, transport=httpx.MockTransport(handle), base_url="http://server")


@pytest.mark.parametrize(
    "error", [httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError, httpx.ConnectTimeout]
)
async def test_a_request_is_sent_again_until_the_server_is_back(
    clock: Clock, error: type[httpx.TransportError], caplog: pytest.LogCaptureFixture
) -> None:
    handle, asked = lost(9, error)
    began = clock.now
    async with patient(handle) as http:
        assert (await http.post("/x", content="the body")).text == "here"
    assert asked == ["the body"] * 10
    gone, back = caplog.messages
    assert gone == f"no trainer server answers at http://server ({error.__name__}: gone): asking again for 120 s"
    assert back.startswith("the trainer server at http://server answers again, after ")
    assert outages.gone_since(httpx.URL("http://server/y"), began)
    assert not outages.gone_since(httpx.URL("http://server/y"), clock.now + 1)
    assert not outages.gone_since(httpx.URL("http://other/y"), began)


def test_a_model_without_an_event_loop_waits_too(clock: Clock) -> None:
    handle, asked = lost(9)
    with PatientClient(120.0, transport=httpx.MockTransport(handle)) as http:
        assert http.post("http://server/x").text == "here"
    assert len(asked) == 10


async def test_after_the_time_the_error_is_the_callers(clock: Clock) -> None:
    handle, asked = lost(1e9)
    began = clock.now
    async with patient(handle) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get("/x")
        assert clock.now - began == pytest.approx(120)
        sent = len(asked)
        with pytest.raises(httpx.ConnectError):  # a retry of the caller's own does not begin two minutes anew
            await http.get("/x")
        assert len(asked) == sent + 1
        clock.now += 60
        with pytest.raises(httpx.ConnectError):  # but a request long after does
            await http.get("/x")
        assert len(asked) > sent + 2


async def test_a_request_that_is_always_cut_off_is_given_up_though_others_are_answered(clock: Clock) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/bad":
            clock.now += 40  # as a proxy that cuts long answers off
            raise httpx.ReadError("cut", request=request)
        return httpx.Response(200, text="here")

    began = clock.now
    async with patient(handle) as http:
        asking = asyncio.create_task(http.get("/bad"))
        while not asking.done() and clock.now - began < 1000:
            await http.get("/good")
            await asyncio.sleep(0)
        asking.cancel()
        assert isinstance((await asyncio.gather(asking, return_exceptions=True))[0], httpx.ReadError)
    assert 120 <= clock.now - began <= 240


async def test_requests_at_the_same_time_tell_of_one_outage(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    handle, _ = lost(40)
    async with patient(handle) as http:
        answers = await asyncio.gather(*(http.get(f"/{number}") for number in range(10)))
    assert {answer.text for answer in answers} == {"here"}
    assert len(caplog.messages) == 2


async def test_a_connection_that_was_idle_for_too_long_is_not_told_of(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    handle, asked = lost(1, httpx.RemoteProtocolError)
    async with patient(handle) as http:
        await http.get("/x")
    assert len(asked) == 2
    assert caplog.messages == []


async def test_a_slow_server_is_not_gone(clock: Clock) -> None:
    handle, asked = lost(9, httpx.ReadTimeout)
    async with patient(handle) as http:
        with pytest.raises(httpx.ReadTimeout):
            await http.get("/x")
    assert len(asked) == 1


async def test_nobody_needs_to_wait(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    handle, asked = lost(9)
    async with patient(handle, retry_for=0) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get("/x")
    assert len(asked) == 1
    assert caplog.messages == []


def test_the_time_comes_from_the_argument_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ART_RETRY_FOR", raising=False)
    assert retry_seconds() == 120
    monkeypatch.setenv("ART_RETRY_FOR", "7")
    assert (retry_seconds(), retry_seconds(0), retry_seconds(3.5)) == (7, 0, 3.5)
    for wrong, name in itertools.product(["soon", "-1", "nan"], ["ART_RETRY_FOR"]):
        monkeypatch.setenv("ART_RETRY_FOR", wrong)
        with pytest.raises(ConfigError, match=f"{name}='{wrong}' is no number of seconds"):
            retry_seconds()
    with pytest.raises(ConfigError, match="retry_for=-1"):
        retry_seconds(-1)


def away(times: float, code: str | None) -> tuple[Handler, list[str]]:
    """A server that answers 503 to the first so many requests, and the list of what it was sent."""
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.content.decode())
        if len(asked) <= times:
            return httpx.Response(503, json={"error": {"message": "not now", "code": code}})
        return httpx.Response(200, text="here")

    return handle, asked


@pytest.mark.parametrize("code", ["server_stopping", "too_many_connections"])
async def test_a_server_that_only_says_that_it_is_away_is_asked_again(
    clock: Clock, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    handle, asked = away(9, code)
    async with patient(handle) as http:
        assert (await http.post("/x", content="the body")).text == "here"
    assert asked == ["the body"] * 10
    assert f"no trainer server answers at http://server (ServerAway: HTTP 503, {code})" in caplog.messages[0]
    handle, asked = away(9, code)
    with PatientClient(120.0, transport=httpx.MockTransport(handle)) as sync:
        assert sync.post("http://server/x").text == "here"
    assert len(asked) == 10


@pytest.mark.parametrize("status", [502, 503])
async def test_a_load_balancer_without_a_server_is_asked_again(clock: Clock, status: int) -> None:
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.content.decode())
        return httpx.Response(status, text="<html>") if len(asked) < 10 else httpx.Response(200, text="here")

    async with patient(handle) as http:
        assert (await http.post("/x", content="the body")).text == "here"
    assert asked == ["the body"] * 10


async def test_a_job_is_waited_for_while_its_server_restarts(clock: Clock) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if clock.now < began + 20:
            return httpx.Response(503, json={"error": {"message": "stopped", "code": "server_stopping"}})
        return httpx.Response(
            200, json={"id": "job-1", "policy": "agent", "kind": "step", "status": "queued", "created": 1.0}
        )

    began = clock.now
    async with TrainerClient("http://server", "key") as trainer:
        trainer._http._transport = httpx.MockTransport(handle)
        assert (await trainer.job("job-1", wait=20)).id == "job-1"


@pytest.mark.parametrize(("code", "retry_for", "sent"), [("engine_not_ready", 120, 1), ("server_stopping", 0, 1)])
async def test_another_503_and_one_after_the_time_are_answers(
    clock: Clock, code: str, retry_for: float, sent: int
) -> None:
    handle, asked = away(1e9, code)
    async with patient(handle, retry_for) as http:
        assert (await http.get("/x")).json()["error"]["code"] == code
        async with http.stream("GET", "/x") as answer:
            assert answer.status_code == 503
            assert b"not now" in await answer.aread()
    assert len(asked) == 2 * sent


async def test_an_https_address_of_a_server_that_speaks_http_is_named_at_once(server: TrainerServer) -> None:
    url = server.url.replace("http:", "https:")
    expected = rf"no trainer server answers at {url} \(.*speaks http\)\. Use {server.url} \(ART_BASE_URL"
    async with TrainerClient(url, "key") as client:  # which would wait for two minutes
        with pytest.raises(ServerUnreachable, match=expected):
            await client.policies()
    with pytest.raises(ServerUnreachable, match=expected):
        check_address(url)
