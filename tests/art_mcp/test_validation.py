"""Values against the schemas of servers: exact where the schema is known, and in linear time whatever it is."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from art_mcp.validation import LONGEST_MESSAGE, Checker, fits_pattern, violation
from tests.support.patience import PATIENCE

UNKNOWN = (r"^(?!x).*$", r"(a)\1", r"\cJ", "[", "a{1,100000000}", "(" * 5_000, "a" * 20_000)
"""Patterns that the engine has no notion of, or none of that size."""

EXPONENTIAL = ("^(a+)+$", "^(a|aa)+$", "(.*)*(.*)*(.*)*x", r"^(\w+\s?)*$", "(a?){40}a{40}b")


@pytest.mark.parametrize("pattern", UNKNOWN, ids=range(len(UNKNOWN)))
def test_a_pattern_that_is_not_known_is_left_to_the_server(pattern: str) -> None:
    assert fits_pattern(pattern, "x")
    schema = {"properties": {"name": {"type": "string", "pattern": pattern}, "size": {"type": "integer"}}}
    assert violation({"name": "x"}, schema) is None
    assert violation({"name": "x", "size": "large"}, schema) is not None, "what is known is checked"
    assert violation({"x": "x"}, {"patternProperties": {pattern: {"type": "integer"}}}) is None
    assert violation({"x": "x"}, {"patternProperties": {pattern: {}}, "additionalProperties": False}) is None
    referred = {"properties": {"name": {"$ref": "#/own/name"}}, "own": {"name": {"pattern": pattern}}}
    assert violation({"name": "x"}, referred) is None


def test_known_patterns_are_checked() -> None:
    assert fits_pattern("^a", "ab")
    assert not fits_pattern("^a", "b")
    assert fits_pattern(None, "b")
    assert fits_pattern("^a", "\ud800"), "no Unicode"
    assert fits_pattern(r"^\p{L}+$", "é")
    assert not fits_pattern(r"^\p{L}+$", "3")
    assert not fits_pattern(r"(?<year>\d{4})", "x")
    assert not fits_pattern("^a$", "a\n"), "as in JavaScript"
    assert violation("b", {"pattern": "^a"}) == "'b' does not match '^a'"
    assert violation("ab", {"pattern": "^a"}) is None
    assert violation(3, {"pattern": "^a"}) is None


def test_names_are_checked_by_patterns_too() -> None:
    schema = {"patternProperties": {"^n_": {"type": "integer"}}, "additionalProperties": False}
    assert violation({"n_a": 1}, schema) is None
    assert violation({"n_a": "1"}, schema) == "'1' is not of type 'integer'"
    assert violation({"a": 1}, schema) == "Additional properties are not allowed ('a' was unexpected)"
    assert violation({"a": 1}, {**schema, "additionalProperties": {"type": "string"}}) == "1 is not of type 'string'"
    assert violation([1], schema) is None


def test_the_steps_of_a_check_have_a_limit() -> None:
    consts = {"items": {"anyOf": [{"const": number} for number in range(2_000)]}}
    assert violation([*range(2_000), "x"], consts) is None, "the call decides"
    assert violation(["x"], consts) is not None
    for inner in ({}, {"$schema": "http://json-schema.org/draft-07/schema#"}):
        items = {"items": {**inner, "items": {"allOf": [{"type": "integer"}] * 100}}}
        assert violation([[0] * 2_000 + ["x"]], items) is None
        assert violation([["x"]], items) == "'x' is not of type 'integer'"


def test_unique_items_are_compared_in_linear_time() -> None:
    unique = {"uniqueItems": True}
    objects = [{"number": number} for number in range(3_000)]
    assert violation(objects, unique) is None
    assert violation([*objects, {"number": 7.0}], unique) is not None
    assert violation([1, True, [1], [True], "1"], unique) is None
    assert violation(True, {"enum": [1]}) == "True is not one of [1]"


@pytest.mark.slow
def test_no_pattern_takes_exponential_time() -> None:
    text = "a" * 60 + "!"
    lines = ["from art_mcp.validation import violation"]
    for pattern in EXPONENTIAL:
        named = {"patternProperties": {pattern: {}}}
        for schema in (
            named,
            {**named, "additionalProperties": False},
            {**named, "unevaluatedProperties": False},
            {"propertyNames": {"pattern": pattern}},
            {"additionalProperties": {"pattern": pattern}},
        ):
            lines.append(f"violation({ ({text: text})!r}, {schema!r})")
    # In a process, which can be ended: `re` cannot.
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, timeout=PATIENCE)


class Counted(dict[str, Any]):
    """A schema that counts how often it is read as a whole."""

    reads = 0

    def items(self) -> Any:
        self.reads += 1
        return super().items()


def test_a_schema_is_measured_and_read_once() -> None:
    schema = Counted(type="object")
    checker = Checker(schema)
    assert checker.violation({}) is None
    reads = schema.reads
    assert [checker.violation(value) for value in (1, {})] == ["1 is not of type 'object'", None]
    assert schema.reads == reads > 0


@pytest.mark.parametrize("version", [None, 4, 7])
def test_a_limit_may_be_exclusive_as_in_draft_4(version: int | None) -> None:
    named = {"$schema": f"http://json-schema.org/draft-0{version}/schema#"} if version else {}
    schema = {
        **named,
        "items": {"minimum": 1, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False, "type": "number"},
        "properties": {"exclusiveMinimum": {"type": "string"}},
    }
    assert violation([2, 9], schema) is None
    assert violation([2, 1], schema) == "1 is less than or equal to the minimum of 1"
    assert violation([10], schema) == "10 is greater than the maximum of 9"
    assert violation({"exclusiveMinimum": True}, schema) == "True is not of type 'string'"
    alone = {**named, "exclusiveMaximum": True, "type": "string"}
    assert (violation(1, alone) is None) == (version == 4), "draft 4 has none without `maximum`"


def test_a_schema_is_read_in_linear_time() -> None:
    values = [{"number": number} for number in range(4_000)]
    named = {"$schema": "http://json-schema.org/draft-04/schema#"}
    start = time.monotonic()
    assert violation("x", {**named, "enum": values}) is not None
    assert time.monotonic() - start < PATIENCE / 10
    assert violation("x", {**named, "enum": ["a", "a"]}) == "'x' is not one of ['a', 'a']"
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"not": deep}
    assert violation("x", deep) is None
    assert violation("x", {"$schema": [], "type": "integer"}) is None


def test_messages_are_short_from_the_beginning() -> None:
    value = ["x" * 50] * 200_000
    start = time.monotonic()
    wrong = violation(value, {"anyOf": [{"type": "integer"}] * 200})
    assert time.monotonic() - start < PATIENCE / 10
    assert str(wrong).startswith("['xxx")
    assert len(str(wrong)) == LONGEST_MESSAGE
    for long in ("y" * 10_000, {"k" * 10_000: 1}, {"k": [["y" * 10_000]]}):
        assert len(str(violation(long, {"type": "integer"}))) == LONGEST_MESSAGE
    assert violation("y" * 10_000, {"enum": ["y" * 10_000]}) is None
    assert violation(["y" * 400, "y" * 400], {"uniqueItems": True}) is not None
