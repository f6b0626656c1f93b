"""`art-langgraph policies | export | fork | score-version | promote`: policies of the server and their versions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art_langgraph.cli.options import JsonOption, short_patience
from art_langgraph.cli.printing.lists import print_json, print_table
from trainer_server.wire import LATEST, ConfigError, ExportFormat, version_number

if TYPE_CHECKING:
    from art_langgraph.client.client import TrainerClient

_VersionArgument = Annotated[
    str,
    typer.Argument(
        metavar="POLICY[@N]",
        help="A version, such as agent@3, or agent@latest; without @N the promoted version, else the newest.",
    ),
]


async def _find_version(trainer: TrainerClient, version: str) -> tuple[str, int]:
    policy, at, text = version.partition("@")
    if at:
        if text == LATEST:
            return policy, (await trainer.policy(policy)).latest
        if (number := version_number(text)) is None:
            raise ConfigError(f"{version!r} is no version: write POLICY@N with a number, or POLICY@latest")
        return policy, number
    return policy, (await trainer.policy(policy)).served


app = typer.Typer(invoke_without_command=True)


@app.callback()
def policies_command(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the policies of the trainer server, with their newest versions. `create` makes one, `delete` deletes one."""
    if context.invoked_subcommand is not None:
        return

    async def show() -> None:
        from art_langgraph.client.client import TrainerClient

        rows = []
        broken: list[str] = []
        async with TrainerClient(retry_for=short_patience()) as trainer:
            for policy in await trainer.policies():
                newest = await trainer.versions(policy.name)
                reward = newest[-1].metrics.get("reward_mean") if newest else None
                rows.append(
                    {
                        "policy": policy.name,
                        "newest": policy.latest,
                        "promoted": policy.promoted,
                        "candidate": policy.candidate.version if policy.candidate else None,
                        "share": policy.candidate.share if policy.candidate else None,
                        "rank": policy.spec.rank,
                        "base model": policy.base_model,
                        "reward of the last step": reward if isinstance(reward, float) else None,
                    }
                )
                broken += policy.quarantined.values()
        if as_json:
            print_json(rows)
            return
        tried = ["candidate", "share"] if any(row["candidate"] is not None for row in rows) else []
        print_table(
            rows,
            ["policy", "newest", "promoted", *tried, "rank", "base model", "reward of the last step"],
            whole=["policy"],
        )
        print(*broken, sep="\n", end="\n" if broken else "")

    asyncio.run(show())


@app.command("create")
def create_command(
    name: Annotated[str, typer.Argument(help="Letters, digits, `.`, `_`, `-`; not the base model's name.")],
    rank: Annotated[
        int | None, typer.Option(help="LoRA rank: 1, 8, 16, 32, 64, 128 or 256; default 8.", show_default=False)
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="LoRA scale: the adapter adds (alpha / rank)·B·A; default 16.", show_default=False),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="Linear layers that get an adapter, such as q_proj; once for each. Default: all of attention and MLP.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the first weights; default 0.", show_default=False)] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Sampling temperature in place of the one that a graph sets. A graph with temperature 0 gives equal "
            "runs, which teach nothing: give 1.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a policy: a LoRA adapter on the server's base model, untrained. A policy that exists stays as it is.

    A policy that exists with other values is an error. `fork` creates one from a version of another policy.

    Example: art-langgraph policies create agent --rank 16
    """

    async def run() -> None:
        from art_langgraph.client.client import TrainerClient

        async with TrainerClient(retry_for=short_patience()) as trainer:
            made = await trainer.create_policy(
                name, rank=rank, alpha=alpha, targets=target, seed=seed, temperature=temperature
            )
        if as_json:
            print_json(made.model_dump(mode="json"))
        else:
            rated = "" if made.spec.temperature is None else f", temperature {made.spec.temperature:g}"
            print(f"{made.name}: rank {made.spec.rank}{rated}, on {made.base_model}, at version {made.latest}")

    asyncio.run(run())


def export_command(
    version: _VersionArgument,
    output: Annotated[Path | None, typer.Option(help="Directory to write; default: POLICY-N-FORMAT.")] = None,
    format: Annotated[
        ExportFormat,
        typer.Option(help="peft: the adapter. merged: adapter and base in one model. gguf: that model for llama.cpp."),
    ] = "peft",
    force: Annotated[bool, typer.Option("--force", help="Write into a directory that has files already.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a version into a directory, with a model card: for PEFT and vLLM, for transformers, or for llama.cpp.

    Example: art-langgraph export agent@3 --format merged --output my-model
    """

    async def run() -> None:
        from art_langgraph.client.client import TrainerClient

        async with TrainerClient(retry_for=short_patience()) as trainer:
            policy, number = await _find_version(trainer, version)
            where = output or Path(f"{policy}-{number}-{format}")
            written = await trainer.export(policy, number, where, format, force=force, progress=True)
        if as_json:
            print_json({"policy": policy, "version": number, "format": format, "directory": str(written)})
        else:
            print(written)

    asyncio.run(run())


