"""How tasks are phrased, and how hard they count."""

from __future__ import annotations

from typing import Any

import pytest

from art_mcp import MCPScenario
from art_mcp.scenarios.catalog import CatalogTool
from art_mcp.scenarios.generate import distinct
from art_mcp.scenarios.plan import Plan, Step
from art_mcp.scenarios.scenario_set import balanced
from art_mcp.scenarios.templates import difficulty, imperative, place, shown


@pytest.mark.parametrize(
    ("description", "order"),
    [
        ("Returns the sum of two numbers", "return the sum of two numbers"),
        ("Echoes back the input. More follows.", "echo back the input"),
        ("Get current time", "get current time"),
        ("Searches files\nArgs: x", "search files"),
        ("SQL query runner", "SQL query runner"),
        ("", "Find A Ghost"),
    ],
)
def test_a_description_becomes_an_order(description: str, order: str) -> None:
    tool = CatalogTool(name="findGhost", title="Find A Ghost", description=description)
    assert imperative(tool).casefold() == order.casefold()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("Europe/Oslo", "Europe/Oslo"),
        (" padded", '" padded"'),
        ("", '""'),
        (7, "7"),
        (2.0, "2"),
        (["a", {"b": True}], '["a",{"b":true}]'),
        ({"$step": 0, "path": ["items", 0, "item_id"]}, "from the earlier result (the item id of entry 1 of items)"),
        ({"$step": 0, "path": []}, "from the earlier result (the whole of it)"),
    ],
)
def test_a_value_is_shown_as_it_has_to_be_given(value: Any, text: str) -> None:
    assert shown(value) == text


def test_a_place_is_told_from_the_inside_out() -> None:
    assert place([1, "name"]) == "the name of entry 2"


def test_more_calls_more_arguments_and_results_taken_over_are_harder() -> None:
    one, two = Step(tool="a", arguments={"x": 1}), Step(tool="b", arguments={"x": 1, "y": 2})
    chained = Step(tool="c", arguments={"x": {"$step": 0, "path": []}})
    assert [difficulty(steps) for steps in ([one], [two], [one, one], [one, chained], [one, two, chained])] == [
        1, 2, 3, 4, 5,
    ]  # fmt: skip


def scenario(task: str, *tools: str, n: int = 1) -> MCPScenario:
    steps = [Step(tool=tool, arguments={"n": n, "text": task[0]}) for tool in tools]
    return MCPScenario.make(task, Plan(reference=steps, difficulty=difficulty(steps)))


def test_the_same_calls_and_the_same_words_are_kept_once() -> None:
    given = [
        scenario("What is it?", "a"),
        scenario("what IS it", "a", n=2),
        scenario("Would you say what it is?", "a"),
        scenario("What is that?", "b"),
    ]
    kept, dropped = distinct(given)
    assert [one.task for one in kept] == ["What is it?", "What is that?"]
    assert [one.kind for one in dropped] == ["duplicate", "duplicate"]


def test_every_beginning_uses_difficulties_and_tools_about_equally() -> None:
    given = [scenario(f"a{i}", "a", n=i) for i in range(20)] + [scenario(f"b{i}", "b", n=i) for i in range(3)]
    order = balanced([*given, scenario("both", "a", "b")])
    assert sorted("".join(one.tools) for one in order[:7]) == ["a", "a", "a", "ab", "b", "b", "b"]
    assert len(order) == 24
