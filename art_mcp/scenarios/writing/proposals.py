"""Proposals of a language model - a task, and the calls that solve it - and their validation against the schemas.

The docstrings of the models below are part of the JSON schema that the language model gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jsonschema
from pydantic import BaseModel, Field
from referencing import Registry
from referencing.exceptions import Unresolvable

from art_mcp.scenarios.catalog import CatalogTool
from art_mcp.scenarios.phrasing.values import spelled
from art_mcp.scenarios.plan import is_reference

SAID = 3
"""Words of a text that a task must say as it is, at most."""


class ProposedCall(BaseModel):
    """One call of a solution."""

    tool: str
    arguments: dict[str, Any]


class AskedValue(BaseModel):
    """Where a value that the answer must have is: the number of the call, from 0, and the way through its JSON."""

    call: int = Field(ge=0)
    path: list[str | int] = Field(default_factory=list)


class Proposal(BaseModel):
    """A task, the calls that solve it, and the short values that it asks for."""

    task: str = Field(min_length=1)
    difficulty: int = Field(ge=1, le=5)
    calls: list[ProposedCall] = Field(min_length=1)
    asks: list[AskedValue] = Field(default_factory=list, max_length=2)


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
    for at, call in enumerate(proposal.calls):
        tool = next((tool for tool in tools if tool.name == call.tool), None)
        if tool is None:
            return f"call {at}: there is no tool {call.tool!r} that may be called"
        if wrong := _arguments(call, tool, at):
            return f"call {at}, {call.tool}: {wrong}"
    if any(asked.call >= len(proposal.calls) for asked in proposal.asks):
        return "asks names a call that there is not"
    return unsaid(proposal)


def unsaid(proposal: Proposal) -> str | None:
    """Which value the calls need and the task does not say. None: it says all.

    Values of a few words must be in the task letter by letter. Longer ones, such as queries, may be worked out.
    """
    for call in proposal.calls:
        for value in call.arguments.values():
            for part in () if is_reference(value) else spelled(value):
                if len(part.split()) <= SAID and isinstance(value, str) and part not in proposal.task:
                    return f"the task does not say {part!r}, which the calls need"
    return None


def _arguments(call: ProposedCall, tool: CatalogTool, at: int) -> str | None:
    """The reason why the arguments of call number `at` (from 0) do not fit the tool's schema. None: they fit."""
    schema = tool.input_schema
    taken = {name: value for name, value in call.arguments.items() if is_reference(value)}
    for value in taken.values():
        if not (isinstance(value["$step"], int) and 0 <= value["$step"] < at and isinstance(value["path"], list)):
            return "$step must be the number of an earlier call, and path a list"
    unknown = sorted(set(call.arguments) - set(schema.get("properties", {})))
    if unknown and not schema.get("additionalProperties"):  # many servers ignore them silently
        return f"there is no argument {unknown[0]!r}"
    required = [name for name in schema.get("required", []) if name not in taken]
    given = {name: value for name, value in call.arguments.items() if name not in taken}
    return _violation(given, {**schema, "required": required})


def _violation(value: Any, schema: dict[str, Any]) -> str | None:
    """How a value violates a schema. None: it does not, or the schema itself is invalid.

    References resolve inside the schema only: nothing is fetched, whatever URL a server writes into a schema.
    """
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        validator.check_schema(schema)
        validator(schema, registry=Registry()).validate(value)
    except jsonschema.ValidationError as error:
        return str(error.message)[:300]
    except (jsonschema.SchemaError, Unresolvable, RecursionError):
        pass  # the server's schema is invalid: the execution of the call decides
    return None
