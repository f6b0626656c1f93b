"""JSON schemas of tools: their parameters, without references and unions, and whether values fit them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import jsonschema
from referencing import Registry
from referencing.exceptions import Unresolvable

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
        if isinstance(reference, str) and reference.startswith("#/"):
            target: Any = whole
            for key in reference[2:].split("/"):
                target = target.get(key, {}) if isinstance(target, Mapping) else {}
            target = target if isinstance(target, Mapping) else {}
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
            continue
        options = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
        if isinstance(options, list) and options:
            chosen = next((option for option in options if option.get("type") != "null"), options[0])
            rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf", "allOf")}
            schema = {**rest, **chosen}
            continue
        break
    if isinstance(schema.get("type"), list):
        schema = {**schema, "type": next((kind for kind in schema["type"] if kind != "null"), "string")}
    return schema


def fits_pattern(pattern: Any, text: str) -> bool:
    """Whether a text fits a schema's pattern. One that Python's `re` does not know, such as `\\p{L}`, fits any text:
    patterns of JSON schema are those of JavaScript, and the server decides about its own.

    Args:
        pattern: The pattern. None: there is none.
        text: The text.
    """
    if not isinstance(pattern, str):
        return True
    try:
        return re.search(pattern, text) is not None
    except (re.error, OverflowError):
        return True


def violation(value: Any, schema: Mapping[str, Any]) -> str | None:
    """How a value violates a schema. None: it does not, or the schema itself is invalid.

    References resolve inside the schema only: nothing is fetched, whatever URL a server writes into a schema.
    """
    validator = _forgiving(jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator))
    try:
        # Without formats, of which one says that a pattern is one of Python's `re`.
        validator.check_schema(schema, format_checker=jsonschema.FormatChecker(()))
        validator(schema, registry=Registry()).validate(value)
    except jsonschema.ValidationError as error:
        return str(error.message)[:300]
    except (jsonschema.SchemaError, Unresolvable, RecursionError, re.error, OverflowError):
        pass  # the server's schema is invalid, or its names have patterns that `re` does not know: the call decides
    return None


@cache
def _forgiving(validator: Any) -> Any:
    """The class of a validator whose patterns are those of `fits_pattern`."""
    return jsonschema.validators.extend(validator, {"pattern": _check_pattern})


def _check_pattern(_: Any, pattern: Any, value: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    """The keyword `pattern`, as `jsonschema` calls it."""
    if isinstance(value, str) and not fits_pattern(pattern, value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")
