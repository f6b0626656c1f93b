"""Forms: many, some of them held out, and none that loses what is asked."""

from __future__ import annotations

import random
import re

from art_mcp.scenarios.phrasing import answers as small_talk
from art_mcp.scenarios.phrasing.language import SENTENCES
from art_mcp.scenarios.phrasing.phraser import FAMILIES, Phraser, Text
from art_mcp.scenarios.phrasing.questions import Question
from art_mcp.scenarios.phrasing.wish import Wish

CALL = Wish("get the price of it-7", "getting the price of it-7", "the price of it-7", "price", False, "of it-7")
PRICE = Question("value", "", "20")


def texts(held: bool, question: Question | None = PRICE, seed: int = 0) -> tuple[set[str], set[str]]:
    phraser = Phraser(random.Random(1), seed)
    drawn = [phraser.request(CALL, question, held) for _ in range(3000)]
    return {text.text for text in drawn}, {text.form for text in drawn}


def test_there_are_hundreds_of_requests_for_a_call() -> None:
    said, forms = texts(held=False)
    assert len(said) > 600
    assert len(forms) > 30
    assert sum(len(listed) for listed in FAMILIES.values()) > 140


def test_no_form_is_longer_than_what_people_put_around_a_request() -> None:
    """A form that says more than a few words of its own is read as a form."""
    for family in ("do", "do and ask", "ask", "thing", "then", "both", "again"):
        for form in FAMILIES[family]:
            assert len(re.sub(r"\{\w+\}", "", form).split()) <= 8, form


def test_held_out_forms_never_occur_in_training() -> None:
    trained, held = texts(held=False), texts(held=True)
    assert not trained[1] & held[1]
    assert not trained[0] & held[0]
    assert texts(held=True, seed=1)[1] != held[1]


def test_a_request_says_the_value_and_asks() -> None:
    for question in (PRICE, None):
        for text in texts(False, question)[0] | texts(True, question)[0]:
            assert "it-7" in text
            assert "{" not in text
            assert "  " not in text
            assert text[0].isupper() or text[0].islower()


def test_no_full_stop_reads_as_a_part_of_a_path() -> None:
    path = Wish("read /w/b.xlsx", "reading /w/b.xlsx", "/w/b.xlsx", "file")
    phraser = Phraser(random.Random(0))
    for number in range(400):
        first = phraser.request(path, PRICE if number % 2 else None, held=False, dressed=False)
        for text in (first, phraser.pair(first, first, held=False), phraser.again("/w/b.xlsx", held=False)):
            assert not re.search(r"/w/b\.xlsx\.(\s|$)", text.text), text.text
            assert "/w/b.xlsx" in text.text
            assert all(part in text.text for part in text.parts)


def test_behind_a_list_of_notes_a_sentence_goes_on_after_a_comma() -> None:
    notes = Wish("find books, shelf F2", "finding books, shelf F2", loose=True)
    phraser = Phraser(random.Random(0))
    said = {phraser.request(notes, PRICE, held=False, dressed=False).text for _ in range(400)}
    assert any("ind books, shelf F2, and tell me" in text for text in said)
    assert not any(re.search(r"F2 \w", text) for text in said)


def test_what_comes_first_is_said_first() -> None:
    chained = Wish("get the price of the first item", "getting the price of the first item", first="list the items")
    phraser = Phraser(random.Random(0))
    for _ in range(200):
        text = phraser.request(chained, PRICE, held=False).text.casefold()
        assert text.index("list the items") < text.index("the price of the first item")


def test_refusals_are_told_from_answers() -> None:
    for errand in SENTENCES.errands:
        said = small_talk.cannot(errand)
        assert small_talk.refuses(said)
        assert any(name.casefold() in said.casefold() for name in errand.about), said
    assert small_talk.refuses(small_talk.missing("branch", "lantern"))
    assert small_talk.refuses("I couldn't find it.")
    assert not small_talk.refuses("The price is 20.")
    assert not small_talk.refuses("It is noted in the notebook.")


def test_only_errands_that_no_tool_does_are_asked() -> None:
    open_errands = {errand.do for errand in small_talk.errands("play music, send mail")}
    assert "play some jazz" not in open_errands
    assert "send an e-mail to Dana about this" not in open_errands
    assert "call a taxi" in open_errands


def test_who_wonders_wonders_what_something_is() -> None:
    long = Wish(CALL.do, CALL.doing, "the price of the long oak table in the hall", "price", False, "of it-7")
    phraser, said = Phraser(random.Random(3), 0), set()
    for held in (False, True):
        said |= {phraser.request(long, PRICE, held, dressed=False).text for _ in range(2000)}
    wondering = {text for text in said if text.startswith("I wonder")}
    assert wondering
    assert all(text.startswith("I wonder what ") for text in wondering), wondering


def test_the_second_of_two_requests_has_a_single_lead() -> None:
    phraser, first = Phraser(random.Random(3)), Text("Show the log.", "do 0")
    second = Text("Quick question: what is the price of it-7?", "ask 14")
    said = {phraser.pair(first, second, held=False).text for _ in range(200)}
    assert any("Also: What is the price of it-7?" in text for text in said)
    assert any(". Quick question: what" in text for text in said)
    assert not any(": Quick question" in text for text in said)
