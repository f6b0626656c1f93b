"""What is asked about a result: a short value, and nothing that could be misunderstood."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from art_mcp.scenarios.phrasing.questions import SHORT, WEIGHTS, Question, questions
from art_mcp.scenarios.phrasing.wish import Wish, phrase_question


def found(first: Any, second: Any = None, noun: str = "result", many: bool = False, known: Any = ()) -> list[Question]:
    second = first if second is None else second
    return questions(first, second, noun=noun, many=many, argument_values=known, rng=random.Random(0))


def heads(listed: list[Question]) -> dict[str, str]:
    return {question.head or question.kind: question.value for question in listed}


def test_a_leaf_is_asked_by_its_key_and_only_where_the_key_is_unambiguous() -> None:
    whole = {"price": 20, "seller": {"name": "Ada", "town": "Oslo"}, "buyer": {"name": "Bob"}, "ok": True}
    assert heads(found(whole)) == {
        "the price": "20",
        "the name of the seller": "Ada",
        "the name of the buyer": "Bob",
        "the town": "Oslo",
    }


def test_a_moment_is_asked_for_by_what_happened_then() -> None:
    asked = heads(found({"shown": "09:41:07", "created": "2026-03-04", "closed": "Porto", "day": "Monday"}))
    assert asked == {
        "the time it was shown": "09:41:07", "the date it was created": "2026-03-04", "the day": "Monday"
    }  # fmt: skip


def test_a_table_of_figures_is_asked_by_figure_and_column() -> None:
    asked = heads(
        found({figure: {"seats": at, "delay_minutes": at + 0.5} for at, figure in enumerate(("mean", "median"), 3)})
    )
    assert set(asked) == {
        f"the {figure} of the {what}" for figure in ("mean", "median") for what in ("seats", "delay in minutes")
    }


def test_a_number_of_things_is_asked_for_as_one() -> None:
    rows = [{"name": name, "pages": at, "since": 2010 + at} for at, name in enumerate(("lamp", "chair", "vase"), 20)]
    every = found({"items": rows, "total": 21}, noun="items", many=True)
    asked = heads(every)
    assert asked["the number of pages of the first item"] == "20"
    assert asked["the number of pages of the item vase"] == "22"
    assert ("count", "items", "21") in {(question.kind, question.items, question.value) for question in every}


def test_what_has_a_name_is_asked_for_instead_of_lines_and_flags() -> None:
    text = "On branch main\nThree files\nOwner: Ada"
    assert heads(found(text, noun="status")) == {"the owner": "Ada"}
    assert "the first line" in heads(found(text, noun="note"))
    flags = [{"name": name, "hidden_flag": at % 2, "rank": at} for at, name in enumerate(("lamp", "chair", "vase"))]
    assert not any("flag" in head for head in heads(found(flags)))


def test_entries_are_asked_by_their_names_by_their_place_and_counted() -> None:
    listed = [{"name": "lamp", "price": 20}, {"name": "chair", "price": 45}]
    asked = heads(found({"items": listed}))
    assert asked["count"] == "2"
    assert asked["the price of the item lamp"] == "20"
    assert asked["the price of the last item"] == "45"


def test_entries_without_a_noun_are_called_by_their_first_key() -> None:
    asked = heads(found([{"column": "id", "type": "INT"}, {"column": "town", "type": "TEXT"}]))
    assert asked["the last column"] == "town"
    assert asked["the type of the first entry"] == "INT"
    assert "the column of the last entry" not in asked


def test_lines_of_a_text_are_asked_by_their_keys() -> None:
    log = "History:\nCommit: abc\nAuthor: Ada\n\nCommit: def\nAuthor: Bob\nTotal: 2 commits"
    asked = heads(found(log, noun="log"))
    assert asked["the first commit"] == "abc"
    assert asked["the last author"] == "Bob"
    assert asked["the total"] == "2 commits"
    assert "the commit" not in asked


def test_entries_of_a_text_are_asked_by_their_names() -> None:
    text = "\n\n".join(
        f"Commit: {at}4c5d6e\nAuthor: {author}\nMessage: {message}"
        for at, (author, message) in enumerate((("Ada", "Fix the login"), ("Bob", "Add a test"), ("Ada", "Tidy up")))
    )
    asked = heads(found(text))
    assert asked['the author of the commit with the message "Add a test"'] == "Bob"
    assert not any(head.startswith("the commit of") for head in asked)
    ragged = heads(found(text + "\nAuthor: Eve"))
    assert not any("with the message" in head for head in ragged)


def test_values_that_lines_give_to_names_are_asked_by_the_names() -> None:
    asked = heads(found("+port = 80\n+host = 'a.example'\n-mode = 1\n twice = 1\n twice = 2"))
    assert asked["the value of port"] == "80"
    assert asked["the value of host"] == "a.example"
    assert "the value of mode" not in asked
    assert "the value of twice" not in asked


def test_what_has_a_name_is_asked_more_often_than_what_has_a_place() -> None:
    rows = [{"name": name, "price": price} for price, name in enumerate(("lamp", "chair", "vase"), 20)]
    weights: Counter[str] = Counter()
    for question in found(rows):
        weights[question.kind] += WEIGHTS[question.kind]
    assert weights["leaf"] > 2 * (weights["first"] + weights["last"])


def test_a_person_is_asked_for_without_the_address() -> None:
    asked = heads(found("Commit: abc\nAuthor: Ada Lovelace <ada@example.org>\nMail: <bob@example.org>"))
    assert asked["the author"] == "Ada Lovelace"
    assert asked["the mail"] == "<bob@example.org>"


def test_lists_in_texts_are_counted_and_looked_through() -> None:
    asked = found("  docs\n  login\n* main", noun="branches", many=True)
    assert heads(asked) == {"count": "3", "the first branch": "docs", "the last branch": "main", "contains": "yes"}
    tagged = heads(found("[FILE] a.txt\n[DIR] letters\n[FILE] b.txt", noun="directory"))
    assert tagged["the first file"] == "a.txt"
    assert tagged["the last directory"] == "letters"


@pytest.mark.parametrize(
    ("text", "known", "value"),
    [
        ("The sum of 3 and 4 is 7.", [3, 4], "7"),
        ("Echo: hello", ["hello"], "Echo: hello"),
        ("deep blue", [], "deep blue"),
        ("note-1", ["x"], "note-1"),
    ],
)
def test_a_short_text_is_asked_for_as_it_is(text: str, known: list[Any], value: str) -> None:
    assert [question.value for question in found(text, known=known)] == [value]


def test_long_texts_are_never_to_be_repeated() -> None:
    prose = "\n".join(f"This line number {at} of a long report says many things about nothing." for at in range(20))
    assert all(len(question.value) <= SHORT for question in found({"text": prose, "lines": prose.splitlines()}))
    assert found("x" * 100) == []


def test_what_changes_with_time_is_read_off_in_the_run() -> None:
    asked = found(
        {"now": "2026-11-21T14:03:09", "load": 0.25, "city": "Oslo"}, {"now": "x", "load": 0.5, "city": "Oslo"}
    )
    assert {question.head: (question.facts, question.path) for question in asked} == {
        "the now": ([], ("now",)),
        "the load": ([], ("load",)),
        "the city": (["Oslo"], None),
    }


def test_what_the_task_says_is_not_asked() -> None:
    assert heads(found({"city": "Oslo", "people": 700}, known=["Oslo"])) == {"the people": "700"}
    milliseconds = {"card id": 1796003056085, "people": 700}
    assert heads(found(milliseconds, known=[1796003056085])) == {"the people": "700"}


CALL = Wish("show me the log of /r", "showing me the log of /r", "the log of /r", "log", False, "of /r")


@pytest.mark.parametrize(
    ("question", "whole", "ask", "wh"),
    [
        (Question("leaf", "the author", "Ada"), True, "what is the author in the log of /r?",
         "the author in the log of /r"),
        (Question("leaf", "the author", "Ada"), False, "what is the author?", "what the author is"),
        (Question("leaf", "the log", "x"), True, "what is the log of /r?", "what the log of /r is"),
        (Question("count", "", "3", items="entries"), True, "how many entries are there in the log of /r?",
         "how many entries there are in the log of /r"),
        (Question("contains", "", "yes", items="entries", item="a"), False, "is a among the entries?",
         "whether a is among the entries"),
        (Question("leaf", "the conditions", "rain"), False, "what are the conditions?", "what the conditions are"),
    ],
)  # fmt: skip
def test_questions_in_words(question: Question, whole: bool, ask: str, wh: str) -> None:
    ways = [phrase_question(question, CALL, whole, random.Random(seed)) for seed in range(20)]
    assert {asked.question for asked in ways} == {ask}
    assert {asked.wh for asked in ways} == {wh, *(asked.thing for asked in ways if question.head)}
