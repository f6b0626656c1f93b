"""Servers of MCP 2026-07-28 over HTTP: no `initialize`, no session, and any replica answers the next request."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from typing import Any

import pytest
from starlette.applications import Starlette

from art_langgraph import gather
from art_mcp import connect
from art_mcp.client.connection.sdk import MAJOR
from tests.support.mcp.graphs import calling
from tests.support.servers.serving import serving

pytestmark = pytest.mark.skipif(MAJOR == 1, reason="SDK 1 has earlier versions of the protocol only")


def replica(name: str) -> Any:
    """A server of three that are behind one address."""
    from mcp.server import MCPServer

    server = MCPServer("replicated", version="7", log_level="CRITICAL")

    @server.tool()
    def who() -> str:
        """Name of the replica that answers."""
        return name

    return server


async def test_each_request_may_go_to_another_replica() -> None:
    replicas = [replica(name) for name in "abc"]
    apps = cycle([server.streamable_http_app() for server in replicas])
    requests: list[tuple[dict[bytes, bytes], dict[str, Any]]] = []

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for server in replicas:
                await stack.enter_async_context(server.session_manager.run())
            yield

    outer = Starlette(lifespan=lifespan)

    async def balancer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await outer(scope, receive, send)
        message = await receive()
        requests.append((dict(scope["headers"]), json.loads(message["body"])))
        messages = iter([message])

        async def replay() -> Any:
            return next(messages, None) or await receive()

        return await next(apps)(scope, replay, send)

    with serving(balancer) as url:
        async with connect(f"{url}/mcp", isolation="session") as server:
            assert (server.name, server.version) == ("replicated", "7")
            assert [tool.name for tool in await server.tools()] == ["who"]
            groups = await gather(calling(server, ("who", {}), ("who", {})), ["go"], n=3, progress=False)
    calls = [call for group in groups for run in group.trajectories for call in run.tool_calls]
    assert {call.result for call in calls} <= {"a", "b", "c"}
    assert len({call.result for call in calls}) > 1
    assert {(call.server, call.server_version) for call in calls} == {("replicated", "7")}
    assert "initialize" not in {body["method"] for _, body in requests}
    assert {headers.get(b"mcp-protocol-version") for headers, _ in requests} == {b"2026-07-28"}
    assert not any(b"mcp-session-id" in headers for headers, _ in requests)
