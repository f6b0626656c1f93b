"""The corpus of deep_research: what a search finds, and what is held out."""

from __future__ import annotations

import random

from art_examples.deep_research.corpus import (
    ENDINGS,
    HELD_OUT_ENDINGS,
    HELD_OUT_WORDINGS,
    KINDS,
    WORDINGS,
    documents,
    draw,
    facts,
    listed,
    search,
)


def test_a_search_for_a_fact_finds_the_document_that_has_it() -> None:
    for island, known in facts().items():
        for kind, value in known.items():
            found = search(f"{kind} of {island}")
            assert found.title.endswith(island)
            assert value in found.text
    assert len(documents()) == 2 * len(facts())
    assert set(KINDS) == set(next(iter(facts().values())))


def test_names_are_listed_as_english_does() -> None:
    assert [listed(names) for names in (["A"], ["A", "B"], ["A", "B", "C"])] == ["A", "A and B", "A, B and C"]


def test_held_out_questions_have_islands_and_wordings_of_their_own() -> None:
    assert not set(ENDINGS) & set(HELD_OUT_ENDINGS)
    assert not set(WORDINGS) & set(HELD_OUT_WORDINGS)
    asked = [[draw(random.Random(seed), held_out=which) for seed in range(100)] for which in (True, False)]
    held_out, trained = ({island for question in found for island in question.wanted} for found in asked)
    assert not held_out & trained
    assert len(held_out) > 20
    assert {len(question.wanted) for question in asked[0]} == {1, 2, 3}
