"""JSON schemas of tools: their parameters, without references and unions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from art_mcp.input_schema import BY_NAME, normal_schema
from art_mcp.scenarios.catalog import CatalogTool


def properties_of(tool: CatalogTool) -> dict[str, Any]:
    """The schemas of a tool's parameters by name."""
    return dict(tool.input_schema.get("properties") or {})


def plain(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolves references, unions and lists of types in a schema; takes the first alternative that is not null.

    Args:
        schema: The schema.
        whole: The schema that has the definitions.
    """
    for _ in range(10):  # a limit for references that lead to each other
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.partition("/")[0] == "#":
            target: Any = whole
            steps = reference.split("/")[1:]
            for key in steps:
                target = target.get(key, {}) if isinstance(target, Mapping) else {}
            if steps and not (len(steps) == 2 and steps[0] in BY_NAME):  # where a catalog expects no schema
                target = normal_schema(target)
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
            continue
        options = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
        options = [each for each in options if isinstance(each, Mapping)] if isinstance(options, list) else []
        if options:
            chosen = next((option for option in options if option.get("type") != "null"), options[0])
            rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf", "allOf")}
            schema = {**rest, **chosen}
            continue
        break
    if isinstance(schema.get("type"), list):
        schema = {**schema, "type": next((kind for kind in schema["type"] if kind != "null"), "string")}
    return schema
