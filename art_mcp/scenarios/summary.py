"""What a set of scenarios is like, in numbers: phrasings, lengths, tools, kinds, and words taken from descriptions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from art_mcp.scenarios.observe import leaves
from art_mcp.scenarios.phrasing.arguments import spell_value
from art_mcp.scenarios.plan import MCPScenario

GRAM = 5
"""Words in a row that count as taken from a description."""

MAX_TASKS = 5
"""Scenarios that a report shows as they are."""


def find_copied_words(tasks: Sequence[str], descriptions: Iterable[str]) -> tuple[float, str]:
    """The greatest share of tasks that have the same GRAM words in a row as the description of a tool.

    Args:
        tasks: Texts of tasks.
        descriptions: What the server says of its tools and parameters.

    Returns:
        The share, from 0 to 1, and the words. Empty: no task has any.
    """
    description_grams = {gram for text in descriptions for gram in _grams(text)}
    counts: Counter[str] = Counter()
    for task in tasks:
        counts.update(set(_grams(task)) & description_grams)
    if not counts:
        return 0.0, ""
    gram, most = max(counts.items(), key=lambda item: (item[1], item[0]))
    return most / len(tasks), gram


def skeleton(scenario: MCPScenario) -> str:
    """The text of a task without the values of its calls: the same for tasks that are phrased alike."""
    text = scenario.task
    values = {
        part for step in scenario.plan.reference for _, leaf in leaves(step.arguments) for part in spell_value(leaf)
    }
    for value in sorted(values, key=len, reverse=True):
        if len(value) > 1 or value.isdigit():
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "…", text)
    return text


def summary(scenarios: Sequence[MCPScenario]) -> Iterator[str]:
    """Lines of a report: phrasings, lengths, kinds, and examples, which nobody has chosen.

    Args:
        scenarios: The scenarios.
    """
    if not scenarios:
        return
    lengths = sorted(len(scenario.task.split()) for scenario in scenarios)
    low, middle, high = (lengths[min(len(lengths) - 1, int(part * len(lengths)))] for part in (0.05, 0.5, 0.95))
    phrasings = len({skeleton(scenario) for scenario in scenarios})
    forms = len({scenario.plan.phrasing for scenario in scenarios} - {""})
    yield f"{phrasings} distinct phrasings of {forms} forms; words: median {middle}, 5 to 95 %: {low} to {high}"
    kinds = Counter(scenario.plan.kind for scenario in scenarios)
    yield "by kind: " + ", ".join(f"{kind.replace('_', '-')}: {count}" for kind, count in kinds.most_common())
    step = max(1, len(scenarios) // MAX_TASKS)
    for scenario in scenarios[::step][:MAX_TASKS]:
        turns = (
            f"(the answer: {message['content']})" if message["role"] == "assistant" else message["content"]
            for message in scenario.messages
        )
        yield f"for example: {' '.join(turns)}"


def _grams(text: str) -> Iterator[str]:
    text_words = re.findall(r"[a-z0-9']+", text.casefold())
    for at in range(len(text_words) - GRAM + 1):
        yield " ".join(text_words[at : at + GRAM])
