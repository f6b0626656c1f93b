"""Tools of a live server, as a graph and its policy get them."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.utils.function_calling import convert_to_openai_tool

from art_mcp.client.result import CallResult
from art_mcp.client.tools import as_langchain_tool
from art_mcp.scenarios.catalog import CatalogTool


async def call(name: str, arguments: dict[str, Any]) -> CallResult:
    raise NotImplementedError


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": None},
        {"type": "object", "properties": None},
        {"type": "object", "properties": {"a": {"type": "array", "items": [True], "enum": None}}, "$defs": None},
    ],
)
def test_a_policy_gets_the_schema_that_scenarios_have(schema: dict[str, Any]) -> None:
    tool = {"name": "write", "description": "Write.", "inputSchema": schema}
    live = as_langchain_tool(call, tool)
    parameters = convert_to_openai_tool(live)["function"]["parameters"]
    known = CatalogTool.model_validate(tool).input_schema
    assert {"properties": {}, **parameters} == {"properties": {}, **known}
    assert "None" not in str(parameters)
