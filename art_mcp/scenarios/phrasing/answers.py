"""Right answers to requests. Each kind has one short form: requests come in many, as people write them, and a policy
that has to learn many forms of answers too needs more demonstrations for the same success."""

from __future__ import annotations

from art_mcp.scenarios.phrasing.english import is_plural, one_of
from art_mcp.scenarios.phrasing.questions import Question

VALUE = "It is {value}."
"""The right answer to a question that has no name for what it asks."""

NAMED = "The {head} {verb} {value}."
"""The right answer to any other one: what is asked stands beside its value, as in most results."""

COUNT = "There {verb} {value} {items}."

YES = "Yes, {item} is among them."

NO = "No, {item} is not among them."

DONE = "It is done."
"""The right answer when something was done."""

BOTH = "{one} {two}"
"""The right answer to two requests in one message."""


def answer(question: Question) -> str:
    """The right answer to a question. It repeats what is asked."""
    if question.asked == "count":
        items, joint, rest = question.items.partition(" with ")
        alone = question.value == "1"
        counted = f"{one_of(items) if alone else items}{joint}{rest}"
        return COUNT.format(verb="is" if alone else "are", value=question.value, items=counted)
    if question.asked == "contains":
        return (YES if question.value == "yes" else NO).format(item=question.item)
    if not question.head:
        return VALUE.format(value=question.value)
    head = question.head.removeprefix("the ")
    many = " of " not in head and is_plural(head)
    return NAMED.format(head=head, verb="are" if many else "is", value=question.value)


def both(one: str, two: str) -> str:
    """The right answer to two requests.

    Args:
        one: The answer to the first one.
        two: The answer to the second one.
    """
    return BOTH.format(one=one, two=two)
