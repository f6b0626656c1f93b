"""`art-langgraph doctor`: prints what is found of a model and this machine, with the remedies."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from trainer_server.cli.local import ReasoningOption, ToolOption
from trainer_server.common import Home
from trainer_server.doctor.finding import Finding, State, worst

_MARKS = {
    State.ok: "[green]ok[/green]     ",
    State.warning: "[yellow]warning[/yellow]",
    State.failed: "[red]failed[/red] ",
}


def doctor_command(
    model: Annotated[str, typer.Option(help="As `serve` has it: `embedded`, a directory, or a hub id.")] = "embedded",
    revision: Annotated[str | None, typer.Option(help="As `serve` has it.")] = None,
    rank: Annotated[int, typer.Option(help="Largest LoRA rank that policies may have.", min=1, max=256)] = 16,
    gpus: Annotated[
        int | None, typer.Option(help="GPUs to compute for. Default: those of this machine.", min=1, max=64)
    ] = None,
    gpu_memory: Annotated[float | None, typer.Option(help="Memory of each, GiB. Default: as they have.", min=4)] = None,
    tool_call_parser: ToolOption = "auto",
    reasoning_parser: ReasoningOption = "auto",
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="As `serve` has it.")] = False,
    engine_args: Annotated[str, typer.Option(help="As `serve` has them.")] = "",
    home: Annotated[Path | None, typer.Option("--home", help="As `serve` has it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say beforehand whether a model will serve, parse tool calls and thoughts, and train on this machine.

    Of a hub model it downloads configuration, tokenizer and chat template, not the weights. Ends with status 1 if a
    check failed; warnings are no failure.
    """
    from trainer_server.doctor.checkup import examine

    with Console(emoji=False, stderr=True).status(f"examining {escape(model)}"):
        findings = examine(
            model,
            Home.find(home),
            revision=revision,
            rank=rank,
            gpus=gpus,
            gpu_gib=gpu_memory,
            trust_remote_code=trust_remote_code,
            tools=tool_call_parser,
            reasoning=reasoning_parser,
            engine_args=shlex.split(engine_args),
        )
    state = worst(findings)
    if as_json:
        checks = [finding.as_json() for finding in findings]
        print(json.dumps({"model": model, "state": state, "checks": checks}, indent=2))
    else:
        _print(findings, state)
    if state == State.failed:
        raise typer.Exit(1)


def _print(findings: list[Finding], state: State) -> None:
    console = Console(emoji=False, highlight=False, soft_wrap=True)
    subject = ""
    for finding in findings:
        if finding.subject != subject:
            subject = finding.subject
            console.print(f"[bold]{subject}[/bold]")
        console.print(f"  {_MARKS[finding.state]} {finding.check}: {escape(finding.text)}")
        if finding.remedy:
            console.print(f"          → {escape(finding.remedy)}")
    counts = Counter(finding.state for finding in findings)
    verdict = {
        State.ok: "All is well.",
        State.warning: f"It will work. Warnings: {counts[State.warning]}.",
        State.failed: f"A server will not work here. Failed checks: {counts[State.failed]}. Programs that only ask a "
        "server need none of this: `art-langgraph status` says which server they find.",
    }
    console.print(verdict[state])


def register(app: typer.Typer) -> None:
    """Adds the command to `art-langgraph`."""
    app.command("doctor")(doctor_command)
