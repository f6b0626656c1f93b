"""The quickstart's MCP server, over stdio."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import art_examples.quickstart as package
from art_examples.quickstart import scenarios
from langchain_core.messages import ToolCall as Call

from art_mcp import connect

SERVER = [sys.executable, str(Path(package.__file__).with_name("city_server.py"))]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("get_taxi_fare", {}),
    ("get_bus_fare", {"city": 7}),
    ("get_time", {"city": "x" * 31}),
    ("get_time", {"city": "1; DROP"}),
]


async def test_the_server_says_what_the_scenarios_want() -> None:
    async with connect(SERVER) as server:
        tools = {tool.name: tool for tool in await server.tools()}
        for scenario in scenarios.held_out_scenarios(12):
            wanted = scenario.metadata
            call = Call(name=wanted["tool"], args=wanted["arguments"], id="one", type="tool_call")
            answer = await tools[wanted["tool"]].ainvoke(call)
            assert answer.content == wanted["value"]


async def test_the_server_refuses_wrong_arguments() -> None:
    async with connect(SERVER) as server:
        tools = {tool.name: tool for tool in await server.tools()}
        for tool, arguments in REFUSED:
            answer = await tools[tool].ainvoke(Call(name=tool, args=arguments, id="one", type="tool_call"))
            assert answer.status == "error", (tool, arguments)
