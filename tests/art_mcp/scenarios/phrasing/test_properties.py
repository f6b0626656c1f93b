"""What no request may have, whatever the tools and their results are called."""

from __future__ import annotations

import random
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from art_mcp.scenarios.catalog import CatalogTool
from art_mcp.scenarios.phrasing.answers import answer
from art_mcp.scenarios.phrasing.arguments import spell_value
from art_mcp.scenarios.phrasing.english import article, is_participle, is_plural
from art_mcp.scenarios.phrasing.language import VERBS
from art_mcp.scenarios.phrasing.phraser import Phraser
from art_mcp.scenarios.phrasing.questions import questions
from art_mcp.scenarios.phrasing.sense import senses
from art_mcp.scenarios.phrasing.wish import wish

VERB_NAMES = sorted(name for name in VERBS if not is_participle(name) and name not in ("is", "not"))
NOUNS = ["kiln", "glazes", "urgent_orders", "oven", "shelf_map", "workers", "invoice", "hour", "unit_prices", ""]
TAILS = ["", "", "", "_by_code", "_with_sizes", "_in_yard", "_for_week"]
PARAMETERS = [
    "kiln_id", "invoice_number", "name", "new_name", "worker_names", "q", "glob_pattern", "exclude_glazes", "max_count",
    "limit", "min_age", "after_day", "sort_by", "is_urgent", "include_notes", "from_yard", "to_yard", "oven_type", "n",
    "assigned_to", "status", "yard_path", "comment", "start_day", "x", "depth", "not_contains", "shelf", "weight_kg",
    "fat_percentage", "max_delay_minutes", "dry_run", "network", "urgent_only", "qty", "due", "reason",
]  # fmt: skip
KEYS = [
    "price", "shown", "fired_at", "is_open", "last_modified", "/w/a.md", "a.b", "x", "7", "pk", "glaze_code", "workers",
    "oven", "done", "doing", "total_count", "due", "contact_name", "name", "note", "seats", "delay_minutes", "message",
]  # fmt: skip
MEASURES = {"weight_kg", "fat_percentage", "max_delay_minutes", "qty", "max_count", "limit", "min_age", "depth"}
# Values that are no words, so that a word that is there twice is not theirs.
TEXTS = st.sampled_from(["vq7", "Zorblat", "wx-3", "Ulm Kre", "/w/k/zeta.csv", "qqv zzt", "jkp:9", "rrl.txt", "w_v_9"])
NUMBERS = st.integers(20, 99)
LEAVES = st.one_of(TEXTS, NUMBERS, st.booleans())
ENTRIES = st.lists(st.dictionaries(st.sampled_from(KEYS), LEAVES, min_size=1, max_size=4), max_size=4)
OBJECTS = st.dictionaries(
    st.sampled_from(KEYS),
    st.one_of(
        LEAVES, st.lists(TEXTS, max_size=4, unique=True), ENTRIES, st.dictionaries(st.sampled_from(KEYS), LEAVES)
    ),
    max_size=5,
)
LINES = st.lists(st.tuples(st.sampled_from(KEYS), LEAVES).map(lambda pair: f"{pair[0]}: {pair[1]}"), max_size=5)
RESULTS = st.one_of(OBJECTS, st.lists(TEXTS, max_size=5), ENTRIES, LINES.map("\n".join), LEAVES)
NAMES = st.tuples(st.sampled_from(VERB_NAMES), st.sampled_from(NOUNS), st.sampled_from(TAILS)).map(
    lambda parts: f"{parts[0]}_{parts[1]}{parts[2]}".strip("_")
)
VALUES = st.one_of(LEAVES, st.lists(TEXTS, min_size=1, max_size=3, unique=True))
ARGUMENTS = st.dictionaries(st.sampled_from(PARAMETERS), VALUES, max_size=4).map(
    lambda arguments: {
        name: 42 if name in MEASURES and type(value) is not int else value for name, value in arguments.items()
    }
)

TWICE = re.compile(r"\b([a-z]+) \1\b", re.IGNORECASE)
OF_THE_OF = re.compile(
    r"\b(?<!fill )(?:of|in|the|a|an|with|to|from|for) (?:of|in|by|with)\b|  | [,.?]|\bthe (?:a|an|the|that)\b"
)
ARTICLE = re.compile(r"\b(an?) ([a-z]\w+)")
AGREEMENT = re.compile(r"\bwhat (is|are) (?:the|its) (?!result)([a-z]\w*(?: [a-z]\w*)*)", re.IGNORECASE)
UNIT_FIRST = re.compile(r"\b(?:kg|percentage|minutes) (?:of )?§")
READ_OUT = re.compile(r": (?:yes|no)\b|\(")
HEAD = re.compile(r"\bthe (?:first |last )?(\w+)(?= (?:of|in|is|are)\b|[.?,;]|$)")


def without_values(text: str, values: list[str]) -> str:
    """The text with a mark for each value. The longest go first, as one may be a part of another."""
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, "§")
    return text


@settings(max_examples=300, deadline=None)
@given(NAMES, ARGUMENTS, RESULTS, st.integers(0, 99))
def test_no_request_has_what_no_person_would_write(
    name: str, arguments: dict[str, Any], result: Any, seed: int
) -> None:
    tool, rng = CatalogTool(name=name), random.Random(seed)
    sense = senses([tool, CatalogTool(name="list_ovens"), CatalogTool(name="create_kiln")])[name]
    values = list(arguments.values())
    asked = questions(result, result, noun=sense.noun or "result", many=sense.many, argument_values=values, rng=rng)
    stated = [part for value in values for part in spell_value(value)]
    for question in [*asked[:4], None]:
        request = Phraser(rng, seed).request(wish(tool, sense, arguments, rng), question, held=seed % 5 == 0).text
        assert all(part in request for part in stated), request
        texts = [request] if question is None else [request, answer(question)]
        told = [*spell_value(result), *stated, *([question.value] if question else [])]
        for text in texts:
            bare = without_values(text, told)
            assert not TWICE.search(bare), text
            assert not OF_THE_OF.search(bare), text
            assert "_" not in bare, text
            assert all(article(noun) == f"{a} {noun}" for a, noun in ARTICLE.findall(bare)), text
            assert not any(is_participle(head) for head in HEAD.findall(bare)), text
            assert not UNIT_FIRST.search(bare), text
            assert not READ_OUT.search(bare), text
            for verb, thing in AGREEMENT.findall(bare):
                assert is_plural(thing) is (verb.casefold() == "are"), text
