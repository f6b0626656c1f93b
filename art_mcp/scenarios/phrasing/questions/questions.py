"""What can be asked about a result, so that the answer is a short value: a leaf, a number of entries, the first one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from art_mcp.scenarios.phrasing.questions.entries import text_of
from art_mcp.scenarios.phrasing.questions.question import LONG, SHORT, Asked, Question
from art_mcp.scenarios.phrasing.questions.structured_content import StructuredFinder
from art_mcp.scenarios.phrasing.questions.text import TextFinder


def questions(
    first: Any, second: Any, *, noun: str, many: bool, argument_values: Sequence[Any], rng: random.Random
) -> list[Question]:
    """Everything that can be asked about a result.

    A value that the two executions gave differently, and a date, is asked for as it is in the run itself.

    Args:
        first: The result of the first execution, as `parse_result` returns it.
        second: The result of the second execution.
        noun: What the call gives, as a noun: "log", "tables".
        many: Whether the noun is a plural.
        argument_values: Values of the arguments. What the task says already is not asked for.
        rng: Chooses entries.
    """
    stated = {text_of(value).casefold() for value in argument_values}
    finder = TextFinder if isinstance(first, str) else StructuredFinder
    unique: dict[tuple[str, str, str], Question] = {}
    for question in finder(first, second, noun, many, stated, rng).find():
        timed = question.path is not None
        if len(question.value) <= LONG if timed else _fit(question.value, stated, question.kind):
            unique.setdefault((question.kind, question.head, question.item), question)
    return list(unique.values())


def _fit(value: str, stated_texts: set[str], kind: Asked) -> bool:
    """Whether a value can be a fact. A heading, as of a list that is empty, is none."""
    if kind in ("count", "contains"):
        return True
    bare = value.strip()
    if not 0 < len(bare) <= SHORT or "\n" in bare or bare.endswith(":"):
        return False
    return not any(bare.casefold() in text for text in stated_texts)
