"""Right answers to requests. Each kind has one short form: requests come in many, as people write them, and a policy
that has to learn many forms of answers too needs more demonstrations for the same success."""

from __future__ import annotations

from art_mcp.scenarios.phrasing.questions import Question

VALUE = "It is {value}."

COUNT = "There are {value} {items}."

YES = "Yes, {item} is among them."

NO = "No, {item} is not among them."

DONE = "It is done."
"""The right answer when something was done."""

BOTH = "First, {one} Second, {two}"
"""The right answer to two requests in one message. The two words say which request each part is about."""


def answer(question: Question) -> str:
    """The right answer to a question."""
    if question.asked == "count":
        return COUNT.format(value=question.value, items=question.items)
    if question.asked == "contains":
        return (YES if question.value == "yes" else NO).format(item=question.item)
    return VALUE.format(value=question.value)


def both(one: str, two: str) -> str:
    """The right answer to two requests.

    Args:
        one: The answer to the first one.
        two: The answer to the second one.
    """
    return BOTH.format(one=one[:1].lower() + one[1:], two=two[:1].lower() + two[1:])
