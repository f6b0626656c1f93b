"""English words."""

from __future__ import annotations

import pytest

from art_mcp.scenarios.phrasing.english import article, capital, gerund, is_plural, join_items, one_of, plural


@pytest.mark.parametrize(
    ("one", "many"),
    [
        ("table", "tables"),
        ("text file", "text files"),
        ("entry", "entries"),
        ("branch", "branches"),
        ("person", "people"),
        ("class", "classes"),
        ("day", "days"),
    ],
)
def test_plurals_and_back(one: str, many: str) -> None:
    assert plural(one) == many
    assert plural(many) == many
    assert one_of(many) == one
    assert is_plural(many)
    assert not is_plural(one)


@pytest.mark.parametrize(
    ("verb", "made"),
    [
        ("create", "creating"),
        ("get", "getting"),
        ("check out", "checking out"),
        ("get rid of", "getting rid of"),
        ("see", "seeing"),
        ("tie", "tying"),
    ],
)
def test_gerunds(verb: str, made: str) -> None:
    assert gerund(verb) == made


@pytest.mark.parametrize(
    ("noun", "text"),
    [("table", "a table"), ("entity", "an entity"), ("user", "a user"), ("URL", "a URL"), ("hour", "an hour")],
)
def test_articles(noun: str, text: str) -> None:
    assert article(noun) == text


def test_lists_and_capitals() -> None:
    assert [join_items([]), join_items(["a"]), join_items(["a", "b", "c"])] == ["", "a", "a, b and c"]
    assert capital("show it") == "Show it"
    assert capital("/srv/a and b") == "/srv/a and b"
    assert capital("config.json is it") == "config.json is it"
