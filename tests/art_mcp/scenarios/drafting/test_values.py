"""Values of arguments: of schemas, of what the server said, of what anybody knows; some are held out."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from art_mcp.canonical import canonical
from art_mcp.scenarios.catalog import Catalog, CatalogTool
from art_mcp.scenarios.drafting.explore import learn_failure
from art_mcp.scenarios.drafting.reserve import Reserve
from art_mcp.scenarios.drafting.values import NoValue, Values
from art_mcp.scenarios.plan import Step
from tests.support.mcp.tools import INTEGER, STRING, tool


def values_of(*tools: CatalogTool, seed: int = 0) -> Values:
    return Values(Catalog(tools=list(tools)), {}, random.Random(seed), seed)


LISTS = tool("list_directory", path=STRING)
READS = tool("read_file", path=STRING)
WRITES = tool("write_file", path=STRING, content=STRING)
MOVES = tool("move_file", source=STRING, destination=STRING)


def with_files() -> Values:
    values = values_of(LISTS, READS, WRITES, MOVES, tool("search_files", path=STRING, pattern=STRING))
    values.learn("list_directory", {"path": "/d"}, "[FILE] a.txt\n[FILE] b.md\n[DIR] letters")
    return values


def test_what_a_directory_lists_becomes_paths_of_files_and_directories() -> None:
    values = with_files()
    assert {values.arguments(READS)["path"] for _ in range(30)} == {"/d/a.txt", "/d/b.md"}
    assert {values.arguments(LISTS)["path"] for _ in range(30)} == {"/d/letters"}
    search = values._catalog.tools[4]
    for _ in range(2):
        values.graph.note("search_files", values.arguments(search, explore=True), 0.0)
    values.graph.note_source(("search_files", "pattern"), "*.md", "glob")
    values.graph.note("search_files", {"path": "/d/letters", "pattern": "*.md"}, 1.0)
    patterns = {values.arguments(search)["pattern"] for _ in range(30)}
    assert patterns == {"*.txt", "**/*.txt", "*.md", "**/*.md"}


def test_new_things_get_new_names_in_known_places() -> None:
    values = with_files()
    moves = {"source": "/d/a.txt", "destination": "/d/letters/new.txt"}
    values.graph.note_source(("move_file", "destination"), moves["destination"], "new path")
    values.graph.note("move_file", moves, 1.0)
    for _ in range(20):
        assert re.fullmatch(r"/d(/letters)?/[a-z-]+\.(txt|md)", values.arguments(WRITES)["path"])
        moved = values.arguments(MOVES)
        assert moved["source"] in ("/d/a.txt", "/d/b.md")
        assert moved["destination"].endswith(moved["source"][-3:].lstrip("."))
    assert values.refers(READS, "path", STRING)
    assert not values.refers(WRITES, "path", STRING)
    assert not values.refers(MOVES, "destination", STRING)


def test_what_anybody_knows() -> None:
    values = values_of(tool("get_time", timezone=STRING), tool("get_weather", city=STRING))
    zones = {values.arguments(values._catalog.tools[0])["timezone"] for _ in range(200)}
    assert len(zones) > 80
    assert "Europe/Oslo" in {zone for _ in range(40) for zone in zones} or len(zones) > 80
    assert len({values.arguments(values._catalog.tools[1])["city"] for _ in range(100)}) > 15


def test_kinds_of_values_that_never_work_are_not_tried_again() -> None:
    reads = tool("read_thing", thing_id=STRING)
    values = values_of(tool("list_things"), tool("list_other_things"), reads)
    values.learn("list_things", {}, [{"thing_id": "a1"}])
    values.learn("list_other_things", {}, [{"thing_id": "b1"}])
    for _ in range(2):
        values.graph.note("read_thing", {"thing_id": "b1"}, 0.0)
    values.graph.note("read_thing", {"thing_id": "a1"}, 1.0)
    assert {values.arguments(reads)["thing_id"] for _ in range(20)} == {"a1"}


def test_a_source_of_which_all_values_were_refused_is_tried_last() -> None:
    reads = tool("read_thing", thing_id=STRING)
    values = values_of(tool("list_things"), tool("list_parts"), reads)
    values.learn("list_things", {}, [{"thing_id": "a1"}])
    values.learn("list_parts", {}, [{"id": "b1"}])

    def explored() -> str:
        return str(values.arguments(reads, explore=True)["thing_id"])

    assert {explored() for _ in range(20)} == {"a1"}
    for _ in range(2):
        values.graph.note("read_thing", {"thing_id": "a1"}, 0.0)
    assert "a1" not in {explored() for _ in range(20)}


def test_objects_to_remove_are_ones_that_are_there() -> None:
    pair = {"type": "object", "properties": {"itemName": STRING, "remarks": {"type": "array", "items": STRING}},
            "required": ["itemName", "remarks"]}  # fmt: skip
    removes = tool("delete_remarks", deletions={"type": "array", "items": pair})
    values = values_of(tool("read_all"), removes)
    values.learn(
        "read_all", {}, {"items": [{"name": "lamp", "remarks": ["old", "blue"]}, {"name": "mug", "remarks": []}]}
    )
    assert values.arguments(removes) == {"deletions": [{"itemName": "lamp", "remarks": ["old"]}]}


def test_digests_are_shortened_where_that_works() -> None:
    shows = tool("show", commit=STRING)
    values = values_of(tool("log"), shows)
    digest = "0123456789abcdef" * 2 + "01234567"
    values.learn("log", {}, f"Commit: {digest}")
    assert {values.arguments(shows)["commit"] for _ in range(30)} == {digest, digest[:8]}
    values.graph.note("show", {"commit": digest[:8]}, 1.0)
    assert {values.arguments(shows)["commit"] for _ in range(30)} == {digest[:8]}


def test_held_out_values_are_never_drawn_for_training() -> None:
    gets = tool("get_box", box_id=STRING)
    values = values_of(tool("list_boxes"), gets, tool("add", a=INTEGER, b=INTEGER))
    values.learn("list_boxes", {}, [{"box_id": f"b{at}"} for at in range(20)])
    values.settle()
    trained = {values.arguments(gets, held=False)["box_id"] for _ in range(200)}
    held = {values.arguments(gets, held=True)["box_id"] for _ in range(200)}
    assert (len(trained), len(held)) == (16, 4)
    assert not trained & held
    adds = values._catalog.tools[2]
    for _ in range(30):
        assert not values.held_out(adds, values.arguments(adds, held=False))
        assert values.held_out(adds, values.arguments(adds, held=True))


def test_a_parameter_with_few_values_has_none_that_are_held_out() -> None:
    gets = tool("get_box", box_id=STRING)
    values = values_of(tool("list_boxes"), gets)
    values.learn("list_boxes", {}, [{"box_id": f"b{at}"} for at in range(3)])
    values.settle()
    with pytest.raises(NoValue, match="held out"):
        values.arguments(gets, held=True)


def test_the_same_seed_reserves_the_same_values() -> None:
    def reserved(seed: int) -> set[str]:
        reserve = Reserve(seed)
        reserve.domain([f"v{at}" for at in range(40)])
        return {f"v{at}" for at in range(40) if reserve.held_out(f"v{at}")}

    assert reserved(3) == reserved(3) != reserved(4)
    assert len(reserved(3)) == 8
    place = Reserve()
    place.never(["/world/a"])
    assert not place.held_out("/world/a")
    assert {canonical(value) for value in ("x",)} == {'"x"'}


def drawn(schema: dict[str, Any], **more: Any) -> list[Any]:
    given = CatalogTool(
        name="get", input_schema={"type": "object", "properties": {"x": schema}, "required": ["x"], **more}
    )
    values = values_of(given)
    return [values.arguments(given)["x"] for _ in range(20)]


@pytest.mark.parametrize(
    ("schema", "good"),
    [
        ({"enum": ["a", "b", None]}, lambda one: one in ("a", "b")),
        ({"const": 7}, lambda one: one == 7),
        ({"type": "integer", "minimum": 3, "maximum": 5}, lambda one: one in (3, 4, 5)),
        ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5}, lambda one: one == 4),
        ({"type": "integer", "minimum": 1, "multipleOf": 5}, lambda one: one % 5 == 0 and one > 0),
        ({"type": "number", "minimum": 0, "maximum": 0.5}, lambda one: 0 <= one <= 0.5),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5}, lambda one: 0 < one < 0.5),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 4}, lambda one: one == 4),
        ({"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 0.1}, lambda one: 0 < one <= 0.1),
        ({"type": "string", "examples": ["k1", "k2"]}, lambda one: one in ("k1", "k2")),
        ({"type": "string", "description": "A code (e.g., 'AB', 'CD')"}, lambda one: one in ("AB", "CD")),
        ({"type": "string", "description": "At HH:MM"}, lambda one: len(one) == 5 and one[2] == ":"),
        ({"type": "string", "format": "date-time"}, lambda one: one.endswith("Z")),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, lambda one: isinstance(one, bool)),
        ({"type": ["null", "integer"]}, lambda one: isinstance(one, int)),
        ({"$ref": "#/$defs/colour"}, lambda one: one == "red"),
        ({"type": "array", "items": {"enum": [1, 2]}, "minItems": 2}, lambda one: set(one) <= {1, 2}),
        ({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}, lambda one: one == {"a": 1}),
    ],
)
def test_values_obey_their_schema(schema: dict[str, Any], good: Any) -> None:
    made = drawn(schema, **{"$defs": {"colour": {"enum": ["red"]}}})
    assert all(good(one) for one in made), made


def test_an_object_of_which_the_schema_says_nothing_is_like_those_that_are_there() -> None:
    imports = tool("import_rows", rows={"type": "array", "items": {"type": "object"}})
    values = values_of(imports, tool("list_rows"))
    with pytest.raises(NoValue):
        values.arguments(imports)
    rows = [{"plant": "leek", "beds": 2}, {"plant": "bean", "beds": 3}]
    values.learn("list_rows", {}, rows)
    assert all(values.arguments(imports)["rows"][0] in rows for _ in range(10))


def test_what_edits_a_thing_says_how() -> None:
    edits = tool("update_task", task=STRING)
    edits.input_schema["properties"] |= {"owner": STRING, "text": STRING}
    values = values_of(edits, tool("list_tasks"))
    values.learn("list_tasks", {}, [{"task": name, "owner": "Ada"} for name in ("mow", "dig")])
    values.graph.note("update_task", {"task": "mow", "owner": "Ada"}, 1.0)
    changed = [len(values.arguments(edits, optional=0.0)) > 1 for _ in range(40)]
    assert sum(changed) > 20


def test_a_parameter_that_a_call_did_without_is_not_necessary() -> None:
    finds = tool("find_note", name=STRING)
    finds.input_schema["properties"]["project"] = STRING
    values = values_of(finds, tool("list_notes"))
    values.learn("list_notes", {}, [{"name": "compost", "project": "orchard"}])
    step = Step(tool="find_note", arguments={"name": "reef"})
    learn_failure(values, step, "no note reef in this project")
    assert "project" in values.arguments(finds, optional=0.0)
    values.graph.note("find_note", {"name": "compost"}, 1.0)
    assert "project" not in values.arguments(finds, optional=0.0)


def test_an_optional_argument_goes_with_the_others() -> None:
    clears = tool("clear_note", note=STRING)
    clears.input_schema["properties"]["project"] = STRING
    values = values_of(clears, tool("list_notes"), tool("list_projects"))
    values.learn("list_notes", {}, [{"note": "compost", "pages": 2}, {"note": "roses", "project": "orchard"}])
    values.learn("list_projects", {}, [{"project": "orchard"}, {"project": "festival"}])
    values.graph.note("clear_note", {"note": "roses", "project": "orchard"}, 1.0)
    calls = [values.arguments(clears, optional=1.0) for _ in range(40)]
    assert {"note": "roses", "project": "orchard"} in calls
    assert all("project" not in call for call in calls if call["note"] == "compost")
