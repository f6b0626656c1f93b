"""Whether values fit the JSON schemas that servers write. Their patterns cost a time that is linear in the text.

Python's `re`, which `jsonschema` uses, needs exponential time for patterns such as `^(a+)+$`: a server could stop its
client with one. The engine of Pydantic, that of Rust, does not, and it knows `\\p{L}` and `(?<name>…)` as JavaScript
does. It has no lookaround and no references back: such a pattern is left to the server, as all are that it cannot read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Any

import jsonschema
from pydantic_core import SchemaError, SchemaValidator, ValidationError
from pydantic_core.core_schema import str_schema
from referencing import Registry
from referencing.exceptions import Unresolvable

LONGEST = 10_000
"""Characters of a pattern that are read at most."""
STEPS = 50_000
"""Maximum number of schemas that a value and its parts are compared with. Long lists and texts count as several."""
CHECKED = 100_000
"""Maximum number of characters of a schema, as JSON, that values are checked against."""

_INVALID = (re.error, OverflowError, AttributeError, TypeError, KeyError, ValueError)
"""What `jsonschema` raises for schemas that are none."""
_steps: ContextVar[float] = ContextVar("steps", default=0)
_PART = 1 / 30
"""Steps that a value counts as where it is compared with others."""


def fits_pattern(pattern: Any, text: str) -> bool:
    """Whether a text fits a schema's pattern. One that is not known fits any text: the server decides about its own.

    Args:
        pattern: The pattern. None: there is none.
        text: The text.
    """
    return _matches(pattern, text) is not False


def violation(value: Any, schema: Mapping[str, Any]) -> str | None:
    """How a value violates a schema. None: it does not, or the schema itself is invalid.

    References resolve inside the schema only: nothing is fetched, whatever URL a server writes into a schema. A schema
    that needs more than STEPS steps is not checked to the end, and one with more than CHECKED characters not at all:
    the call decides.
    """
    if len(json.dumps(schema, default=str)) > CHECKED:
        return None
    validator = _forgiving(jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator))
    try:
        # Without formats, of which one says that a pattern is one of Python's `re`.
        validator.check_schema(schema, format_checker=jsonschema.FormatChecker(()))
        _steps.set(0)
        validator(schema, registry=Registry()).validate(value)
    except jsonschema.ValidationError as error:
        return str(error.message)[:300]
    except (jsonschema.SchemaError, Unresolvable, RecursionError, _TooMany, *_INVALID):
        pass  # the server's schema is invalid: the call decides
    return None


def _matches(pattern: Any, text: str) -> bool | None:
    """Whether a pattern occurs in a text. None: the pattern is not known, or the text is no Unicode."""
    if not isinstance(pattern, str) or (validator := _validator(pattern)) is None:
        return None
    try:
        validator.validate_python(text)
    except ValidationError as error:
        return False if error.errors(include_url=False)[0]["type"] == "string_pattern_mismatch" else None
    return True


@lru_cache(maxsize=1_000)
def _validator(pattern: str) -> SchemaValidator | None:
    if len(pattern) > LONGEST:
        return None
    try:
        return SchemaValidator(str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None


@cache
def _forgiving(validator: Any) -> Any:
    """The class of a validator that does not follow references without end, and whose patterns are those of
    `fits_pattern`, wherever a schema has some."""
    keywords = validator.VALIDATORS

    def additional(validator: Any, schema_of_others: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
        patterns = _object(schema.get("patternProperties"))
        if not isinstance(value, dict):
            return
        known = _object(schema.get("properties"))
        others = {
            name: item
            for name, item in value.items()
            if name in known or all(_matches(pattern, name) is False for pattern in patterns)
        }
        plain = {key: part for key, part in schema.items() if key != "patternProperties"}
        yield from keywords["additionalProperties"](validator, schema_of_others, others, plain)

    own = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": additional,
        "unevaluatedProperties": _unchecked,
        "unevaluatedItems": _unchecked,
        "uniqueItems": _unique,
        "enum": _enum,
        "const": lambda validator, const, value, schema: _enum(validator, [const], value, schema),
    }
    forgiving: Any = jsonschema.validators.extend(
        validator, {name: check for name, check in own.items() if name in keywords}
    )
    evolve = forgiving.evolve

    def counted(validator: Any, **changes: Any) -> Any:
        schema = changes.get("schema", validator.schema)
        _count(1)
        if isinstance(schema, Mapping):
            _count(_PART * sum(len(part) for part in schema.values() if isinstance(part, list | dict)))
            # A part of a schema that names a version would get a validator that does not count.
            changes["schema"] = {key: part for key, part in schema.items() if key != "$schema"}
        return evolve(validator, **changes)

    forgiving.evolve = counted  # every schema inside another gets its validator by it
    return forgiving


class _TooMany(Exception):
    """More than STEPS steps."""


def _count(steps: float) -> None:
    _steps.set(_steps.get() + steps)
    if _steps.get() > STEPS:
        raise _TooMany


def _comparable(value: Any) -> Any:
    """A JSON value as one that can be in a set: 1 is 1.0, but not true."""
    _count(_PART)
    if isinstance(value, Mapping):
        return frozenset((key, _comparable(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    return (bool, value) if isinstance(value, bool) else value


def _unique(_: Any, unique: Any, value: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    """The keyword `uniqueItems`, as `jsonschema` calls it, in linear time."""
    if unique and isinstance(value, list) and len(set(map(_comparable, value))) < len(value):
        yield jsonschema.ValidationError(f"{value!r} has non-unique elements")


def _enum(_: Any, values: Any, value: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    """The keyword `enum`, as `jsonschema` calls it."""
    own = _comparable(value)
    if all(own != _comparable(each) for each in values):
        yield jsonschema.ValidationError(f"{value!r} is not one of {values!r}")


def _unchecked(*_: Any) -> None:
    """A keyword that is left to the server: to know which values no other keyword has looked at, `jsonschema` follows
    references without end, and looks for patterns by `re`."""


def _pattern(_: Any, pattern: Any, value: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    """The keyword `pattern`, as `jsonschema` calls it."""
    if isinstance(value, str) and not fits_pattern(pattern, value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, value: Any, _: Any) -> Iterator[jsonschema.ValidationError]:
    """The keyword `patternProperties`, as `jsonschema` calls it."""
    for pattern, schema in _object(patterns).items():
        for name, item in value.items() if isinstance(value, dict) else ():
            if _matches(pattern, name):
                yield from validator.descend(item, schema, path=name, schema_path=pattern)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
