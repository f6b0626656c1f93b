"""Calls over sessions that others opened: raw sessions of both SDKs, and langchain-mcp-adapters."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from importlib.util import find_spec
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from art_langgraph import rollout
from art_mcp import CaptureInterceptor, capture, connect
from art_mcp.client.connection.sdk import MAJOR
from tests.support.mcp.commands import ODD

PARAMETERS = StdioServerParameters(command=ODD[0], args=ODD[1:])


def asking(*calls: tuple[str, dict[str, Any]], tools: list[Any]) -> Any:
    """A graph whose model makes calls, answered by a tool node."""

    async def ask(state: MessagesState) -> dict[str, list[AIMessage]]:
        made = [{"name": name, "args": args, "id": f"id-{at}"} for at, (name, args) in enumerate(calls)]
        return {"messages": [AIMessage("", tool_calls=made)]}

    graph = StateGraph(MessagesState).add_node("ask", ask).add_node("tools", ToolNode(tools, handle_tool_errors=True))
    return graph.add_edge(START, "ask").add_edge("ask", "tools").compile()


async def raw_session(stack: AsyncExitStack, kind: str) -> Any:
    if kind == "Client":
        from mcp.client import Client

        return await stack.enter_async_context(capture(Client(stdio_client(PARAMETERS))))
    read, write = await stack.enter_async_context(stdio_client(PARAMETERS))
    session = capture(await stack.enter_async_context(ClientSession(read, write)))
    await session.initialize()
    return session


@pytest.mark.parametrize("kind", ["ClientSession", "Client"] if MAJOR > 1 else ["ClientSession"])
async def test_a_raw_session_is_recorded_in_the_place_and_under_the_id_of_the_tool(kind: str) -> None:
    heard: list[float] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with AsyncExitStack() as stack:
        session = await raw_session(stack, kind)

        @tool
        async def work(text: str) -> str:
            """Do two things at the server."""
            await session.call_tool("slow_steps", {}, progress_callback=listen)
            answer = await session.call_tool("echo", {"text": text})
            return str(answer.content[0].text)

        @tool
        async def broken() -> str:
            """Ask for what is not there."""
            await session.call_tool("nothing", {})
            return ""

        found = await rollout(asking(("work", {"text": "a"}), ("broken", {}), tools=[work, broken]), "x")
    calls = {call.tool: call for call in found.tool_calls}
    assert set(calls) == {"work", "slow_steps", "echo", "broken", "nothing"}
    assert (calls["echo"].server, calls["echo"].server_version) == ("odd", "0.9")
    assert (calls["echo"].tool_call_id, calls["echo"].node) == ("id-0", "tools")
    assert (calls["echo"].result, calls["echo"].structured) == ("a", {"echo": "a"})
    assert [one["progress"] for one in calls["slow_steps"].progress] == heard == [0, 1, 2]
    assert (calls["nothing"].is_error, calls["nothing"].failure) == (True, "protocol")
    assert calls["nothing"].tool_call_id == "id-1"


@pytest.mark.parametrize("raw", [True, False])
async def test_a_call_that_nobody_waits_for_is_recorded_too(raw: bool) -> None:
    async with AsyncExitStack() as stack:
        if raw:
            session = await raw_session(stack, "ClientSession")
        else:
            server = await stack.enter_async_context(connect(ODD))

        @tool
        async def impatient() -> str:
            """Ask, and leave."""
            dawdle = {"seconds": 1}
            call = session.call_tool("dawdle", dawdle) if raw else server.call("dawdle", dawdle)
            with suppress(TimeoutError):
                await asyncio.wait_for(call, 0.2)
            return "left"

        found = await rollout(asking(("impatient", {}), tools=[impatient]), "x")
        if raw:  # SDK 1 breaks when it is closed before an answer comes that nobody waits for
            await session.call_tool("echo", {"text": "by now it has come"})
    (dawdled,) = [call for call in found.tool_calls if call.tool == "dawdle"]
    assert (dawdled.is_error, dawdled.failure, dawdled.tool_call_id) == (True, "cancelled", "id-0")


async def test_an_error_of_a_captured_session_is_still_raised() -> None:
    async with AsyncExitStack() as stack:
        session = await raw_session(stack, "ClientSession")
        with pytest.raises(Exception, match="no tools/call nothing"):
            await session.call_tool("nothing", {})
        assert (await session.call_tool("echo", {"text": "outside of any rollout"})).content[0].text


@pytest.mark.skipif(find_spec("langchain_mcp_adapters") is None, reason="langchain-mcp-adapters wants the SDK below 2")
async def test_tools_of_langchain_mcp_adapters_are_recorded_once() -> None:
    from langchain_mcp_adapters.client import MultiServerMCPClient

    connection: Any = {"transport": "stdio", "command": ODD[0], "args": ODD[1:]}
    client = MultiServerMCPClient({"odd": connection}, tool_interceptors=[CaptureInterceptor()])
    tools = await client.get_tools()
    found = await rollout(asking(("echo", {"text": "a"}), ("picture", {}), ("stop", {}), tools=tools), "x")
    calls = {call.tool: call for call in found.tool_calls}
    assert len(found.tool_calls) == 3
    assert (calls["echo"].server, calls["echo"].result, calls["echo"].structured) == ("odd", "a", {"echo": "a"})
    assert (calls["echo"].tool_call_id, calls["echo"].node) == ("id-0", "tools")
    assert calls["picture"].content[0]["mimeType"] == "image/png"
    assert (calls["stop"].is_error, calls["stop"].failure) == (True, "closed")
