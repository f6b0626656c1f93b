"""The calls that a model made in a run, also those that reached no server, what schemas say of them, and hints."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from art_langgraph.trajectory import Scenario, Trajectory
from art_mcp.scenarios.plan import MCPScenario
from trainer_server.wire.tool_arguments import arguments_object

_MOST = 4
"""Sentences of a hint."""
_LENGTH = 200
"""Characters of an error in a hint."""


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A tool call in an answer of the model.

    Args:
        tool: The name that the model gave.
        arguments: The arguments. None: they are no JSON object.
        server: The MCP server that got the call. None: none did, or the run's record does not say.
        result: What the server answered. Empty: nothing, or not known.
        is_error: Whether that was an error.
    """

    tool: str
    arguments: dict[str, Any] | None
    server: str | None = None
    result: str = ""
    is_error: bool = False

    def __str__(self) -> str:
        arguments = (
            "…" if self.arguments is None else ", ".join(f"{k}={json.dumps(v)}" for k, v in self.arguments.items())
        )
        return f"{self.tool}({arguments})"


@dataclass(frozen=True, slots=True)
class Schema:
    """What a tool takes.

    Args:
        tool: Its name.
        required: Names of the arguments that it needs.
        optional: Names of the others.
        values: The values that an argument may have, by its name, for those that list them.
        open: Whether it takes arguments of other names too.
    """

    tool: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    open: bool = False

    @classmethod
    def of(cls, tool: BaseTool) -> Schema:
        """The schema of a LangChain tool."""
        parameters = convert_to_openai_tool(tool)["function"].get("parameters") or {}
        properties = parameters.get("properties") or {}
        required = tuple(name for name in parameters.get("required") or () if name in properties)
        return cls(
            tool.name,
            required,
            tuple(name for name in properties if name not in required),
            {name: entry["enum"] for name, entry in properties.items() if isinstance(entry, dict) and "enum" in entry},
            open=not properties and bool(parameters.get("additionalProperties")),
        )

    @property
    def form(self) -> str:
        """How it is called: `git_show(repo_path, revision; optional: max_count)`."""
        names = ", ".join(self.required)
        optional = f"optional: {', '.join(self.optional)}" if self.optional else ""
        return f"{self.tool}({'; '.join(filter(None, (names, optional)))})"

    def problems(self, arguments: Mapping[str, Any] | None) -> list[str]:
        """What is wrong with the names of arguments, and with values of which a list is known, in sentences.

        Args:
            arguments: The arguments of a call. None: they are no JSON object.
        """
        if arguments is None:
            return [f"the arguments of {self.tool} are no JSON object"]
        problems = [f"{self.tool} needs the argument {name}" for name in self.required if name not in arguments]
        names = {*self.required, *self.optional}
        problems += [
            f"{self.tool} has no argument {name}; it is called as {self.form}"
            for name in arguments
            if name not in names and not self.open
        ]
        for name, alternatives in self.values.items():
            if name in arguments and arguments[name] not in (*alternatives, None):
                text = ", ".join(map(str, alternatives))
                problems.append(f"{name} of {self.tool} is one of {text}, not {arguments[name]}")
        return problems


def schemas_of(tools: Iterable[BaseTool]) -> dict[str, Schema]:
    """The schemas of tools, by name."""
    return {tool.name: Schema.of(tool) for tool in tools}


def made_calls(run: Trajectory) -> list[MadeCall]:
    """The calls that the model made in a run, in order. Repeated attempts of a node do not count."""
    by_id = {call.tool_call_id: call for call in run.tool_calls if call.tool_call_id is not None}
    calls = []
    for completion in run.completions:
        if completion.superseded is not None:
            continue
        for call in (completion.message or {}).get("tool_calls") or ():
            function = call.get("function") or {}
            record = by_id.get(call.get("id"))
            calls.append(
                MadeCall(
                    str(function.get("name")),
                    arguments_object(function.get("arguments")),
                    record.server if record else None,
                    (record.result or "") if record else "",
                    bool(record and record.is_error),
                )
            )
    return calls


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
        counts: Counter[str] = Counter()
        for run in failed_runs:
            mistakes = []
            for call in made_calls(run):
                if (schema := schemas.get(call.tool)) is None:
                    mistakes.append(f"There is no tool {call.tool}. The tools are: {names}")
                    continue
                problems = schema.problems(call.arguments)
                mistakes += problems or ([f"{call.tool} answered: {_short(call.result)}"] if call.is_error else [])
            counts.update(dict.fromkeys(mistakes, 1))
        lines = [f"- {mistake}." for mistake, _ in counts.most_common(_MOST)]
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
