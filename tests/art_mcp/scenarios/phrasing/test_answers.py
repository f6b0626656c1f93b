"""Right answers in words."""

from __future__ import annotations

from art_mcp.scenarios.phrasing.answers import DONE, answer, both
from art_mcp.scenarios.phrasing.questions import Question
from art_mcp.scenarios.phrasing.talk import refuses


def test_answers_have_the_value() -> None:
    assert answer(Question("leaf", "the author", "Ada")) == "It is Ada."
    assert "3" in answer(Question("count", "", "3", items="entries"))
    assert answer(Question("contains", "", "yes", items="entries", item="a")).startswith("Yes")


def test_two_answers_say_which_request_they_are_for() -> None:
    said = both(answer(Question("leaf", "the author", "Ada")), DONE)
    assert said == "First, it is Ada. Second, it is done."
    assert not refuses(said)
