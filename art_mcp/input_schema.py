"""Schemas of MCP tools in one form, for the policy that calls the tools and for those who write tasks about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords of JSON schema whose value has schemas by name."""

_LIST_KEYWORDS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
"""Keywords whose value is a list of schemas."""

_VALUE_KEYWORDS = frozenset({"default", "const"})
"""Keywords of which null is a value like any other."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


_FORMS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("$ref", "title", "description", "format"), _is_text),
    **dict.fromkeys(("enum", "examples"), _is_list),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "minItems": lambda value: _is_number(value) and value >= 0,
}
"""Which values a keyword may have. One of another form says nothing, and is left out."""


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
        if (value is None and key not in _VALUE_KEYWORDS) or (key in _FORMS and not _FORMS[key](value)):
            continue
        if key in BY_NAME:
            if isinstance(value, Mapping):
                normal[key] = {name: normal_schema(inner) for name, inner in value.items()}
        elif key in _LIST_KEYWORDS:
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
                normal[key] = [name for name in value if isinstance(name, str)]
        elif key == "type":
            kinds = [kind for kind in (value if isinstance(value, list) else [value]) if isinstance(kind, str)]
            if kinds:
                normal[key] = kinds if isinstance(value, list) else value
        else:
            normal[key] = value
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if schema.get(exclusive) is True and limit in normal:  # as in draft 4
            normal[exclusive] = normal.pop(limit)
    return normal
