"""Tools whose schemas have no end, or more in them than anybody can use."""

from __future__ import annotations

from typing import Any


def nested(levels: int) -> str:
    """The JSON of a schema whose only property is an object with such a schema, and so on."""
    return '{"type":"object","properties":{"x":' * levels + "{}" + "}}" * levels


def laughs(levels: int) -> dict[str, Any]:
    """A schema of which each definition refers to the next one three times."""
    return {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/0"}},
        "required": ["x"],
        "$defs": {
            str(at): {"type": "object", "properties": {key: {"$ref": f"#/$defs/{at + 1}"} for key in "xyz"},
                      "required": ["x", "y", "z"]}
            for at in range(levels)
        },
    }  # fmt: skip


def crowd(size: int) -> dict[str, Any]:
    """A schema of which each definition refers to every one."""
    each = {str(at): {"$ref": f"#/$defs/{at}"} for at in range(size)}
    return {
        "type": "object",
        "properties": each,
        "$defs": {str(at): {"type": "object", "properties": each, "required": list(each)} for at in range(size)},
    }


WIDE: dict[str, Any] = {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(100_000)}}
AND: dict[str, Any] = {
    "type": "object",
    "properties": {"where": {"$ref": "#/$defs/And"}},
    "required": ["where"],
    "$defs": {
        "And": {
            "type": "object",
            "properties": {"all_of": {"type": "array", "items": {"$ref": "#/$defs/And"}}},
            "required": ["all_of"],
        }
    },
}
"""A filter that consists of filters."""


def holding(schema: Any, **definitions: Any) -> dict[str, Any]:
    """The schema of a tool with one required parameter."""
    return {"type": "object", "properties": {"x": schema}, "required": ["x"], "$defs": definitions}


A, B = {"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}
UNENDING: dict[str, dict[str, Any]] = {
    "a filter of filters": AND,
    "itself": holding({"$ref": "#"}),
    "allOf itself": holding(A, A={"allOf": [A]}),
    "each other": holding(A, A=holding(B), B=holding(A)),
    "lists of lists": holding(A, A={"type": "array", "items": A, "minItems": 1}),
    "a billion": laughs(8),
    "a billion items": holding({"type": "array", "items": {"type": "string"}, "minItems": 10**9}),
}
"""Schemas of which an argument has no end, or no end within reason."""
READABLE: dict[str, dict[str, Any]] = {
    "nothing": holding({"$ref": "#/$defs/C"}),
    "elsewhere": holding({"$ref": "https://example.com/schema.json"}),
    "dynamic": {**holding({"$dynamicRef": "#node"}), "$dynamicAnchor": "node"},
    "booleans": holding(True, A=False),
    "items as list": holding({"type": "array", "items": [{"type": "string"}, True]}),
    "type as list": holding({"type": ["string", "null"]}),
    "types that are none": holding({"type": [{"a": 1}], "enum": 5, "minItems": "x", "anyOf": [7], "$ref": 7}),
    "numbers that are none": holding({"type": "integer", "minimum": "a", "multipleOf": 0, "maximum": float("inf")}),
    "no schema where one is referred to": holding({"$ref": "#/x-own/0"}) | {"x-own": [{"anyOf": [True]}]},
}
"""Schemas that are odd, and of which a value can be drawn."""