def fork_command(
    version: _VersionArgument,
    name: Annotated[str, typer.Argument(help="The new policy.")],
    optimizer: Annotated[
        bool, typer.Option(help="Continue with that version's optimizer, or with a new one (--no-optimizer).")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Create a policy from a version of another policy. From then on, each is trained and served on its own.

    Example: art-langgraph fork agent@3 agent-brief
    """

    async def run() -> None:
        from art_langgraph.client.client import TrainerClient

        async with TrainerClient(retry_for=short_patience()) as trainer:
            policy, number = await _find_version(trainer, version)
            made = await trainer.fork(policy, number, name, optimizer=optimizer)
        if as_json:
            print_json(made.model_dump(mode="json"))
        else:
            print(f"{made.name}@0 is {policy}@{number}; {made.name} is at version {made.latest}")

    asyncio.run(run())


def score_command(
    version: _VersionArgument,
    score: Annotated[float, typer.Argument(help="Larger is better.")],
    as_json: JsonOption = False,
) -> None:
    """Record how good a version is. A server with --keep-versions never deletes the best version.

    Example: art-langgraph score-version agent@3 0.82
    """

    async def run() -> None:
        from art_langgraph.client.client import TrainerClient

        async with TrainerClient(retry_for=short_patience()) as trainer:
            policy, number = await _find_version(trainer, version)
            await trainer.score_version(policy, number, score)
        if as_json:
            print_json({"policy": policy, "version": number, "score": score})
        else:
            print(f"{policy}@{number}: {score:g}")

    asyncio.run(run())


def promote_command(
    version: Annotated[str, typer.Argument(metavar="POLICY[@N]", help="The version, such as agent@3 or agent@latest.")],
    undo: Annotated[
        bool, typer.Option("--undo", help="The name means the newest version again, and each that comes.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Promote a version: the policy's name means it from now on, and POLICY@latest the newest.

    Until a version is promoted, the name of a policy means its newest version. Rollouts that have begun keep theirs.

    Example: art-langgraph promote agent@3
    """
    if undo == ("@" in version):
        raise ConfigError(f"{version}: write POLICY@N to promote a version, or POLICY --undo to take that back")

    async def run() -> None:
        from art_langgraph.client.client import TrainerClient

        async with TrainerClient(retry_for=short_patience()) as trainer:
            policy, number = (version, None) if undo else await _find_version(trainer, version)
            made = await trainer.promote(policy, number)
        if as_json:
            print_json(made.model_dump(mode="json"))
            return
        newest = f"{made.name}@latest is {made.name}@{made.latest}"
        print(f"{made.name} is {made.name}@{made.served}, {'as long as none is newer' if undo else newest}")

    asyncio.run(run())


def register(root: typer.Typer) -> None:
    """Adds these commands to `art-langgraph`."""
    root.add_typer(app, name="policies")
    root.command("export")(export_command)
    root.command("fork")(fork_command)
    root.command("score-version")(score_command)
    root.command("promote")(promote_command)
