"""Calls of servers that nobody tuned for, in words that people would use."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from art_mcp.scenarios.catalog import CatalogTool
from art_mcp.scenarios.phrasing.arguments import spell_value
from art_mcp.scenarios.phrasing.phraser import Phraser
from art_mcp.scenarios.phrasing.questions import questions
from art_mcp.scenarios.phrasing.sense import senses
from art_mcp.scenarios.phrasing.wish import wish

SHIFTS = ["night", "morning", "late"]
LOANS = {"loans": [{"title": "Dune", "due": "2026-03-01"}, {"title": "Emma", "due": "2026-04-01"}]}
MEMBERS = {"members": [{"name": "Ada Berg", "since": 2019}, {"name": "Bob Li", "since": 2020}]}
CALLS: list[tuple[str, str, dict[str, Any], Any]] = [
    # A lending library.
    ("find_books", "Find books.", {"author": "Le Guin", "shelf": "F2", "after_year": 1965}, SHIFTS),
    ("book_by_title", "A book.", {"title": "Malafrena"}, {"author": "Le Guin", "shelf": "F2"}),
    ("member_loans", "Loans of a member.", {"member": "Ada Berg"}, LOANS),
    ("members_in", "Members in a city.", {"city": "Oslo"}, MEMBERS),
    ("check_out", "Lend a book.", {"title": "Dune", "member": "Ada Berg", "due": "2026-03-01"}, None),
    ("move_book", "Move a book.", {"title": "Dune", "shelf": "B4"}, None),
    # A rota, in camel case.
    ("listShifts", "List shifts.", {"wardName": "North", "fromDate": "05-01", "toDate": "05-07"}, SHIFTS),
    ("assignNurse", "Assign a nurse.", {"nurseId": 12, "shiftId": 88, "role": "lead"}, None),
    ("countFreeBeds", "Count beds.", {"ward": "North", "minAge": 18, "hasWindow": True}, "7"),
    # A warehouse, with two verbs and many kinds of arguments.
    ("search_and_reserve", "Search.", {"query": "desk lamp", "quantity": 3, "exclude_broken": True}, None),
    ("transfer_items", "Transfer items.", {"item_ids": ["i-4", "i-9"], "from_zone": "A1", "to_zone": "C2"}, None),
    ("list_items", "List items.", {"min_price": 10, "max_pages": 90, "in_stock": True, "sort_by": "price"}, SHIFTS),
    # Tickets, with the verb at the end.
    ("ticket.comment", "Comment on a ticket.", {"ticket_id": 341, "body": "Call back.", "is_internal": True}, None),
    ("set_priority", "Set the priority.", {"ticket_id": 341, "priority": "low"}, None),
    ("search_tickets", "Search.", {"query": "toner", "not_label": "old", "created_after": "2026-01-01"}, SHIFTS),
    ("create_ticket", "Create a ticket.", {"title": "No toner", "assigned_to": "Bob Li", "labels": ["a", "b"]}, None),
    # Sheets in files.
    ("write_data", "Write.", {"file": "/w/b.xlsx", "sheet_name": "S", "data": [["n", 1]], "start_cell": "B2"}, None),
    ("create_chart", "Chart.", {"filepath": "/w/b.xlsx", "chart_type": "bar", "target_cell": "E1"}, None),
    ("delete_sheet", "Delete.", {"filepath": "/w/b.xlsx", "sheet_name": "Sales"}, None),
    ("plot_point", "Plot a point.", {"x": 3, "y": 4, "options": {"shape": {"edges": 3}}}, None),
]  # fmt: skip
TOOLS = {name: CatalogTool(name=name, description=told) for name, told, _, _ in CALLS}
SENSES = senses(list(TOOLS.values()))
UNNATURAL = re.compile(
    r"\b(?:the|a|an|with|as) (?:after|before|min|max|from|to|not|sort|is|has)\b"  # a preposition as a noun
    r"|\bas the \w+\b|switched o|set to (?:true|false)"
    r"|\bthe (\w+?)s? (?:of|in) the \1s?\b"  # a noun twice
    r"|/\S+\.xlsx\.(?: |$)"  # a full stop behind a path
    r"| ,|  "
)


def ways(name: str, arguments: dict[str, Any]) -> set[str]:
    return {wish(TOOLS[name], SENSES[name], arguments, random.Random(seed)).do for seed in range(80)}


@pytest.mark.parametrize(("name", "told", "arguments", "result"), CALLS, ids=[call[0] for call in CALLS])
def test_requests_say_all_and_nothing_that_nobody_would_write(
    name: str, told: str, arguments: dict[str, Any], result: Any
) -> None:
    rng, sense = random.Random(0), SENSES[name]
    phraser = Phraser(rng)
    values = list(arguments.values())
    asked = questions(result, result, noun=sense.noun or "result", many=sense.many, argument_values=values, rng=rng)
    assert asked or result is None
    for draw in range(120):
        call = wish(TOOLS[name], sense, arguments, rng)
        question = rng.choice(asked) if result is not None else None
        text = phraser.request(call, question, held=draw % 5 == 0).text
        assert not UNNATURAL.search(text), text
        assert all(part in text for value in values for part in spell_value(value)), text


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("find_books", {"shelf": "F2", "after_year": 1965}, "find books on shelf F2 after 1965"),
        ("find_books", {"shelf": "F2", "author": "Kim"}, "find books on shelf F2 where the author is Kim"),
        ("book_by_title", {"title": "Dune"}, "give me the book Dune"),
        ("member_loans", {"member": "Ada Berg"}, "get the loans of member Ada Berg"),
        ("members_in", {"city": "Oslo"}, "get the members in Oslo"),
        ("check_out", {"title": "Dune", "member": "Ada Berg"}, "check out Dune for member Ada Berg"),
        ("assignNurse", {"nurseId": 12, "shiftId": 88}, "assign nurse 12 to shift 88"),
        (
            "list_items",
            {"min_price": 10, "max_pages": 9},
            "list the items with a price of at least 10 and at most 9 pages",
        ),
        ("ticket.comment", {"ticket_id": 3, "is_internal": True}, "comment on ticket 3 marked as internal"),
        ("set_priority", {"ticket_id": 3, "priority": "low"}, "set the priority of ticket 3 to low"),
        ("create_chart", {"filepath": "/w/b.xlsx", "chart_type": "bar"}, "create a bar chart in /w/b.xlsx"),
        ("delete_sheet", {"filepath": "/w/b.xlsx", "sheet_name": "S"}, "delete the sheet S from /w/b.xlsx"),
        ("write_data", {"data": [["n", 1]], "sheet_name": "S"}, 'write data to sheet S, with this data: [["n",1]]'),
        ("plot_point", {"x": 3, "y": 4}, "plot the point at x 3 and y 4"),
    ],
)
def test_people_would_say_it_so(name: str, arguments: dict[str, Any], text: str) -> None:
    assert text in ways(name, arguments), sorted(ways(name, arguments))


def test_an_argument_chooses_one_of_two_nouns() -> None:
    inserts = CatalogTool(name="insert_rows_or_columns", description="Insert rows or columns.")
    arguments = {"axis": "columns", "count": 2, "start": 6}
    sense = senses([inserts])[inserts.name]
    said = {wish(inserts, sense, arguments, random.Random(seed)).do for seed in range(20)}
    assert all("2 columns" in text and "rows" not in text and "axis" not in text for text in said)
