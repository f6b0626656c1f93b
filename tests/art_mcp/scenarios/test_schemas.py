"""Schemas that servers write."""

from __future__ import annotations

from typing import Any

import pytest

from art_mcp import Catalog, MCPScenario, generate_scenarios
from art_mcp.scenarios.execute import checked
from art_mcp.scenarios.plan import Step
from art_mcp.scenarios.schemas import plain
from tests.support.mcp.tools import tool

UNKNOWN = (r"^\p{L}+$", r"(?<year>\d{4})")
"""Patterns of JavaScript that Python's `re` does not know."""


def test_references_to_what_is_no_schema_give_an_empty_one() -> None:
    assert plain({"$ref": "#/own/any"}, {"own": {"any": True}}) == {}


SCHEMAS: dict[str, dict[str, Any]] = {
    "booleans": {"properties": {"note": True, "tags": {"type": "array", "items": True}}, "required": ["note", "tags"]},
    "nulls": {"properties": {"note": {"type": "object", "properties": None, "required": None}}, "required": None},
    "nothing": {"properties": None, "required": None},
    "patterns": {
        "properties": {
            "day": {"type": "string", "format": "date", "pattern": UNKNOWN[1]},
            "city": {"type": "string", "pattern": UNKNOWN[0]},
        },
        "required": ["day", "city"],
    },
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
async def test_schemas_of_any_form_give_tasks(schema: dict[str, Any]) -> None:
    told: list[MCPScenario] = []
    catalog = Catalog.of_tools([{"name": "get_menu", "inputSchema": {"type": "object", **schema}}])
    await generate_scenarios(catalog, 4, progress=False, on_kept=told.append)
    assert told


def test_defaults_are_those_of_schemas_of_any_form() -> None:
    catalog = Catalog(tools=[tool("get_menu", note=True, day={"default": "today"})])
    (step,) = checked([Step(tool="get_menu")], catalog, allow_destructive=False)
    assert step.defaults == {"day": "today"}
