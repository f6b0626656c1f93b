"""What a language model proposes - a task, and the calls that solve it - and whether the schemas let it through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jsonschema
from pydantic import BaseModel, Field
from referencing import Registry
from referencing.exceptions import Unresolvable

from art_mcp.scenarios.catalog import CatalogTool
from art_mcp.scenarios.plan import is_reference


class ProposedCall(BaseModel):
    """One call of a solution."""

    tool: str
    arguments: dict[str, Any]


class Proposal(BaseModel):
    """A task and the calls that solve it."""

    task: str = Field(min_length=1)
    difficulty: int = Field(ge=1, le=5)
    calls: list[ProposedCall] = Field(min_length=1)


class Proposals(BaseModel):
    """Several of them."""

    scenarios: list[Proposal] = Field(min_length=1)


def unfit(proposal: Proposal, tools: Sequence[CatalogTool], difficulty: tuple[int, int]) -> str | None:
    """Why a proposal cannot be executed, as far as the schemas tell; or None. tools: those that may be called."""
    low, high = difficulty
    if not low <= proposal.difficulty <= high:
        return f"difficulty {proposal.difficulty} is not between {low} and {high}"
    for at, call in enumerate(proposal.calls):
        tool = next((one for one in tools if one.name == call.tool), None)
        if tool is None:
            return f"call {at}: there is no tool {call.tool!r} that may be called"
        if wrong := _arguments(call, tool, at):
            return f"call {at}, {call.tool}: {wrong}"
    return None


def _arguments(call: ProposedCall, tool: CatalogTool, at: int) -> str | None:
    """What is wrong with the arguments of call number `at`."""
    schema = tool.input_schema
    taken = {name: value for name, value in call.arguments.items() if is_reference(value)}
    for value in taken.values():
        if not (isinstance(value["$step"], int) and 0 <= value["$step"] < at and isinstance(value["path"], list)):
            return "$step must be the number of an earlier call, and path a list"
    unknown = sorted(set(call.arguments) - set(schema.get("properties", {})))
    if unknown and not schema.get("additionalProperties"):  # many servers ignore what they do not know; nobody learns
        return f"there is no argument {unknown[0]!r}"
    required = [name for name in schema.get("required", []) if name not in taken]
    given = {name: value for name, value in call.arguments.items() if name not in taken}
    return _violation(given, {**schema, "required": required})


def _violation(value: Any, schema: dict[str, Any]) -> str | None:
    """How a value violates a schema, whose references lead into itself or nowhere: a server has nothing fetched."""
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        validator.check_schema(schema)
        validator(schema, registry=Registry()).validate(value)
    except jsonschema.ValidationError as error:
        return str(error.message)[:300]
    except (jsonschema.SchemaError, Unresolvable, RecursionError):
        pass  # the server's own fault: the execution decides
    return None
