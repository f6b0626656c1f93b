"""Which tools only read."""

from __future__ import annotations

from typing import Any

import pytest

from art_mcp.client.effects import readers, why_changing


@pytest.mark.parametrize(
    ("name", "annotations", "changes"),
    [
        ("get_time", {}, False),
        ("convertTime", {}, False),
        ("get_or_create_user", {}, True),
        ("transfer", {}, True),
        ("zork", {}, True),
        ("delete_all", {"readOnlyHint": True}, False),
        ("append_note", {"readOnlyHint": False, "destructiveHint": False}, True),
        ("get_time", {"readOnlyHint": False}, True),
        ("get_time", {"destructiveHint": True}, True),
        ("get_time", {"destructiveHint": False}, False),
        ("add_note", {"destructiveHint": False}, True),
        ("zork", {"openWorldHint": False}, True),
        ("purge_log", {}, True),
        ("format_disk", {}, True),
        ("destroy_view", {}, True),
        ("terminate_query", {}, True),
        ("git_checkout", {}, True),
        ("git_log", {}, True),
        ("tool_get_time", {}, False),
        ("mcp_delete_note", {}, True),
        ("tool", {}, True),
        ("checkOut", {}, True),
        ("find_and_replace", {}, True),
        ("getURLDelete", {}, True),
        ("listUserIDs", {}, False),
        ("get_and_flush", {}, True),
        ("resolve_review_thread", {}, True),
        ("query", {"title": "Query"}, True),
        ("", {}, True),
        ("list_merge_requests", {}, False),
        ("describe_table", {"idempotentHint": True}, False),
        ("checkHealth", {}, False),
    ],
)
def test_which_tools_may_change_something(name: str, annotations: dict[str, Any], changes: bool) -> None:
    assert (why_changing(name, "", annotations) is not None) is changes


@pytest.mark.parametrize(
    ("description", "changes"),
    [
        ("Gets the item, and removes it.", True),
        ("Deletes what it finds.", True),
        ("Execute a SELECT query on the database", False),
        ("Show the items that were created or moved.", False),
        ("List updates", False),
        ("Reads a file. Writes nothing", True),
    ],
)
def test_a_description_may_say_that_a_tool_does_more_than_read(description: str, changes: bool) -> None:
    """Where it is not clear, a tool counts as one that changes something."""
    assert (why_changing("get_item", description, {}) is not None) is changes
    assert why_changing("get_item", description, {"readOnlyHint": True}) is None


@pytest.mark.parametrize(
    ("name", "description", "changes"),
    [
        ("url_parse", "Parse a URL into its parts", False),
        ("issue.list", "Lists the issues.", False),
        ("mark_read", "Mark a message as read", True),
        ("mark_read", "Read the message, and mark it", True),
        ("book_check", "Check a book out", True),
        ("cache_list", "List the cache, and purge it", True),
        ("purge_list", "List what is purged", True),
        ("mean", "Calculate the mean", True),
        ("url_parse", "", True),
    ],
)
def test_a_verb_at_the_end_of_a_name_counts_if_the_description_begins_with_it(
    name: str, description: str, changes: bool
) -> None:
    assert (why_changing(name, description, {}) is not None) is changes


def test_readers_are_found_in_what_a_server_lists() -> None:
    tools = [{"name": "get_x"}, {"name": "zork", "annotations": {"readOnlyHint": True}}, {"name": "zork_two"}]
    assert readers(tools) == {"get_x", "zork"}
