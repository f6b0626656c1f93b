"""Arguments in words: every value can be read from the text, and people would say it so."""

from __future__ import annotations

import random
from typing import Any

import pytest

from art_mcp.scenarios.catalog import CatalogTool
from art_mcp.scenarios.phrasing.arguments import render_value, spell_value
from art_mcp.scenarios.phrasing.language import UNITS
from art_mcp.scenarios.phrasing.sense import senses
from art_mcp.scenarios.phrasing.wish import wish
from tests.support.mcp.tools import INTEGER, STRING, tool

BOOLEAN = {"type": "boolean"}
ARRAY = {"type": "array", "items": STRING}
RELATION = {"type": "object", "properties": {"from": STRING, "to": STRING, "relationType": STRING}}
PAPERS = {"name": "lamp", "kind": "light", "remarks": ["old", "blue"]}


def ways(given: CatalogTool, arguments: dict[str, Any], spoken: dict[str, str] | None = None) -> set[str]:
    """All that is said for a call, in many draws."""
    sense = senses([given])[given.name]
    return {wish(given, sense, arguments, random.Random(seed), spoken).do for seed in range(60)}


@pytest.mark.parametrize(
    ("given", "arguments", "text"),
    [
        (tool("create_branch", name=STRING), {"name": "x"}, "create a branch named x"),
        (tool("checkout", repo_path=STRING, branch_name=STRING), {"repo_path": "/r", "branch_name": "x"},
         "check out x in /r"),
        (tool("get_price", item_id=STRING), {"item_id": "it-7"}, "look up the price of it-7"),
        (tool("convert_time", source_zone=STRING, time=STRING, target_zone=STRING),
         {"source_zone": "A/B", "time": "09:30", "target_zone": "C/D"}, "convert the time 09:30 from A/B to C/D"),
        (tool("get-sum", a=INTEGER, b=INTEGER), {"a": 3, "b": 4}, "get the sum of 3 and 4"),
        (tool("echo", message=STRING), {"message": "hello you"}, 'echo the message "hello you"'),
        (tool("read_file", path=STRING, head=INTEGER), {"path": "/a.txt", "head": 3},
         "read the file /a.txt limited to the first 3 lines"),
        (tool("search_notes", query=STRING), {"query": "tea"}, "look through the notes for tea"),
        (tool("list_issues", state={"enum": ["open", "closed"]}, limit=INTEGER), {"state": "open", "limit": 5},
         "list the issues where the state is open, limited to 5 entries"),
        (tool("branch", branch_type=STRING), {"branch_type": "local"}, "show me the local branches"),
        (tool("commit", message=STRING), {"message": "Fix it"}, 'commit with the message "Fix it"'),
        (tool("get_note", include_body=BOOLEAN), {"include_body": True}, "get the note including body"),
        (tool("get_note", include_body=BOOLEAN), {"include_body": False}, "get the note without body"),
        (tool("find_files", pattern=STRING, exclude_patterns=ARRAY), {"pattern": "*.md", "exclude_patterns": ["x*"]},
         "find the files matching *.md without x*"),
        (tool("open_nodes", names=ARRAY), {"names": ["Ada", "Bob"]}, "open the nodes Ada and Bob"),
        (tool("delete_relations", relations={"type": "array", "items": RELATION}),
         {"relations": [{"from": "Ada", "to": "Bob", "relationType": "knows"}]},
         "remove the relation from Ada to Bob with type knows"),
        (tool("create_things", things={"type": "array", "items": {"type": "object"}}), {"things": [PAPERS]},
         "create a thing named lamp with kind light and remarks old and blue"),
    ],
)  # fmt: skip
def test_people_would_say_it_so(given: CatalogTool, arguments: dict[str, Any], text: str) -> None:
    found = ways(given, arguments)
    assert text in found, sorted(found)
    for said_so in found:
        assert all(part in said_so for value in arguments.values() for part in spell_value(value)), said_so


@pytest.mark.parametrize("unit", sorted(UNITS))
@pytest.mark.parametrize(("value", "lead"), [(24, "dose"), (24, "max_dose"), (2.5, "dose")])
def test_a_number_is_said_with_its_unit_behind_it(unit: str, value: float, lead: str) -> None:
    name = f"{lead}_{unit}"
    for text in ways(tool("get_plan", **{name: {"type": "number"}}), {name: value}):
        bound = "at most " if lead == "max_dose" else ""
        assert f"a dose of {bound}{UNITS[unit].format(value, unit)}" in text, text


@pytest.mark.parametrize("name", ["network", "dry_run", "is_urgent", "urgent_only", "include_notes", "in_stock"])
def test_a_switch_is_said_and_not_read_out(name: str) -> None:
    on, off = (ways(tool("get_plan", **{name: BOOLEAN}), {name: value}) for value in (True, False))
    assert not on & off
    assert not any(sign in text for text in on | off for sign in (":", "yes", "true", "("))


def test_what_is_described_is_not_told() -> None:
    given = tool("get_price", item_id=STRING)
    found = ways(given, {"item_id": {"$step": 0, "path": [0, "id"]}}, {"item_id": "the first item"})
    assert "get the price of the first item" in found
    assert not any("$step" in text or "step" in text for text in found)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("Europe/Oslo", "Europe/Oslo"),
        ("Ada Berg", "Ada Berg"),
        (7, "7"),
        (2.0, "2"),
        (["a", "b"], "a and b"),
        ('say "x"', "'say \"x\"'"),
        ("a\nb", '"a\\nb"'),
    ],
)
def test_values_are_written_as_the_call_needs_them(value: Any, text: str) -> None:
    assert render_value(value, random.Random(0)) == text


def test_values_of_several_words_are_quoted() -> None:
    assert {render_value("buy milk", random.Random(seed)) for seed in range(20)} == {
        '"buy milk"',
        "'buy milk'",
        "“buy milk”",
    }
