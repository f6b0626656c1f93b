"""What a tool says whenever it does not find what it is asked for is told from what it has to say."""

from __future__ import annotations

from art_mcp.scenarios.drafting.stock_answers import StockAnswers

ENTRIES = {
    "hoare78": "Titel: Kommunizierende Prozesse\nSeiten: 12\nBand: 21",
    "knuth84": "Titel: Literarisches Programmieren\nSeiten: 97",
    "liskov87": "Titel: Abstraktion und Vererbung\nSeiten: 17",
}


def test_the_same_words_about_different_values_are_a_stock_answer() -> None:
    answers = StockAnswers()
    for key, entry in ENTRIES.items():
        answers.learn("get_entry", {"key": key}, entry)
    first, second = ({"key": key} for key in ("turing36", "backus78"))
    assert not answers.has("get_entry", first, "Kein Eintrag turing36.")
    answers.learn("get_entry", first, "Kein Eintrag turing36.")
    assert answers.has("get_entry", first, "Kein Eintrag turing36.") is False, "one call alone shows nothing"
    assert answers.has("get_entry", second, "Kein Eintrag backus78.")
    assert not answers.has("get_entry", {"key": "hoare78"}, ENTRIES["hoare78"])
    assert not answers.has("count_entries", second, "Kein Eintrag backus78.")


def test_short_answers_that_come_again_are_none_where_a_tool_has_no_longer_ones() -> None:
    answers = StockAnswers()
    for number in range(2, 12):
        is_prime = number in (2, 3, 5, 7, 11)
        answers.learn("is_prime", {"n": number}, f"{number} is {'' if is_prime else 'not '}prime")
    assert not answers.has("is_prime", {"n": 13}, "13 is prime")
