"""What the names of tools say."""

from __future__ import annotations

import pytest

from art_mcp.scenarios.phrasing.sense import acts, senses
from tests.support.mcp.tools import tool


@pytest.mark.parametrize(
    ("name", "noun", "tail", "changes"),
    [
        ("get_current_time", "current time", "", False),
        ("diff_unstaged", "unstaged diff", "", False),
        ("listDirectoryWithSizes", "directory", "with sizes", False),
        ("get_user_by_id", "user", "", False),
        ("read_multiple_files", "files", "", False),
        ("issue.create", "issue", "", True),
        ("delete-entities", "entities", "", True),
        ("echo", "", "", False),
        ("mark_task_done", "task", "as done", True),
        ("propose_done", "", "as done", True),
        ("duplicate_finder", "duplicates", "", False),
    ],
)
def test_a_verb_a_noun_and_a_tail(name: str, noun: str, tail: str, changes: bool) -> None:
    sense = senses([tool(name)])[name]
    assert (sense.noun, sense.tail, sense.acts) == (noun, tail, changes)


def test_what_filters_by_a_property_filters_what_most_tools_are_about() -> None:
    found = senses([tool("list_kilns"), tool("search_kilns"), tool("list_glazes"), tool("filter_by_yard")])
    assert found["filter_by_yard"].noun == "kilns"


def test_the_name_of_the_server_is_left_out() -> None:
    found = senses([tool("depot_log"), tool("depot_list_boxes"), tool("depot_status")], "depot")
    assert {name: sense.noun for name, sense in found.items()} == {
        "depot_log": "log",
        "depot_list_boxes": "boxes",
        "depot_status": "status",
    }


def test_a_verb_behind_the_name_of_the_server_acts() -> None:
    assert acts("depot_remove_box")
    assert acts("remove_box")
    assert not acts("depot_log")
    assert not acts("get_new_box")


def test_a_word_before_several_verbs_is_their_noun() -> None:
    found = senses([tool("link_add"), tool("link_rm"), tool("ls"), tool("reclassify"), tool("link_graph")])
    assert senses([tool("create_link"), tool("create_list")])["create_link"].noun == "link"
    assert {name: (sense.verb.phrases[0], sense.noun) for name, sense in found.items()} == {
        "link_add": ("add", "link"),
        "link_rm": ("delete", "link"),
        "ls": ("list", "entries"),
        "reclassify": ("reclassify", ""),
        "link_graph": ("link", "graph"),
    }
