"""Right answers to requests, and the requests that no tool can fulfil."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from art_mcp.canonical import canonical
from art_mcp.client.effects import words
from art_mcp.scenarios.lines import lines, mentions
from art_mcp.scenarios.observe import leaves, parse_result, pick_value
from art_mcp.scenarios.phrasing.english import article, is_plural, join_items, one_of
from art_mcp.scenarios.phrasing.language import SENTENCES, Errand
from art_mcp.scenarios.phrasing.questions import Question
from art_mcp.scenarios.plan import MCPScenario, Observation

_ANSWERS = SENTENCES.answers
SUCCESS = _ANSWERS.success
"""The right answer when something was done."""

_LONGEST = 80
"""Maximum number of characters of a value that an answer repeats."""

_REFUSAL = re.compile(
    r"\b(?:no|not|none|nothing|never|cannot|unable|impossible|fail(?:s|ed)?|errors?|missing|without|sorry|invalid|unknown)\b|n[’']t\b",
    re.IGNORECASE,
)


def refuses(text: str) -> bool:
    """Whether a text says that something cannot be done or is not there."""
    return bool(_REFUSAL.search(text))


def errands(server_text: str) -> list[Errand]:
    """The errands for which a server has no tool.

    Args:
        server_text: All that the server says of its tools.
    """
    server_words = set(words(server_text))
    return [errand for errand in SENTENCES.errands if not server_words & errand.needs]


def cannot(errand: Errand) -> str:
    """The right answer to an errand."""
    return _ANSWERS.cannot.format(do=errand.do.replace(" my ", " your ").replace(" me ", " you "))


def missing(noun: str, value: str) -> str:
    """The right answer where nothing has the name `value`, which would be that of a `noun`."""
    return _ANSWERS.missing.format(noun=noun, value=value)


def refusal(reason: str) -> str:
    """The right answer where a call must fail. reason: the error of the server."""
    return _trim_stop(_ANSWERS.refusal.format(reason=reason))


def able(nouns: Sequence[str], rng: random.Random) -> str:
    """The right answer to what can be done. It names some of the nouns that the tools are for."""
    sample = rng.sample(list(nouns), min(3, len(nouns)))
    return rng.choice(_ANSWERS.able).format(
        things=join_items([noun if noun.endswith("s") else article(noun) for noun in sample])
    )


def answer(question: Question) -> str:
    """The right answer to a question. It repeats what is asked."""
    if question.kind == "count":
        items, *rest = re.split(r"(?= (?:with|under) )", question.items, maxsplit=1)
        alone = question.value == "1"
        items_phrase = "".join([one_of(items) if alone else items, *rest])
        return _ANSWERS.count.format(verb="is" if alone else "are", value=question.value, items=items_phrase)
    if question.kind == "contains":
        return (_ANSWERS.yes if question.value == "yes" else _ANSWERS.no).format(item=question.item)
    if not question.head and len(question.value.split()) > 3 and question.value[0].isupper():
        return question.value.rstrip(".") + "."  # it is a sentence already
    if not question.head:
        return _trim_stop(_ANSWERS.value.format(value=question.value))
    head = question.head.removeprefix("the ")
    return _trim_stop(_ANSWERS.leaf.format(head=head, verb="are" if is_plural(head) else "is", value=question.value))


def _trim_stop(sentence: str) -> str:
    """A sentence without a second full stop, where its value ends with one, or with another mark."""
    return sentence[:-1] if re.search(r"[.,;:!?]\.$", sentence) else sentence


def both(first: str, second: str) -> str:
    """The right answer to two requests.

    Args:
        first: The answer to the first one.
        second: The answer to the second one.
    """
    return _ANSWERS.both.format(one=first, two=second)


def answer_of(scenario: MCPScenario) -> str:
    """A right answer to a scenario that was executed.

    It is that of the plan. If the plan has none, or people have changed the facts, it has a sentence for each fact, or
    one with a value of the last result if there are none.

    Args:
        scenario: The scenario. Its results have what the plan reads off them: `Plan.executed`.
    """
    plan = scenario.plan
    if plan.answer and all(mentions(plan.answer, fact) for fact in plan.facts):
        return plan.answer
    if plan.reply == "refusal":
        return f"I cannot do that{f': there is no {plan.about[0]}' if plan.about else ''}."
    if plan.reply == "talk":
        return f"I can help with {', '.join(plan.about)}." if plan.about else "You are welcome."
    sentences = [_value_sentence(fact, plan.observations) for fact in plan.facts]
    for reading in plan.readings:
        observation = plan.observations[reading.step]
        value = pick_value(observation.text, observation.structured, reading.path)
        sentences.append(_value_sentence(value if isinstance(value, str) else canonical(value), [observation]))
    if not sentences and plan.asks:
        last = plan.observations[-1]
        values = [leaf for _, leaf in leaves(parse_result(last.text, last.structured)) if not isinstance(leaf, bool)]
        texts = [value if isinstance(value, str) else canonical(value) for value in values]
        new = [text for text in texts if 1 < len(text) <= _LONGEST and not mentions(scenario.task, text)]
        sentences = [_value_sentence(text, [last]) for text in new[:1]]
    return " ".join(sentences) or SUCCESS


def _value_sentence(value: str, observations: Sequence[Observation]) -> str:
    """A sentence with a value, and with its key in the results if there is one."""
    for observation in observations:
        whole = parse_result(observation.text, observation.structured)
        if isinstance(whole, str):
            keys = [line.key for line in lines(whole) if line.value == value and not line.tagged]
        else:
            paths = [path for path, leaf in leaves(whole) if leaf == value or canonical(leaf) == value]
            keys = [str(key) for path in paths for key in path[-1:] if isinstance(key, str)]
        if keys and words(keys[0]):
            return answer(Question("leaf", " ".join(words(keys[0])), value))
    return answer(Question("value", "", value))
