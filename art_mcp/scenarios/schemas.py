"""JSON schemas of tools: their parameters, without references and unions, and whether values fit them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import jsonschema
from referencing import Registry
from referencing.exceptions import Unresolvable

from art_mcp.scenarios.catalog import BY_NAME, CatalogTool, normalize

FOLLOWED = 10_000
"""Maximum number of references that the check of a value follows."""

CHECKED = 100_000
"""Maximum number of characters of a schema, as JSON, that values are checked against."""

_INVALID = (re.error, OverflowError, AttributeError, TypeError, KeyError, ValueError)
"""What `jsonschema` raises for schemas that are none."""

_followed: ContextVar[int] = ContextVar("followed", default=0)


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
                target = normalize(target)
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

    References resolve inside the schema only: nothing is fetched, whatever URL a server writes into a schema. A schema
    that asks for more than FOLLOWED references to be followed is not checked to the end, and one with more than CHECKED
    characters not at all: the call decides.
    """
    if len(json.dumps(schema, default=str)) > CHECKED:
        return None
    validator = _forgiving(jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator))
    try:
        # Without formats, of which one says that a pattern is one of Python's `re`.
        validator.check_schema(schema, format_checker=jsonschema.FormatChecker(()))
        _followed.set(0)
        validator(schema, registry=Registry()).validate(value)
    except jsonschema.ValidationError as error:
        return str(error.message)[:300]
    except (jsonschema.SchemaError, Unresolvable, RecursionError, _TooMany, *_INVALID):
        pass  # the server's schema is invalid, or its names have patterns that `re` does not know: the call decides
    return None


@cache
def _forgiving(validator: Any) -> Any:
    """The class of a validator whose patterns are those of `fits_pattern`, and which does not follow references without
    end. What it follows by itself, to know which values no other keyword has looked at, is left to the server."""
    own: dict[str, Any] = {
        "pattern": _check_pattern,
        "unevaluatedProperties": _unchecked,
        "unevaluatedItems": _unchecked,
    }
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        if (follow := validator.VALIDATORS.get(keyword)) is not None:
            own[keyword] = partial(_follow, follow)
    return jsonschema.validators.extend(validator, own)


class _TooMany(Exception):
    """More than FOLLOWED references were followed."""


def _follow(follow: Any, validator: Any, reference: Any, value: Any, schema: Any) -> Iterator[Any]:
    """A keyword that refers to another schema, as `jsonschema` calls it."""
    _followed.set(_followed.get() + 1)
    if _followed.get() > FOLLOWED:
        raise _TooMany
    yield from follow(validator, reference, value, schema) or ()


def _unchecked(*_: Any) -> None:
    """A keyword that is left to the server."""


def _check_pattern(_: Any, pattern: Any, value: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    """The keyword `pattern`, as `jsonschema` calls it."""
    if isinstance(value, str) and not fits_pattern(pattern, value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")
