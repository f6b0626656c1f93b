"""Real MCP servers, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psutil
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from art_langgraph import rollout
from art_mcp import MCPError, connect
from tests.conftest import serving

SERVER = [sys.executable, str(Path(__file__).with_name("server.py"))]


async def test_tools_keep_their_schemas_and_answer() -> None:
    async with connect(SERVER) as server:
        assert server.name == "tested"
        tools = {tool.name: tool for tool in await server.tools()}
        assert tools["add"].args_schema["properties"]["a"]["type"] == "integer"
        assert await tools["add"].ainvoke({"a": 1, "b": 2}) == "3"


async def test_a_command_may_be_a_string() -> None:
    async with connect(" ".join(SERVER)) as server:
        assert (await server.call("add", {"a": 1, "b": 2})).text == "3"


async def test_errors_are_results_and_never_crashes() -> None:
    async with connect(SERVER, timeout=1.0) as server:
        assert (await server.call("fail", {})).is_error
        assert (await server.call("missing", {})).is_error
        assert (await server.call("add", {"a": "x"})).is_error
        late = await server.call("hang", {})
        assert late.is_error
        assert "1 s" in late.text
        assert (await server.call("add", {"a": 1, "b": 2})).text == "3"


async def test_a_server_that_crashes_gives_an_error_in_time() -> None:
    async with connect(SERVER, timeout=5.0) as server:
        assert (await server.call("crash", {})).is_error


async def test_many_calls_at_once_share_a_session() -> None:
    async with connect(SERVER) as server:
        results = await asyncio.gather(*(server.call("add", {"a": i, "b": 0}) for i in range(50)))
    assert [result.text for result in results] == [str(i) for i in range(50)]


async def test_the_child_ends_with_the_session() -> None:
    async with connect(SERVER) as server:
        pid = int((await server.call("pid", {})).text)
        assert psutil.pid_exists(pid)
    for _ in range(100):
        if not psutil.pid_exists(pid):
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"process {pid} outlived its session")


async def test_a_command_that_is_no_server() -> None:
    with pytest.raises(MCPError):
        async with connect("/does/not/exist"):
            pass
    with pytest.raises(MCPError):
        async with connect([sys.executable, "-c", "pass"], timeout=5):
            pass


async def test_streamable_http(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.art_mcp.server import server as app

    with serving(app.streamable_http_app()) as url:
        async with connect(f"{url}/mcp") as server:
            assert (await server.call("add", {"a": 1, "b": 2})).text == "3"


async def test_a_call_inside_a_graph_is_recorded_once() -> None:
    async with connect(SERVER) as server:
        tools = await server.tools()

        def call(name: str, arguments: dict[str, int]) -> dict[str, object]:
            return {"name": name, "args": arguments, "id": f"id-{name}"}

        async def ask(state: MessagesState) -> dict[str, list[AIMessage]]:
            calls = [call("add", {"a": 1, "b": 2}), call("fail", {})]
            return {"messages": [AIMessage("", tool_calls=calls)]}

        graph = StateGraph(MessagesState).add_node("ask", ask).add_node("tools", ToolNode(tools))
        graph.add_edge(START, "ask").add_edge("ask", "tools")
        found = await rollout(graph.compile(), "x")
    assert found.error is None
    calls = {one.tool: one for one in found.tool_calls}
    assert len(found.tool_calls) == 2
    assert (calls["add"].server, calls["add"].result, calls["add"].is_error) == ("tested", "3", False)
    assert calls["add"].tool_call_id == "id-add"
    assert calls["add"].node == "tools"
    assert calls["fail"].is_error
    assert found.output["messages"][-1].status == "error"
