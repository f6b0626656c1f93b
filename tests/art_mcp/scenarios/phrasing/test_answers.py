"""Right answers in words."""

from __future__ import annotations

from art_mcp.scenarios.phrasing.answers import SUCCESS, answer, both, refuses
from art_mcp.scenarios.phrasing.questions import Question


def test_answers_repeat_what_was_asked_beside_its_value() -> None:
    assert answer(Question("leaf", "the last author", "Ada")) == "The last author is Ada."
    assert answer(Question("leaf", "the open issues", "4")) == "The open issues are 4."
    assert answer(Question("leaf", "the price of chairs", "4")) == "The price of chairs is 4."
    assert answer(Question("value", "", "Ada")) == "It is Ada."
    assert answer(Question("value", "", "Presentation has 3 slides")) == "Presentation has 3 slides."
    assert answer(Question("contains", "", "yes", items="entries", item="a")) == "Yes, a is among them."


def test_what_is_counted_agrees_with_its_number() -> None:
    assert answer(Question("count", "", "3", items="entries")) == "There are 3 entries."
    assert answer(Question("count", "", "1", items="entries")) == "There is 1 entry."
    some = Question("count", "", "1", items='rows with the kind "boxes"')
    assert answer(some) == 'There is 1 row with the kind "boxes".'


def test_two_answers_are_two_sentences() -> None:
    said = both(answer(Question("leaf", "the author", "Ada")), SUCCESS)
    assert said == "The author is Ada. It is done."
    assert not refuses(said)


def test_a_value_that_ends_a_sentence_gets_no_second_full_stop() -> None:
    assert answer(Question("leaf", "last line", "We meet at 9:00.")) == "The last line is We meet at 9:00."
    assert answer(Question("value", "", "Is it?")) == "It is Is it?"
    assert answer(Question("value", "", "and so on...")) == "It is and so on..."
    assert answer(Question("leaf", "last line", "a")) == "The last line is a."
