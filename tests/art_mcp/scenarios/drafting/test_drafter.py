"""Drafts of any tool: whatever its schema is, nothing breaks, and what is said has every value."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_mcp.scenarios.catalog import Catalog, CatalogTool
from art_mcp.scenarios.drafting.draft import Obstacle
from art_mcp.scenarios.drafting.drafter import Drafter
from art_mcp.scenarios.drafting.explore import learn_failure
from art_mcp.scenarios.drafting.values import NoValue, Values
from art_mcp.scenarios.phrasing.arguments import spell_value
from art_mcp.scenarios.phrasing.phraser import Phraser
from art_mcp.scenarios.phrasing.questions import questions
from art_mcp.scenarios.plan import Step
from tests.support.mcp.tools import STRING, tool

ODD = ["_", "名前", "2nd", "q", "a", "b", "fromDate", "to_city", "includeBody", "old_text", "new_path", "max_results"]
NAMES = st.sampled_from([*ODD, "path", "id", "name", "limit", "user_id", "tags", "message", "is_open", "type", "query"])
SCALARS: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "integer"},
    {"type": "number"},
    {"type": "boolean"},
    {"enum": ["x", "y z"]},
    {"type": "string", "format": "date"},
    {"type": ["string", "null"]},
    {},
    {"const": "c"},
    {"type": "string", "pattern": "^z"},
]
SCHEMAS = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.one_of(
        st.builds(lambda item: {"type": "array", "items": item}, inner),
        st.builds(
            lambda parts: {"type": "object", "properties": parts, "required": list(parts)},
            st.dictionaries(NAMES, inner, min_size=1, max_size=3),
        ),
    ),
    max_leaves=4,
)
TOOLS = st.builds(
    lambda name, parts, count: CatalogTool(
        name=name, input_schema={"type": "object", "properties": parts, "required": list(parts)[:count]}
    ),
    st.sampled_from(
        ["get_user", "list", "create_thing", "delete-things", "echo", "実行", "xyz_frob", "readAllFiles", "by_id"]
    ),
    st.dictionaries(NAMES, SCHEMAS, max_size=4),
    st.integers(0, 4),
)
RESULTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(TOOLS, RESULTS, st.integers(0, 1000))
def test_any_tool_and_any_result_can_be_talked_about(tool: CatalogTool, result: Any, seed: int) -> None:
    rng = random.Random(seed)
    values = Values(Catalog(tools=[tool]), {}, rng)
    values.learn(tool.name, {}, result)
    values.settle()
    drafter, phraser = Drafter(Catalog(tools=[tool]), [tool], values, rng), Phraser(rng)
    try:
        draft = drafter.single(tool.name)
    except NoValue:
        return
    asked = draft.find_questions(result, result, rng)
    call = draft.render_call(rng)
    text = phraser.request(call, rng.choice(asked) if asked else None, held=seed % 2 == 0).text
    for value in draft.steps[0].arguments.values():
        for part in spell_value(value):
            assert part in text or json.dumps(part, ensure_ascii=False)[1:-1] in text, (text, value)


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_can_be_asked_about(first: str, second: str) -> None:
    for question in questions(first, second, noun="log", many=False, argument_values=["x"], rng=random.Random(0)):
        assert question.value
        assert "\n" not in question.value or question.path is not None


def test_a_task_that_must_fail_is_of_values_that_are_there_but_refused() -> None:
    lends, returns, shows = (tool(name, title=STRING) for name in ("lend", "return_book", "show_book"))
    catalog, rng = Catalog(tools=[lends, returns, shows]), random.Random(0)
    values = Values(catalog, {}, rng)
    values.learn("list_loans", {}, [{"title": "Emma"}, {"title": "Jazz"}])
    values.learn("list_books", {}, [{"title": "Dune"}, {"title": "Sula"}])
    values.graph.note("show_book", {"title": "Sula"}, 1.0)
    values.graph.note("return_book", {"title": "Jazz"}, 1.0)
    values.graph.note_source(("return_book", "title"), "reef", "new name")
    errors = {
        "Dune": "Error executing tool return_book: 'Dune' is not on loan.",  # no book of its source can be returned
        "reef": "no book 'reef'",
        "Emma": "it is too late\nfor 'Emma', as it often is",
        "Sula": "it failed",
    }
    for title, error in errors.items():
        learn_failure(values, Step(tool="return_book", arguments={"title": title}), error)
    (draft,) = Drafter(catalog, catalog.tools, values, rng).refusals("return_book")
    assert draft.kind == "impossible"
    assert draft.obstacle == Obstacle("Dune")
    assert draft.steps == [Step(tool="return_book", arguments={"title": "Dune"})]


@pytest.mark.parametrize(("parameter", "noun"), [("box_name", "box"), ("from_shelf", "shelf")])
def test_a_value_that_does_not_exist_has_a_noun(parameter: str, noun: str) -> None:
    opens = tool("get_box", **{parameter: STRING})
    catalog, rng = Catalog(tools=[opens]), random.Random(0)
    values = Values(catalog, {}, rng)
    values.learn("list_boxes", {}, [{parameter: f"b-{at}"} for at in range(9)])
    draft = Drafter(catalog, catalog.tools, values, rng).missing("get_box")
    assert draft
    assert draft.obstacle == Obstacle(draft.steps[0].arguments[parameter], noun)


def test_a_date_is_no_name_of_something_that_does_not_exist() -> None:
    shows = tool("show_day", day=STRING)
    catalog, rng = Catalog(tools=[shows]), random.Random(0)
    values = Values(catalog, {}, rng)
    values.learn("list_days", {}, [{"day": f"2026-03-0{at}"} for at in range(1, 9)])
    assert Drafter(catalog, catalog.tools, values, rng).missing("show_day") is None
