"""The command line, in this process."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from functools import cache
from typing import Any

import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from art_langgraph.cli.main import build

_LIMIT = 120
"""Seconds that a command may take."""


def art(*words: str, typed: str | None = None) -> Any:
    """In this process, but in a thread: a command starts an event loop of its own.

    Args:
        words: Behind `art-langgraph`.
        typed: What the command is answered.

    Raises:
        AssertionError: The command did not end in time. One that goes on until it is stopped belongs elsewhere.
    """
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(CliRunner().invoke, build(), list(words), typed)
        try:
            return running.result(_LIMIT)
        except concurrent.futures.TimeoutError:
            raise AssertionError(f"art-langgraph {' '.join(words)} did not end within {_LIMIT} s") from None


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """What a command line gives its command, which is not run.

    Args:
        words: Behind `art-langgraph`.

    Raises:
        Exception: There is no such command or option, or an option does not take this value. Which class it has depends
            on the version of typer.
    """
    program: Any = _program()
    context, rest = None, list(words)
    while isinstance(program, TyperGroup) and rest:
        context = program.make_context(program.name, rest, parent=context)
        name, program, rest = program.resolve_command(context, [*context._protected_args, *context.args])
        assert program is not None, name
    if context is None:
        return {}
    return dict(program.make_context(program.name, rest, parent=context).params)


@cache
def _program() -> Any:
    return typer.main.get_command(build())
