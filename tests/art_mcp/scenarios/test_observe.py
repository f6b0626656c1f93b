"""What is read out of results."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from art_mcp.client.result import CallResult
from art_mcp.scenarios.observe import Finding, at, findings, is_nothing, leaves, parse_result, problem, stable_facts


@pytest.mark.parametrize(
    ("text", "structured", "value"),
    [
        ("x", {"a": 1}, {"a": 1}),
        ("x", {"result": "[1, 2]"}, [1, 2]),
        ("x", {"content": "plain"}, "plain"),
        ('{"a": null}', None, {"a": None}),
        ("[{'name': 'users'}]", None, [{"name": "users"}]),
        ("[FILE] a.txt", None, "[FILE] a.txt"),
        ("ferry,granary,light-house\n", None, ["ferry", "granary", "light-house"]),
        ("brief.md,risks.md", None, ["brief.md", "risks.md"]),
        ("Hello, world", None, "Hello, world"),
        ("1,234,567", None, "1,234,567"),
        ("59.9,10.7", None, "59.9,10.7"),
        ("__import__('os')", None, "__import__('os')"),
        ("x", {"result": [{"type": "image", "data": "iVBO"}, {"type": "text", "text": '{"width": 9}'}]}, {"width": 9}),
        ("x", {"result": [{"type": "text", "words": 3}]}, [{"type": "text", "words": 3}]),
    ],
)
def test_a_result_is_read_as_what_it_is(text: str, structured: Any, value: Any) -> None:
    assert parse_result(text, structured) == value


def test_every_leaf_is_found_where_its_path_says() -> None:
    value = {"a": [1, {"b": None, "c": ""}], "d": False}
    assert dict(leaves(value)) == {("a", 0): 1, ("d",): False}
    assert all(at(value, path) == leaf for path, leaf in leaves(value))
    for path in (["a", 7], ["x"], ["d", 0]):
        with pytest.raises(LookupError):
            at(value, path)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Error: no such table", "error"),
        ("Database error: x", "error"),
        ("Error executing read_the_presentation: no such file", "error"),
        ('{"error": true, "code": "not_found", "message": "Note x not found."}', "error"),
        ('{"error": false, "code": "ok"}', None),
        ("No matches found", "empty"),
        ("", "empty"),
        ("[]", "empty"),
        ('{"entities": [], "relations": []}', "empty"),
        ("0", None),
        ("No", None),
        ("There is no error: all is well", None),
        ("a.txt: Error - ENOENT: no such file\n\n---\nb.txt: Error - EACCES\n", "error"),
        ("a.txt: Error - ENOENT: no such file\n\n---\nb.txt:\nhello\n", None),
    ],
)
def test_results_that_are_of_no_use(text: str, kind: str | None) -> None:
    found = problem(text, parse_result(text))
    assert (found and found[0]) == kind


def fitting(tool: str, value: Any, parameter: str, *taken: str) -> list[Any]:
    meanings = [frozenset(name.split("_")) for name in taken]
    return [one.value for one in findings(tool, value) if one.fits(parameter, meanings)]


def test_a_value_fits_a_parameter_that_says_the_same() -> None:
    tables = [{"name": "users"}, {"name": "orders"}]
    assert fitting("list_tables", tables, "table_name") == ["users", "orders"]
    assert fitting("describe_table", [{"name": "id"}], "table_name", "table_name") == []
    assert fitting("get_current_time", {"datetime": "x", "time_zone": "y"}, "time") == []
    assert fitting("search", {"users": [{"id": 7, "name": "Ada"}]}, "userId") == [7]
    assert fitting("create_job_id", "j-77", "job_id") == ["j-77"]
    assert fitting("find", "in /srv/a.txt and /srv/b, not /dev/null", "path") == ["/srv/a.txt", "/srv/b"]
    assert fitting("git_log", "Commit: 'abc123'", "revision") == ["abc123"]
    assert next(findings("list", {"a": [{"b": "c"}]})) == Finding(("a", 0, "b"), ("b",), frozenset({"list", "a"}), "c")


def test_values_within_a_line_are_read() -> None:
    text = (
        "Found 2 notes:\n\n1. The sextant (ID: 2026-17)\n   Tags: maps, ships\n"
        "2. Star paths [ID: 2026-18, by: Ada Berg]\n   Summary: Of stars, which were seen from many ships on the way"
    )
    read = [(finding.own, finding.value) for finding in findings("search_notes", text)]
    for expected in (
        (("id",), "2026-17"), (("id",), "2026-18"), (("by",), "Ada Berg"), (("name",), "The sextant"),
        (("name",), "Star paths"), (("tag",), "maps"), (("tag",), "ships"),
    ):  # fmt: skip
        assert expected in read
    assert "Of stars" not in {value for _, value in read}


def test_a_line_of_signs_is_no_value() -> None:
    assert [finding.value for finding in findings("read_files", "---\nplain\n***")] == ["plain"]


def test_facts_are_stable_new_and_not_of_the_clock() -> None:
    now = datetime.now(UTC)
    first = {
        "city": "Oslo", "people": 709_000, "capital": True, "seen": now.isoformat(), "day": f"{now:%A}",
        "stamp": int(time.time()), "load": 0.25, "note": "x" * 100, "mayor": "Ada",
    }  # fmt: skip
    assert stable_facts(first, {**first, "load": 0.5}, ["Oslo"]) == ["709000", "Ada"]
    assert stable_facts("The sum of 3 and 4 is 7.", "The sum of 3 and 4 is 7.", [3, 4]) == ["7"]
    assert stable_facts("Diff with main:", "Diff with main:", []) == []
    assert stable_facts("deep blue", "deep blue", []) == ["deep blue"]
    assert stable_facts("1", "2", []) == []


@pytest.mark.parametrize(
    "text",
    [
        "2024-03-09",
        "2024-03-09T14:05:59.123+01:00",
        "2024-03-09 14:05",
        "09/03/2024",
        "9.3.2024",
        "9 March 2024",
        "Mar 9",
        "Saturday, March 9th, 2024 at 14:05",
        "Sat Mar 9 14:05:59 2024",
        "March 2024",
        "Saturday",
        "may",
        "1709993159",
        "1709993159123",
        "1709993159.25",
    ],
)
def test_dates_are_no_facts_on_any_day(text: str) -> None:
    assert stable_facts({"x": text}, {"x": text}, []) == []
    told = f"It is shown: {text}. The price of the lamp is 20 euros."
    assert stable_facts(told, told, []) == ["20"]


@pytest.mark.parametrize(
    "text",
    [
        "Mayor",
        "marching",
        "10.0.0.1",
        "1.2.3",
        "Sunny",
        "it-2024-77",
        "12:30",
        "Augustus",
        "2024",
        "v2024-03-09",
        "Mona",
    ],
)
def test_what_only_looks_like_a_date_is_a_fact_on_every_day(text: str) -> None:
    assert stable_facts({"x": text}, {"x": text}, []) == [text]


def test_a_line_with_a_date_keeps_its_other_facts_in_every_month() -> None:
    """Words such as may and march are no dates."""
    for month in ("May", "March", "November", "August"):
        told = f"You {month} book room 217 in {month}.\nOn {month} 3, 2024 the price is 99 euros."
        assert stable_facts(told, told, []) == ["217", "99"]


def test_structured_content_without_text_is_shown_as_json() -> None:
    assert CallResult.of({"content": [], "structuredContent": {"a": 1}}).text == '{"a": 1}'


@pytest.mark.parametrize(
    ("text", "nothing"),
    [
        ("0", True),
        ("0.0", True),
        ("Total: 0", True),
        ("Found 0 results for 'lamp'.", True),
        ("No results", True),
        ("10", False),
        ("0.5", False),
        ("Total: 20", False),
        ("lamp", False),
        ("0 of 3", False),
    ],
)
def test_zero_and_nothing_say_that_there_is_nothing(text: str, nothing: bool) -> None:
    assert is_nothing(text) is nothing
