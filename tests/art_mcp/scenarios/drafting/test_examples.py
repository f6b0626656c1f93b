"""Calls that descriptions write out: they are read, tried, and varied."""

from __future__ import annotations

import random
from typing import Any

import pytest

from art_mcp.scenarios.catalog import Catalog, CatalogTool
from art_mcp.scenarios.drafting.examples import MAX_CALLS, example_calls, like, numeric_literals
from art_mcp.scenarios.drafting.values import Values

NUMBERS = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
PROPERTIES: dict[str, Any] = {"name": {"type": "string"}, "to": {"type": "string"}, "rows": NUMBERS, "open": {}}


def described(description: str, *required: str) -> CatalogTool:
    schema = {"type": "object", "properties": PROPERTIES, "required": [*required]}
    return CatalogTool(name="move_card", description=description, input_schema=schema)


@pytest.mark.parametrize(
    ("description", "calls"),
    [
        ("move_card('Buy plywood', \"done\")", [{"name": "Buy plywood", "to": "done"}]),
        ("move_card('Oak', open=True, other=4)", [{"name": "Oak", "open": True}]),
        ("name='Oak' to='done' -> moved", [{"name": "Oak", "to": "done"}]),
        ('A:\n name="Oak", rows=[[1, 2]]\nB:\n name="Ash"', [{"name": "Oak", "rows": [[1, 2]]}, {"name": "Ash"}]),
        ('e.g. {"name": "Oak", "open": false}', [{"name": "Oak", "open": False}]),
        ("to: `todo` or `done`", [{"to": "todo"}]),
        ("name: the name of a card, to: where", []),
        ("rename='x', card.name='y', {\"name\": open()}, move_card(open('/etc'))", []),
        ("rows=[[1, ...]], name={1, 2}, open={'a': b'x'}, to=1e999, move_card(..., {3})", []),
        ("rows=[[NaN]], open=[Infinity]", []),
        ("name=" + "[" * 3000, []),
        ("move_card(" + "(" * 3000, []),
        ("nothing", []),
    ],
)  # fmt: skip
def test_calls_in_a_description(description: str, calls: list[dict[str, Any]]) -> None:
    assert example_calls(described(description)) == calls


def test_calls_are_bounded() -> None:
    assert len(example_calls(described(". ".join(f"name='n{at}'" for at in range(500))))) == MAX_CALLS


def test_lists_and_objects_of_numbers() -> None:
    assert numeric_literals("a matrix (e.g., [[1,2],[3,4]]), or ['a']", list) == [[[1, 2], [3, 4]]]
    assert numeric_literals("values by name: {'x': [1, 2]} or {'x': 'y'}", dict) == [{"x": [1, 2]}]


def test_what_is_like_an_example_has_its_shape_and_its_texts() -> None:
    rng, example = random.Random(0), {"rows": [[1, 2.5], [-3, 0]], "name": "Oak", "open": True}
    others = [like(example, rng) for _ in range(40)]
    assert all(other["name"] == "Oak" and other["open"] is True for other in others)
    assert all(other["rows"][0][0] > 0 > other["rows"][1][0] and other["rows"][1][1] == 0 for other in others)
    assert len({str(other["rows"]) for other in others}) > 20


def test_examples_are_tried_and_those_that_work_are_drawn() -> None:
    moves = described("name='Oak', rows=[[1, 2], [3, 4]]\nor name='Ash', rows=[[5, 6, 7, 8, 9]]", "name", "rows")
    values = Values(Catalog(tools=[moves]), {}, random.Random(0))
    tried = [values.arguments(moves, explore=True, optional=0.0) for _ in range(40)]
    assert 0 < sum(len(call["rows"]) == 2 and call["name"] == "Oak" for call in tried) <= 30
    values.learn("move_card", {"name": "Oak", "rows": [[7, 8], [9, 1]]}, {"moved": "yes"})
    drawn = [values.arguments(moves, optional=0.0) for _ in range(60)]
    oak = [call for call in drawn if call["name"] == "Oak" and [len(row) for row in call["rows"]] == [2, 2]]
    assert len(oak) > 15
    assert len({str(call["rows"]) for call in oak}) > 10


def test_examples_of_other_machines_are_not_tried_where_something_may_be_written() -> None:
    writes = described("name='/home/me/a.txt', to='x'", "name", "to")
    values = Values(Catalog(tools=[writes]), {}, random.Random(0))
    assert not any(values.arguments(writes, explore=True)["name"] == "/home/me/a.txt" for _ in range(30))


def test_a_parameter_of_several_types_has_the_one_of_the_example() -> None:
    union = {"anyOf": [{"type": "string"}, NUMBERS, {"type": "number"}]}
    schema = {"type": "object", "properties": {"first": NUMBERS, "second": union}, "required": ["first", "second"]}
    adds = CatalogTool(name="add", description="first=[[1]], second=[[2]]\nfirst=[[1]], second=2", input_schema=schema)
    values = Values(Catalog(tools=[adds]), {}, random.Random(0))
    seconds = [values.arguments(adds)["second"] for _ in range(40)]
    assert {type(second) for second in seconds} == {list, int}
