"""Servers that refuse calls because there are too many, that are slow, that fail, and that keep a state by session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from art_langgraph import rollout
from art_mcp import MCPScenario, connect, verify
from art_mcp.client.connection.patience import asked_to_wait, refused
from art_mcp.client.result import CallResult
from art_mcp.scenarios.plan import Plan, Step
from tests.support.mcp.commands import MOODY
from tests.support.mcp.graphs import calling
from tests.support.servers.serving import serving
from trainer_server.wire import MCPError


@pytest.mark.parametrize(
    ("text", "is_error", "limited", "wait"),
    [
        ("429 Too Many Requests", True, True, None),
        ("HTTP 429: rate limit, retry after 2 s", True, True, 2.0),
        ("Rate limit exceeded. Please try again in 250 ms.", True, True, 0.25),
        ("You are being rate-limited", True, True, None),
        ("the rate limit is 429 requests", False, False, None),
        ("no room 429", True, False, None),
        ("there is no product lamp", True, False, None),
    ],
)
def test_what_a_refusal_says(text: str, is_error: bool, limited: bool, wait: float | None) -> None:
    result = CallResult(text, is_error=is_error)
    assert refused(result) is limited
    assert asked_to_wait(result) == wait


@pytest.mark.slow
async def test_refused_calls_are_made_again_and_the_agent_does_not_notice(caplog: pytest.LogCaptureFixture) -> None:
    async with connect(MOODY) as server:
        results = await asyncio.gather(*(server.call("get_price", {"product": "lamp"}) for _ in range(20)))
    assert {(result.is_error, result.structured["price"]) for result in results} == {(False, 20)}
    assert [record.message.startswith("moody refuses calls") for record in caplog.records].count(True) == 1


@pytest.mark.slow
async def test_a_run_whose_call_was_refused_to_the_end_has_no_score() -> None:
    plan = Plan(reference=[Step(tool="get_refusal", reads=True)], facts=["x"])
    async with connect(MOODY) as server:
        result = await server.call("get_refusal", {})
        run = await rollout(calling(server, ("get_refusal", {}), answer="x"), MCPScenario.make("?", plan), verify())
    assert result.failure == "limited"
    assert run.reward is None
    assert "got no answer" in str(run.reward_error)


@pytest.mark.slow
async def test_requests_that_http_refuses_are_sent_again_and_only_those_refused_to_the_end_are_limited() -> None:
    from tests.support.mcp.moody_server import server as moody  # SDK 1 serves a server once in a process

    app, refusals = moody.streamable_http_app(), [(429, b"0.01"), (503, b"0.01"), (429, b"0.01")]

    async def busy(scope: Any, receive: Any, send: Any) -> None:
        if not (refusals and scope["type"] == "http" and scope["method"] == "POST"):
            return await app(scope, receive, send)
        status, wait = refusals.pop(0)
        await send({"type": "http.response.start", "status": status, "headers": [(b"retry-after", wait)]})
        await send({"type": "http.response.body", "body": b"not now"})

    with serving(busy) as url:
        async with connect(f"{url}/mcp", timeout=5.0) as server:
            assert not (await server.call("list_products", {})).is_error
            assert not refusals
            refusals.append((429, b"3600"))
            assert (await server.call("list_products", {})).failure == "limited"
            refusals.append((429, b"0.01"))
            assert not (await server.call("list_products", {})).is_error
            with pytest.raises(MCPError) as unknown:
                await server.read("memo:///nowhere/at/all")
    assert unknown.value.failure == "protocol", "an earlier refusal, which ended well, says nothing of it"


@pytest.mark.slow
async def test_a_server_that_always_refuses_says_so() -> None:
    async def full(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        await send({"type": "http.response.start", "status": 429, "headers": [(b"retry-after", b"3600")]})
        await send({"type": "http.response.body", "body": b"come back tomorrow"})

    with serving(full) as url, pytest.raises(MCPError, match="HTTP 429"):
        async with connect(f"{url}/mcp"):
            pass


@pytest.mark.slow
async def test_what_a_session_said_stays_in_it() -> None:
    plan = Plan(reference=[Step(tool="get_said", reads=True)], facts=["mine"])
    asked = MCPScenario.make("What did I say?", plan)
    async with connect(MOODY, isolation="session") as server:
        both = [
            rollout(calling(server, ("say", {"word": word}), ("get_said", {}), answer=word), asked, verify())
            for word in ("mine", "yours")
        ]
        first, second = await asyncio.gather(*both)
    assert [first.tool_calls[1].result, second.tool_calls[1].result] == ["mine", "yours"]
