"""Hints for scenarios that no run solves: what the server's errors say, and what its schemas ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from art_langgraph.trajectory import Scenario, Trajectory
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.specialization.calls import Schema, made_calls

_MOST = 4
"""Sentences of a hint."""
_LENGTH = 200
"""Characters of an error in a hint."""


def schema_hints(schemas: Mapping[str, Schema]) -> Callable[[Scenario, list[Trajectory]], str | None]:
    """Makes a hint function for `train`.

    A hint says what was wrong with the calls of the runs, most frequent first: a tool that does not exist, with the
    names of those that do; a missing argument and one of another name, with the form of the call; what the server's
    errors say. If the calls show no such mistake, the hint names the tools that solve the task and how they are called,
    without the values. Of a task that needs no tool, or that cannot be done, the hint says that.

    Args:
        schemas: The schemas of the agent's tools, by name.
    """
    names = ", ".join(schemas)

    def hint(scenario: Scenario, failed_runs: list[Trajectory]) -> str | None:
        plan = MCPScenario.of_scenario(scenario).plan
        tools = [step.tool for step in plan.reference]
        said: Counter[str] = Counter()
        for run in failed_runs:
            mistakes = []
            for call in made_calls(run):
                if (schema := schemas.get(call.tool)) is None:
                    mistakes.append(f"There is no tool {call.tool}. The tools are: {names}")
                    continue
                problems = schema.problems(call.arguments)
                mistakes += problems or ([f"{call.tool} answered: {_short(call.result)}"] if call.is_error else [])
            said.update(dict.fromkeys(mistakes, 1))
        lines = [f"- {mistake}." for mistake, _ in said.most_common(_MOST)]
        forms = [schemas[tool].form for tool in dict.fromkeys(tools) if tool in schemas]
        if plan.reply == "talk":
            lines.append("- No tool is needed for this task: answer at once.")
        elif plan.reply == "refusal":
            lines.append("- This cannot be done: say so, and say what is missing.")
        elif forms and (not lines or not _mentioned(forms, lines)):
            lines.append(f"- The task is done by {', then '.join(forms)}.")
        return "\n".join(["Mind this:", *lines]) if lines else None

    return hint


def _mentioned(forms: list[str], lines: list[str]) -> bool:
    """Whether every form is in a line already."""
    return all(any(form in line for line in lines) for form in forms)


def _short(text: str) -> str:
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= _LENGTH else line[: _LENGTH - 1] + "…"
