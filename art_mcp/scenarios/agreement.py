"""Whether the arguments of a call are those that a step has."""

from __future__ import annotations

from typing import Any

from art_mcp.canonical import canonical


def agreement(call_arguments: dict[str, Any], step_arguments: dict[str, Any], defaults: dict[str, Any]) -> float:
    """The share of arguments that are equal, of all names in `call_arguments` or `step_arguments`. 1.0 if there are no
    arguments.

    Args:
        call_arguments: Arguments of a call. A null counts as omitted.
        step_arguments: Arguments of the step. A null counts as omitted.
        defaults: Defaults for omitted arguments.
    """
    ours, theirs = ({**defaults, **omit_nulls(each)} for each in (call_arguments, step_arguments))
    names = omit_nulls(call_arguments).keys() | omit_nulls(step_arguments).keys()
    same = [canonical(ours.get(name)) == canonical(theirs.get(name)) for name in names]
    return sum(same) / len(same) if same else 1.0


def omit_nulls(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that are not null."""
    return {name: value for name, value in arguments.items() if value is not None}
