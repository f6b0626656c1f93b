"""What an error tells of a call: which arguments were wrong, what the server would take, what is missing."""

from __future__ import annotations

import pytest

from art_mcp.scenarios.drafting.errors import blame, message_of, numbers_in, offers, parameters_in, reason_of

CALL = {("lend", "title"): "Dune", ("lend", "member"): "Ada Berg", ("lend", "due_date"): "soon"}


@pytest.mark.parametrize(
    ("message", "blamed"),
    [
        ("'Dune' is on loan already", {"title"}),
        ("unknown member 'Ada Berg'", {"member"}),
        ("due_date must be a date", {"due_date"}),
        ("the due date is wrong", {"due_date"}),
        ("no such member", {"member"}),
        ("Dune cannot be lent to Ada Berg", {"title", "member"}),
        ("it failed", set()),
    ],
)
def test_an_error_blames_what_it_names(message: str, blamed: set[str]) -> None:
    assert {slot[1] for slot in blame(message, CALL)} == blamed


@pytest.mark.parametrize(
    ("message", "blamed"),
    [("bad entities", {"entities.*"}), ("one tag is bad", {"tags.*"}), ("*path* must exist", set())],
)
def test_the_items_of_a_list_are_blamed_by_its_name(message: str, blamed: set[str]) -> None:
    slots = {("mark", "tags.*"): "zz", ("mark", "entities.*"): "yy"}
    assert {slot[1] for slot in blame(message, slots)} == blamed


@pytest.mark.parametrize(
    ("message", "values", "endings"),
    [
        ("Sheet 'x' not found. Available sheets: 'Orders', 'Stock'.", ["Orders", "Stock"], []),
        ("unknown colour x; expected one of [red, green, blue]", ["red", "green", "blue"], []),
        ("'x' must point to a table (.csv, .tsv)", [], [".csv", ".tsv"]),
        ("expected a date such as 2026-01-31", ["2026-01-31"], []),
        ("Path must be absolute, e.g. '/home/me/q1.xlsx' or 'C:\\q1.xlsx'", [], []),
        ("there is no '/world/a.txt', only '/world/b.txt'.", ["/world/a.txt", "/world/b.txt"], []),
        ("ENOTDIR: not a directory, scandir 'a.txt'", ["a.txt"], []),
        ("EINVAL: invalid argument, rename '/a' -> '/b'", [], []),
        ("it failed", [], []),
    ],
)
def test_an_error_offers_values_but_no_places_of_other_machines(
    message: str, values: list[str], endings: list[str]
) -> None:
    assert offers(message, {"name": "x"}) == (values, endings)


def test_an_error_offers_the_items_of_a_list_in_its_json() -> None:
    error = '{"ok": false, "code": "bad", "message": "no column \'x\'", "seen": {"columns": ["TODO", "IN WORK"]}}'
    assert offers(message_of(error), {"names": ["x"]}) == (["TODO", "IN WORK"], [])


def test_what_programs_print_around_an_error_is_no_part_of_it() -> None:
    usage = "usage: crm search [-h] [--json] query\ncrm search: error: argument --company: not allowed with --person"
    assert message_of(usage) == "argument --company: not allowed with --person"
    code = '  File "/app/crm.py", line 7, in find\n    return names[name]\n           ~~~~~^^^^^^\n'
    assert message_of(f"find failed. Traceback (most recent call last):\n{code}KeyError: 'Ada'") == (
        "find failed. KeyError: 'Ada'"
    )


def test_offers_are_bounded() -> None:
    many = "one of: " + ", ".join(f"value{at}" for at in range(5000))
    assert len(offers(many, {})[0]) == 40


def test_an_error_names_parameters() -> None:
    names = ["path", "since_sha", "since_time", "id"]
    message = "Exactly one of 'since_sha' or 'since_time' must be provided, for each id"
    assert parameters_in(message, names) == ["since_sha", "since_time"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Error executing tool lend: 'Dune' is on loan already.", "'Dune' is on loan already"),
        ('{"detail": "Dune is on loan"}', "Dune is on loan"),
        ("first line\nsecond line", ""),
        ("long " * 40, ""),
    ],
)
def test_the_reason_of_an_error_is_short(text: str, reason: str) -> None:
    assert reason_of(text) == reason


def test_numbers_of_an_error_are_those_that_the_call_had_not() -> None:
    assert numbers_in("Data dimensions (1x2) don't match rows (2) and cols (60)", [2, 60]) == [1]
    assert numbers_in("version 1.5 is too old", []) == []


@pytest.mark.parametrize(
    "message",
    [
        "Error executing tool create_index: name 'ET' is not defined",
        "name 'tabel' is not defined. Did you mean: 'table'?",
        "AttributeError: 'NoneType' object has no attribute 'rows'",
        "type object 'Path' has no attribute 'walk'",
        "module 'pandas' has no attribute 'append'",
        "No module named 'openpyxl'",
        "cannot import name 'escape' from 'jinja2'",
        "cannot access local variable 'row' where it is not associated with a value",
        "find() missing 1 required positional argument: 'table'",
        "find() got an unexpected keyword argument 'limit'",
        "unsupported operand type(s) for +: 'int' and 'str'",
        "'<' not supported between instances of 'int' and 'str'",
        "KeyError: 'city'",
    ],
)
def test_names_in_the_code_of_a_server_are_no_offers(message: str) -> None:
    assert offers(f"{message}; one of: 'Orders'", {})[0] == ["Orders"]
