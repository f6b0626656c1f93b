"""Runs the examples one after another on one trainer server, so that its start is paid once."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from art_examples.learning.curve import measured_at
from art_examples.learning.program import SHORT_RUNS, interruptible
from art_examples.learning.runs import EMBEDDED, Row, own_server, success
from rich.console import Console
from rich.table import Table

from trainer_server.common import Connection
from trainer_server.common.proxies import exempt_loopback
from trainer_server.wire import ARTError

FOLDER = Path(__file__).resolve().parent
OWN_SERVER = ("remote_gpu",)
"""Examples with a server of their own, which starts once the shared one has ended: a server elsewhere and
`art-langgraph connect` to it are what they show."""
SERVER_OPTIONS = ("--model", "--connect")
"""Options of an example by which no server is shared: recipes depend on another base model, and one runs already."""
LOG_END = 2000
"""Characters of the log of a failed example that are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run of an example came to.

    Args:
        name: The example.
        status: Exit status of its program.
        seconds: Wall time of its program, a server of its own included.
        rows: Its runs, as its program prints them; none of one that failed.
    """

    name: str
    status: int
    seconds: float
    rows: Sequence[Row]

    def column(self, stage: str, form: Callable[[Row | None], str]) -> list[str]:
        """What was measured at a stage, for each run."""
        return [form(measured_at(row, stage)) for row in self.rows]

    def __str__(self) -> str:
        before, after = (", ".join(self.column(stage, _rate)) for stage in ("before", "after"))
        result = f"exit status {self.status}" if self.status else f"{before} → {after}"
        return f"{self.name:<16} {result}  {self.seconds:.0f} s"


def example_commands() -> dict[str, list[str]]:
    """The command of each example, by its name."""
    names = sorted(path.parent.name for path in FOLDER.glob("*/__main__.py"))
    return {name: [sys.executable, "-m", f"art_examples.{name}"] for name in names}


def main(
    words: Sequence[str] | None = None,
    commands: Mapping[str, Sequence[str]] | None = None,
    server: Callable[[], AbstractContextManager[Connection]] = partial(own_server, "--model", EMBEDDED),
) -> None:
    """Runs examples, prints a line for each of them and a table of all, and exits with 1 if one has failed.

    Args:
        words: The words of the command line. None: those of the process.
        commands: The command of each example, by its name. None: those of this folder.
        server: Starts the server that they share. Inside of its block the environment has the key.
    """
    commands = example_commands() if commands is None else commands
    parser = argparse.ArgumentParser(
        prog="python -m art_examples",
        allow_abbrev=False,
        description=f"{__doc__} Other options are passed to each example (python -m art_examples.NAME --help). With "
        f"{' or '.join(SERVER_OPTIONS)} no server is shared. The output of each is in {SHORT_RUNS}/NAME/output.txt.",
    )
    parser.add_argument("--example", action="append", choices=list(commands), help="only this one; may be repeated")
    given, passed = parser.parse_known_args(words)
    names = given.example or list(commands)
    one_each = any(word.partition("=")[0] in SERVER_OPTIONS for word in passed)
    shared = [] if one_each else [name for name in names if name not in OWN_SERVER]
    outcomes = []
    exempt_loopback()
    with interruptible():
        if shared:
            try:
                with server() as connection:
                    options = ["--connect", connection.url, *passed]
                    outcomes += [_run(name, [*commands[name], *options]) for name in shared]
            except ARTError as error:
                raise SystemExit(f"{parser.prog}: {error}") from error
        outcomes += [_run(name, [*commands[name], *passed]) for name in names if name not in shared]
    Console(width=120).print(_table(outcomes))
    if failed := [outcome.name for outcome in outcomes if outcome.status]:
        raise SystemExit(f"{len(failed)} of {len(outcomes)} examples failed: {', '.join(failed)}")


def _run(name: str, command: Sequence[str]) -> Outcome:
    """Runs the program of an example to its end, and prints a line; where it fails, the end of its log too."""
    log, started = SHORT_RUNS / name / "output.txt", time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as out, subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=out) as process:
        try:
            printed = process.communicate()[0].decode()
        finally:
            process.terminate()  # on an interrupt; it ends its own programs then
    rows = [] if process.returncode else json.loads(printed.splitlines()[-1])["runs"]
    outcome = Outcome(name=name, status=process.returncode, seconds=time.monotonic() - started, rows=rows)
    print(outcome, flush=True)
    if outcome.status:
        print(f"The end of {log}:\n{log.read_text(errors='replace')[-LOG_END:]}", file=sys.stderr, flush=True)
    return outcome


def _table(outcomes: Sequence[Outcome]) -> Table:
    """A row for each example, with a line for each of its runs."""
    table = Table("example", "task", "before", "after", "seconds")
    for outcome in outcomes:
        tasks = [row["task"] for row in outcome.rows]
        before, after = (outcome.column(stage, success) for stage in ("before", "after"))
        cells = [tasks, before, after] if not outcome.status else [[f"exit status {outcome.status}"], ["-"], ["-"]]
        table.add_row(outcome.name, *("\n".join(cell) for cell in cells), f"{outcome.seconds:.0f}")
    table.add_section()
    table.add_row("all", "", "", "", f"{sum(outcome.seconds for outcome in outcomes):.0f}")
    return table


def _rate(measured: Row | None) -> str:
    return "-" if measured is None else f"{measured['success']:.3f}"
