"""Ready-made hint functions: what a failed run was told and did not use, or what the scenario knows."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable
from typing import Any

from art_langgraph.loop.hints.rescue import HintFunction
from art_langgraph.trajectory import Scenario, Trajectory

_MOST = 5
"""Lines of a hint that are made of runs."""
_LENGTH = 600
"""Characters of a line."""


def hint_errors(scenario: Scenario, failed_runs: list[Trajectory]) -> str | None:
    """What the tools said when they refused a call, and what the graph raised: errors that name their remedy.

    Args:
        scenario: The task; it is not read.
        failed_runs: Its runs, of which none succeeded.

    Returns:
        The different errors, the most frequent first, five at most; None where there are none.
    """
    said = [
        f"{call.tool}: {call.result}" for run in failed_runs for call in run.tool_calls if call.is_error and call.result
    ]
    said += [run.error for run in failed_runs if run.error is not None]
    return _lines("Earlier attempts failed with these errors. Do not repeat them.", said)


def hint_judge(scenario: Scenario, failed_runs: list[Trajectory]) -> str | None:
    """What a judge said of the runs (`Trajectory.reward_reason`).

    Args:
        scenario: The task; it is not read.
        failed_runs: Its runs, of which none succeeded.

    Returns:
        The different reasons, the most frequent first, five at most; None where no judge gave one.
    """
    reasons = [run.reward_reason for run in failed_runs if run.reward_reason]
    return _lines("Earlier attempts were judged so. Do better.", reasons)


def hint_tools(tools: Iterable[Any]) -> HintFunction:
    """A hint that lists the names of all tools, for policies that call tools which do not exist.

    Args:
        tools: LangChain tools, or their names.
    """
    names = [tool if isinstance(tool, str) else str(tool.name) for tool in tools]

    def hint(scenario: Scenario, failed_runs: list[Trajectory]) -> str | None:
        return f"These tools exist, and no others: {', '.join(names)}." if names else None

    return hint


def hint_reference(key: str = "answer", words: str = "A correct solution: {}") -> HintFunction:
    """A hint with the reference answer of the scenario.

    Args:
        key: Where the scenario's metadata has it. A scenario without it gets no hint.
        words: The hint, with `{}` where the answer belongs.
    """

    def hint(scenario: Scenario, failed_runs: list[Trajectory]) -> str | None:
        value = scenario.metadata.get(key)
        return None if value is None else words.replace("{}", str(value))

    return hint


def first_hint(*functions: HintFunction) -> HintFunction:
    """The hint of the first function that has one.

    Args:
        functions: In the order in which they are asked.
    """

    async def hint(scenario: Scenario, failed_runs: list[Trajectory]) -> str | None:
        for function in functions:
            given = function(scenario, failed_runs)
            if text := (await given if inspect.isawaitable(given) else given):
                return text
        return None

    return hint


def _lines(head: str, texts: Iterable[str]) -> str | None:
    """A list of different texts, the most frequent first."""
    counts = Counter(" ".join(text.split())[:_LENGTH] for text in texts)
    lines = [line for line, _ in counts.most_common(_MOST)]
    return "\n".join([head, *(f"- {line}" for line in lines)]) if lines else None
