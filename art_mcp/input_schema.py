"""Schemas of MCP tools in one form, for the policy that calls the tools and for those who write tasks about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords of JSON schema whose value has schemas by name."""

_LISTED = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
"""Keywords whose value is a list of schemas."""

_MEANT = frozenset({"default", "const"})
"""Keywords of which null is a value like any other."""


def normal_schema(schema: Any) -> dict[str, Any]:
    """A schema in the form that all readers expect, so that none of them has to know the others.

    A schema that is no object, such as `true`, becomes the empty one, which allows everything. That is what `true`
    means; where it was `false`, the execution of the call decides. A null keyword is left out, and so is one of a wrong
    type. `additionalProperties` may stay a boolean: it is never read as a schema.
    """
    if not isinstance(schema, Mapping):
        return {}
    normal: dict[str, Any] = {}
    for key, value in schema.items():
        if value is None and key not in _MEANT:
            continue
        if key in _BY_NAME:
            if isinstance(value, Mapping):
                normal[key] = {name: normal_schema(inner) for name, inner in value.items()}
        elif key in _LISTED:
            if isinstance(value, list):
                normal[key] = [normal_schema(inner) for inner in value]
        elif key == "items":
            if isinstance(value, list):  # a schema for each position, as before draft 2020-12
                normal.setdefault("prefixItems", [normal_schema(inner) for inner in value])
            else:
                normal[key] = normal_schema(value)
        elif key == "additionalProperties":
            normal[key] = normal_schema(value) if isinstance(value, Mapping) else value
        elif key == "required":
            if isinstance(value, list):  # in draft 3 it was a boolean of each parameter
                normal[key] = list(value)
        else:
            normal[key] = value
    return normal
