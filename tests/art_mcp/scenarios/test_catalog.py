"""What a server offers, read whole."""

from __future__ import annotations

import json
from typing import Any

import mcp.types
import pytest

from art_mcp import Catalog, read_catalog
from art_mcp.scenarios.catalog import CatalogTool, describe_withheld
from tests.support.mcp.commands import ODD, SERVER
from trainer_server.wire import ConfigError

SCHEMA = {
    "type": "object",
    "properties": {"zone": {"type": "string", "default": None, "x-more": [1]}},
    "$defs": {"a": {"enum": ["b"]}},
    "required": ["zone"],
}


def tool(**fields: Any) -> CatalogTool:
    return CatalogTool.model_validate({"name": "x", **fields})


async def test_schemas_are_whole_and_survive_json() -> None:
    catalog = await read_catalog(SERVER)
    assert catalog.name == "tested"
    add = catalog.tool("add")
    assert add.input_schema["required"] == ["a", "b"]
    assert add.output_schema is not None
    assert catalog.resources[0].sample == "the beginning"
    assert catalog.templates[0].uri_template == "memo://{name}"
    assert [one["name"] for one in catalog.prompts[0].arguments] == ["topic"]
    assert Catalog.model_validate_json(catalog.model_dump_json(by_alias=True)) == catalog


async def test_a_server_without_resources_and_prompts_has_none() -> None:
    catalog = await read_catalog(ODD)
    assert (len(catalog.tools), catalog.resources, catalog.prompts) == (10, [], [])
    assert catalog.instructions == "Handle with care."


def test_tools_of_the_sdk_and_their_json_keep_their_schemas() -> None:
    given = {"name": "now", "inputSchema": SCHEMA, "outputSchema": SCHEMA, "annotations": {"readOnlyHint": True}}
    of_sdk = Catalog.of_tools([mcp.types.Tool.model_validate(given)])
    assert of_sdk == Catalog.of_tools([given])
    assert of_sdk.tools[0].input_schema == of_sdk.tools[0].output_schema == SCHEMA
    assert json.loads(of_sdk.text())["tools"][0]["inputSchema"] == SCHEMA
    with pytest.raises(ConfigError, match="found int"):
        Catalog.of_tools([7])


def test_schemas_have_one_form() -> None:
    given = {
        "type": "object",
        "properties": {
            "any": True,
            "list": {"type": "array", "items": True},
            "pair": {"items": [{"type": "string"}, True]},
            "object": {"type": "object", "properties": None, "required": None, "additionalProperties": False},
            "either": {"anyOf": [True, {"type": "string", "enum": None, "default": None}]},
            "required": {"type": "string", "required": True},
        },
        "$defs": {"none": False, "null": None},
        "required": None,
    }
    assert tool(inputSchema=given).input_schema == {
        "type": "object",
        "properties": {
            "any": {},
            "list": {"type": "array", "items": {}},
            "pair": {"prefixItems": [{"type": "string"}, {}]},
            "object": {"type": "object", "additionalProperties": False},
            "either": {"anyOf": [{}, {"type": "string", "default": None}]},
            "required": {"type": "string"},
        },
        "$defs": {"none": {}, "null": {}},
    }
    assert tool(outputSchema={"properties": None}).output_schema == {}


def test_what_is_left_out_is_named_with_the_reason() -> None:
    annotated = {"readOnlyHint": False}
    tools = [tool(name="purge_log"), tool(name="get_or_create"), tool(name="get", annotations=annotated)]
    unsaid = "it has no annotations, and its name does not say that it only reads"
    assert describe_withheld([*tools, tool(name="get_time")]) == (
        f"not called, as they may change something: purge_log ({unsaid}: 'purge' is no reading verb), "
        f"get_or_create ({unsaid}: it has the word 'create'), get (its annotations say so)"
    )
    assert describe_withheld([tool(name="get_time")]) == ""


def test_a_large_catalog_comes_in_parts() -> None:
    tools = [{"name": f"tool_{i}", "description": "d" * (i * 20), "inputSchema": SCHEMA} for i in range(30)]
    catalog = Catalog.of_tools(tools, name="big", instructions="Read this.")
    parts = list(catalog.parts(2_000))
    assert len(parts) > 5
    assert all(len(part.text()) <= 2_000 and part.instructions == "Read this." for part in parts)
    assert [one.name for part in parts for one in part.tools] == [one["name"] for one in tools]
    assert len(list(catalog.parts(10**6))) == 1
    assert [len(part.tools) for part in catalog.parts(1)] == [1] * 30
