"""Schemas that servers write."""

from __future__ import annotations

from typing import Any

import pytest

from art_mcp import Catalog, MCPScenario, generate_scenarios
from art_mcp.scenarios.catalog import plain
from art_mcp.scenarios.execute import check_steps
from art_mcp.scenarios.plan import Step
from art_mcp.validation import violation
from tests.support.mcp.tools import tool
from tests.support.mcp.unreadable import READABLE, UNENDING, WIDE, laughs

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
    (step,) = check_steps([Step(tool="get_menu")], catalog, allow_destructive=False)
    assert step.defaults == {"day": "today"}


TIME = {"name": "get_time", "inputSchema": {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}}}


@pytest.mark.parametrize("name", UNENDING)
async def test_schemas_without_an_end_cost_no_other_tool(name: str) -> None:
    catalog = Catalog.of_tools([{"name": "find_rows", "inputSchema": UNENDING[name]}, TIME])
    found = await generate_scenarios(catalog, 6, progress=False, allow_destructive=True)
    assert any("get_time" in scenario.tools for scenario in found.scenarios)
    drafted = any("find_rows" in scenario.tools for scenario in found.scenarios)
    assert drafted is (name in ("a filter of filters", "allOf itself"))
    assert drafted is not any(note.startswith("no call of find_rows: find_rows's ") for note in found.notes)


@pytest.mark.parametrize("name", READABLE)
async def test_odd_schemas_can_be_drawn_from(name: str) -> None:
    catalog = Catalog.of_tools([{"name": "get_rows", "inputSchema": READABLE[name]}, TIME])
    found = await generate_scenarios(catalog, 8, progress=False)
    assert {tool for scenario in found.scenarios for tool in scenario.tools} == {"get_rows", "get_time"}


async def test_a_catalog_names_what_cannot_be_read() -> None:
    deep: dict[str, Any] = {}
    for _ in range(10_000):
        deep = {"type": "object", "properties": {"x": deep}}
    catalog = Catalog.of_tools([{"name": "deep", "inputSchema": deep}, TIME, {"name": "wide", "inputSchema": WIDE}])
    assert [each.name for each in catalog.tools] == ["get_time"]
    assert list(catalog.left_out) == ["deep", "wide"]
    assert "left_out" not in catalog.text()
    notes = (await generate_scenarios(catalog, 2, progress=False)).notes
    assert any(note.startswith("the tool deep is left out: inputSchema is nested more than 100 lev") for note in notes)


def test_the_check_of_a_value_has_an_end() -> None:
    doubled = {"allOf": [{"$ref": "#/$defs/A"}] * 2}
    for schema in (
        {"$ref": "#/$defs/A", "$defs": {"A": doubled}},
        {"$ref": "#/$defs/0", "$defs": {str(at): {"allOf": [{"$ref": f"#/$defs/{at + 1}"}] * 2} for at in range(40)}},
        {"$dynamicAnchor": "n", "properties": {"x": {"allOf": [{"$dynamicRef": "#n"}] * 2}}},
        {**doubled, "$defs": {"A": doubled}, "unevaluatedProperties": False},
    ):
        value: Any = {}
        for _ in range(40):
            value = {"x": value}
        assert violation(value, schema) is None
    assert violation({"x": {"x": 1}}, laughs(3)) is not None, "what can be followed is checked"
    assert violation({}, {**WIDE, "required": ["p1"]}) is None
