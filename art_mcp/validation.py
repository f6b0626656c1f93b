"""Whether values fit the JSON schemas that servers write. Their patterns cost a time that is linear in the text.

Python's `re`, which `jsonschema` uses, needs exponential time for patterns such as `^(a+)+$`: a server could stop its
client with one. The engine of Pydantic, that of Rust, does not, and it knows `\\p{L}` and `(?<name>…)` as JavaScript
does. It has no lookaround and no references back: such a pattern is left to the server, as all are that it cannot read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, cached_property, lru_cache
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
MAX_CHARACTERS = 100_000
"""Maximum number of characters of a schema, as JSON, that values are checked against."""
LONGEST_MESSAGE = 300
"""Maximum number of characters of a message."""

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
    """How a value violates a schema, as `Checker.violation` says it. Where many values are checked, make a Checker."""
    return Checker(schema).violation(value)


class Checker:
    """Compares values with one schema, which is measured and read once.

    References resolve inside the schema only: nothing is fetched, whatever URL a server writes into a schema. A value
    that needs more than STEPS steps is not checked to the end, and a schema with more than MAX_CHARACTERS characters
    not at all: the call decides.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema

    def violation(self, value: Any) -> str | None:
        """How a value violates the schema, in at most LONGEST_MESSAGE characters. None: it does not, or the schema
        itself is invalid."""
        _steps.set(0)
        try:
            if self._validator:
                self._validator.validate(_with_short_texts(value))
        except jsonschema.ValidationError as error:
            return str(error.message)[:LONGEST_MESSAGE]
        except (Unresolvable, RecursionError, _TooMany, *_INVALID):
            pass  # the server's schema is invalid: the call decides
        return None

    @cached_property
    def _validator(self) -> Any:
        """The validator of the schema. None: it is too long, or invalid."""
        try:
            validator = jsonschema.validators.validator_for(self._schema, default=jsonschema.Draft202012Validator)
            if len(json.dumps(self._schema, default=str)) > MAX_CHARACTERS:
                return None
            schema = _with_short_texts(self._schema)
            # Without formats, of which one says that a pattern is one of Python's `re`.
            if next(_of_schemas(validator)(validator.META_SCHEMA).iter_errors(schema), None):
                return None
        except (Unresolvable, RecursionError, *_INVALID):
            return None
        return _forgiving(validator)(schema, registry=Registry())


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
        properties = _object(schema.get("properties"))
        others = {
            name: item
            for name, item in value.items()
            if name in properties or all(_matches(pattern, name) is False for pattern in patterns)
        }
        plain = {key: part for key, part in schema.items() if key != "patternProperties"}
        yield from keywords["additionalProperties"](validator, schema_of_others, others, plain)

    own = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": additional,
        "unevaluatedProperties": _skip_check,
        "unevaluatedItems": _skip_check,
        "uniqueItems": _unique,
        "enum": _enum,
        "exclusiveMinimum": _exclusive("minimum", keywords),
        "exclusiveMaximum": _exclusive("maximum", keywords),
        "const": lambda validator, const, value, schema: _enum(validator, [const], value, schema),
    }
    return _extend_validator(validator, own, _count)


@cache
def _of_schemas(validator: Any) -> Any:
    """The class of a validator of the schemas that another class reads. It takes a time that is linear in them: values
    in an `enum` may be there twice. In all versions, a limit may be exclusive as in draft 4: `exclusiveMinimum: true`.
    """
    own = jsonschema.validators.validator_for(validator.META_SCHEMA, default=validator)
    of_objects = own.VALIDATORS["properties"]

    def properties(validator: Any, schemas: Any, value: Any, schema: Any) -> Iterator[Any]:
        if isinstance(value, dict):
            value = {name: item for name, item in value.items() if name not in _EXCLUSIVE or not isinstance(item, bool)}
        yield from of_objects(validator, schemas, value, schema)

    return _extend_validator(own, {"properties": properties, "uniqueItems": _skip_check}, lambda steps: None)


def _extend_validator(validator: Any, keywords: Mapping[str, Any], count: Callable[[float], None]) -> Any:
    """The class of a validator with other keywords, in place of those that it has.

    Args:
        validator: The class.
        keywords: What checks each keyword.
        count: Called with the number of steps that a schema in another one counts as.
    """
    extension: Any = jsonschema.validators.extend(
        validator, {name: check for name, check in keywords.items() if name in validator.VALIDATORS}
    )
    evolve = extension.evolve

    def evolve_with_count(validator: Any, **changes: Any) -> Any:
        schema = changes.get("schema", validator.schema)
        count(1)
        if isinstance(schema, Mapping):
            count(_PART * sum(len(part) for part in schema.values() if isinstance(part, list | dict)))
            # A part of a schema that names a version would get a validator without these keywords.
            changes["schema"] = {key: part for key, part in schema.items() if key != "$schema"}
        return evolve(validator, **changes)

    extension.evolve = evolve_with_count  # every schema inside another gets its validator by it
    return extension


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


_EXCLUSIVE = ("exclusiveMinimum", "exclusiveMaximum")


def _exclusive(limit: str, keywords: Mapping[str, Any]) -> Any:
    """The keyword `exclusiveMinimum` or `exclusiveMaximum`, as `jsonschema` calls it. True: the limit beside it, if
    there is one, is meant."""
    name = f"exclusive{limit.capitalize()}"

    def check(validator: Any, bound: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
        bound = schema.get(limit) if bound is True else bound
        if isinstance(bound, int | float) and not isinstance(bound, bool):
            yield from keywords[name](validator, bound, value, schema)

    return check


def _skip_check(*_: Any) -> None:
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


class _LongText(str):
    def __repr__(self) -> str:
        return f"{str.__repr__(self[:LONGEST_MESSAGE])[:-1]} …"


class _LongList(list[Any]):
    def __repr__(self) -> str:
        return f"[{_beginning(map(repr, self))}"


class _LongObject(dict[str, Any]):
    def __repr__(self) -> str:
        return f"{{{_beginning(f'{name!r}: {item!r}' for name, item in self.items())}"


def _beginning(texts: Iterable[str]) -> str:
    """The first texts, in about as many characters as a message has."""
    parts: list[str] = []
    size = 0
    for text in texts:
        parts.append(text)
        size += len(text)
        if size > LONGEST_MESSAGE:
            break
    return f"{', '.join(parts)[:LONGEST_MESSAGE]} …"


def _with_short_texts(value: Any) -> Any:
    """An equal JSON value, whose `repr` takes a short time: `jsonschema` writes it into the message of each error, of
    which it makes one for each schema of an `anyOf`."""
    if isinstance(value, str):
        return _LongText(value) if len(value) > LONGEST_MESSAGE else value
    if isinstance(value, Mapping):
        entries = {_with_short_texts(name): _with_short_texts(item) for name, item in value.items()}
        return _LongObject(entries) if _is_long([*entries, *entries.values()]) else entries
    if isinstance(value, list):
        items = [_with_short_texts(item) for item in value]
        return _LongList(items) if _is_long(items) else items
    return value


def _is_long(parts: list[Any]) -> bool:
    """Whether parts with short texts have a long one together."""
    return len(parts) > LONGEST_MESSAGE or len(str(parts)) > LONGEST_MESSAGE


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
