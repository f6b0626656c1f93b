"""`art-langgraph export`: a version to take away. `fork`: a policy from it. `score-version`: how good it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from art_langgraph.client.client import TrainerClient
from trainer_server.wire import ConfigError, ExportFormat

_NamedOption = Annotated[str, typer.Argument(metavar="POLICY[@N]", help="A version; without @N the newest one.")]


async def _version(trainer: TrainerClient, named: str) -> tuple[str, int]:
    policy, at, number = named.partition("@")
    if at:
        if not number.isdigit():
            raise ConfigError(f"{named!r} names no version: write POLICY@N with a number, or POLICY for the newest one")
        return policy, int(number)
    return policy, (await trainer.policy(policy)).latest


def export_command(
    version: _NamedOption,
    output: Annotated[Path | None, typer.Option(help="Directory to write; default: POLICY-N-FORMAT.")] = None,
    format: Annotated[
        ExportFormat,
        typer.Option(help="peft: the adapter. merged: base and adapter in one model. gguf: that for llama.cpp."),
    ] = "peft",
) -> None:
    """Write a version into a directory, with a model card: for PEFT and vLLM, for transformers, or for llama.cpp."""

    async def run() -> None:
        async with TrainerClient() as trainer:
            policy, number = await _version(trainer, version)
            where = output or Path(f"{policy}-{number}-{format}")
            print(await trainer.export(policy, number, where, format, progress=True))

    asyncio.run(run())


def fork_command(
    version: _NamedOption,
    name: Annotated[str, typer.Argument(help="The new policy.")],
    optimizer: Annotated[
        bool, typer.Option(help="Go on with that version's optimizer, or with a fresh one (--no-optimizer).")
    ] = True,
) -> None:
    """Create a policy from a version of another one. Both are trained and served apart from then on."""

    async def run() -> None:
        async with TrainerClient() as trainer:
            policy, number = await _version(trainer, version)
            made = await trainer.fork(policy, number, name, optimizer=optimizer)
        print(f"{made.name}@0 is {policy}@{number}; {made.name} is at version {made.latest}")

    asyncio.run(run())


def score_command(
    version: _NamedOption, score: Annotated[float, typer.Argument(help="Larger is better.")]
) -> None:  # fmt: skip
    """Note how good a version is. A server with --keep-versions never deletes the best one."""

    async def run() -> None:
        async with TrainerClient() as trainer:
            policy, number = await _version(trainer, version)
            await trainer.score_version(policy, number, score)
        print(f"{policy}@{number}: {score:g}")

    asyncio.run(run())


def register(root: typer.Typer) -> None:
    """Adds these commands to `art-langgraph`."""
    root.command("export")(export_command)
    root.command("fork")(fork_command)
    root.command("score-version")(score_command)
