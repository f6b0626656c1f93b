"""Prints facts: as a table in which no id is cut, or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from trainer_server.wire import Policy

_LONGEST = 40
"""Characters of a text in a line of a table. Longer texts continue in the next line."""


def print_json(value: Any) -> None:
    """Prints JSON on standard output, without regard to the width of the terminal."""
    print(json_text(value, sys.stdout, indent=2))


def print_outcome(value: Any, text: str, as_json: bool) -> None:
    """Prints what a command did: a value as JSON, or a text for people."""
    if as_json:
        print_json(value)
    else:
        print(text)


def new_version(policy: Policy, version: int) -> str:
    """How a message about a new version begins: "agent@3 is served". If another version is promoted, it says that the
    policy's name does not mean the new one.

    Args:
        policy: The policy after the step.
        version: The new version.
    """
    name = f"{policy.name}@{version}"
    if policy.promoted is None or policy.promoted == version:
        return f"{name} is served"
    return (
        f"{name} is served ({policy.name} goes on to mean {policy.name}@{policy.promoted}, which is promoted: "
        f"`art-langgraph promote {name}`, or `art-langgraph promote {policy.name} --undo`)"
    )


def json_text(value: Any, output: TextIO, **options: Any) -> str:
    """JSON as an output can show it: with escapes where that is not UTF-8, as a pipe on Windows."""
    return json.dumps(value, ensure_ascii=not str(output.encoding).lower().startswith("utf"), **options)


@contextmanager
def only_json(as_json: bool) -> Iterator[Callable[[Any], None]]:
    """Keeps the standard output for JSON: while the context is open, what is printed otherwise goes to the standard
    error output.

    Args:
        as_json: Whether JSON is asked for. If not, nothing changes.

    Yields:
        A function that prints a value as a line of JSON; without `as_json` it prints nothing.
    """
    if not as_json:
        yield lambda value: None
        return
    output = sys.stdout
    with redirect_stdout(sys.stderr):
        yield lambda value: print(json_text(value, output, default=str), file=output, flush=True)


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, whole: Iterable[str] = ("id",)) -> None:
    """Prints rows as a table.

    Args:
        rows: Values by the name of their column; None is printed as nothing, a float with three decimals.
        columns: Which columns, in their order.
        whole: Columns that are never cut or folded, because people copy their content. Where the terminal is too narrow
            for them, the table is wider than the terminal.
    """
    whole = set(whole)
    table = Table()
    for name in columns:
        if name in whole:
            table.add_column(name, no_wrap=True)
        else:
            table.add_column(name, overflow="fold", max_width=_LONGEST)
    for row in rows:
        table.add_row(*(escape(cell(row.get(name))) for name in columns))
    console = Console(emoji=False)
    measurement = Measurement.get(console, console.options.update_width(10_000), table)
    console.width = max(console.width, measurement.minimum if console.is_terminal else measurement.maximum)
    console.print(table)


def cell(value: Any) -> str:
    """A value as the text of a cell."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)


def shorten(text: str, length: int = 60) -> str:
    """A text as a single line of at most `length` characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
