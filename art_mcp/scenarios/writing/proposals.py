"""Proposals of a language model - a task, and the calls that solve it - and their validation against the schemas.

The docstrings of the models below are part of the JSON schema that the language model gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field

from art_mcp.client.effects import words
from art_mcp.scenarios.catalog import CatalogTool
from art_mcp.scenarios.lines import mentions
from art_mcp.scenarios.phrasing.answers import refuses
from art_mcp.scenarios.phrasing.arguments import spell_value
from art_mcp.scenarios.phrasing.language import WORDS
from art_mcp.scenarios.plan import Reply, is_reference
from art_mcp.validation import violation

MAX_COPY = 3
"""Words of a text that a task must say as it is, at most."""


class ProposedCall(BaseModel):
    """One call of a solution."""

    tool: str
    arguments: dict[str, Any]


class AskedValue(BaseModel):
    """Where a value that the answer must have is: the number of the call, from 0, and the way through its JSON."""

    call: int = Field(ge=0)
    path: list[str | int] = Field(default_factory=list)


class Request(BaseModel):
    """What somebody asks, the calls that solve it, and the short values that it asks for."""

    task: str = Field(min_length=1)
    calls: list[ProposedCall] = Field(default_factory=list)
    asks: list[AskedValue] = Field(default_factory=list, max_length=2)


class Proposal(Request):
    """A task.

    `earlier` is a request of the same person that was done before, where the task refers to it. `reply` is "refusal"
    where the task cannot be done, and "talk" where it needs no tool; `answer` is then what to say, and `about` has
    names of what is missing, of which the answer mentions one.
    """

    difficulty: int = Field(ge=1, le=5)
    earlier: Request | None = None
    reply: Reply = "result"
    about: list[str] = Field(default_factory=list, max_length=4)
    answer: str = ""


class Proposals(BaseModel):
    """Several of them."""

    scenarios: list[Proposal] = Field(min_length=1)


def unfit(proposal: Proposal, tools: Sequence[CatalogTool], difficulty: tuple[int, int]) -> str | None:
    """Finds out why a proposal cannot be executed, as far as the schemas tell.

    Args:
        proposal: The proposal.
        tools: The tools that may be called.
        difficulty: Least and greatest difficulty, from 1 to 5.

    Returns:
        The reason. None: the proposal fits.
    """
    low, high = difficulty
    if not low <= proposal.difficulty <= high:
        return f"difficulty {proposal.difficulty} is not between {low} and {high}"
    earlier = proposal.earlier
    if earlier and (wrong := _unfit_request(earlier, tools) or unsaid(earlier, earlier.task) or _idle(earlier)):
        return f"earlier: {wrong}"
    text = f"{earlier.task} {proposal.task}" if earlier else proposal.task
    return _unfit_request(proposal, tools) or _unfit_reply(proposal, tools) or unsaid(proposal, text)


def unsaid(request: Request, text: str) -> str | None:
    """Which value the calls need and nobody has said. None: all are said.

    Values of a few words must be said letter by letter. Longer ones, such as queries, may be worked out.

    Args:
        request: The calls.
        text: The task, and what was asked before it.
    """
    for call in request.calls:
        for value in call.arguments.values():
            for part in () if is_reference(value) else spell_value(value):
                if len(part.split()) <= MAX_COPY and isinstance(value, str) and part not in text:
                    return f"the task does not say {part!r}, which the calls need"
    return None


def _unfit_request(request: Request, tools: Sequence[CatalogTool]) -> str | None:
    """Why the calls of a request cannot be executed. None: they can, as far as the schemas tell."""
    for at, call in enumerate(request.calls):
        tool = next((tool for tool in tools if tool.name == call.tool), None)
        if tool is None:
            return f"call {at}: there is no tool {call.tool!r} that may be called"
        if wrong := _arguments(call, tool, at):
            return f"call {at}, {call.tool}: {wrong}"
    if any(value.call >= len(request.calls) for value in request.asks):
        return "asks names a call that there is not"
    return None


def _idle(request: Request) -> str | None:
    return None if request.calls else "there are no calls"


def _unfit_reply(proposal: Proposal, tools: Sequence[CatalogTool]) -> str | None:
    """Why a task that cannot be done, or needs no tool, cannot be checked. None: it can."""
    if proposal.reply == "result":
        return _idle(proposal)
    if proposal.asks or proposal.earlier:
        return f"a task whose reply is a {proposal.reply} has neither asks nor earlier"
    if not proposal.answer.strip():
        return f"a task whose reply is a {proposal.reply} needs an answer"
    if proposal.reply == "talk":
        return "a task that needs no tool has no calls" if proposal.calls else None
    if not refuses(proposal.answer) or not any(mentions(proposal.answer, name) for name in proposal.about):
        return "the answer must say that it cannot be done, and mention one of `about`"
    tool_words = (
        {word for tool in tools for word in words(f"{tool.name} {tool.description}")}
        - WORDS.fillers
        - WORDS.prepositions
    )
    if not proposal.calls and any(tool_words & set(words(name)) for name in proposal.about):
        return "there may be a tool for it: without a call that fails, `about` has no words of tools"
    return None


def _arguments(call: ProposedCall, tool: CatalogTool, at: int) -> str | None:
    """The reason why the arguments of call number `at` (from 0) do not fit the tool's schema. None: they fit."""
    schema = tool.input_schema
    references = {name: value for name, value in call.arguments.items() if is_reference(value)}
    for value in references.values():
        if not (isinstance(value["$step"], int) and 0 <= value["$step"] < at and isinstance(value["path"], list)):
            return "$step must be the number of an earlier call, and path a list"
    unknown = sorted(set(call.arguments) - set(schema.get("properties", {})))
    if unknown and not schema.get("additionalProperties"):  # many servers ignore them silently
        return f"there is no argument {unknown[0]!r}"
    required = [name for name in schema.get("required", []) if name not in references]
    literals = {name: value for name, value in call.arguments.items() if name not in references}
    return violation(literals, {**schema, "required": required})
