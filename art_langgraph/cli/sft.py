"""`art-langgraph sft`: a warm start from a file of conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from art_langgraph.cli.options import JsonOption
from art_langgraph.cli.printing import only_json
from trainer_server.wire import ConfigError, SFTConfig

_SFT = SFTConfig()


def sft_command(
    policy: Annotated[str, typer.Argument(help="Policy to start warm.")],
    file: Annotated[Path, typer.Argument(help="JSONL, a conversation per line: {'messages': [...], 'tools': [...]}.")],
    lr: Annotated[float, typer.Option(help="Peak learning rate.", min=0.0)] = _SFT.lr,
    lr_updates: Annotated[
        int | None,
        typer.Option(
            help="Number of updates that --lr is meant for: with four times as many it is halved.",
            min=1,
        ),
    ] = _SFT.lr_updates,
    epochs: Annotated[int, typer.Option(help="Passes over the file.", min=1)] = _SFT.num_train_epochs,
    batch_size: Annotated[
        int, typer.Option(help="Conversations of an update.", min=1)
    ] = _SFT.per_device_train_batch_size,
    validation: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|SHARE",
            help="Conversations to measure and not to train: a file, or a share of FILE such as 0.1 or 10%. The "
            "version has the weights with the least held-out loss.",
        ),
    ] = None,
    patience: Annotated[
        int,
        typer.Option(help="Measurements without a new least held-out loss that end the training; 0: none do.", min=0),
    ] = _SFT.patience or 0,
    max_seconds: Annotated[
        float | None, typer.Option(help="Seconds for training; the version is made of what was learnt by then.")
    ] = _SFT.max_seconds,
    fit_to_time: Annotated[
        bool,
        typer.Option(
            "--fit-to-time",
            help="With --max-seconds: leave the last conversations of FILE out if there is no time for all, instead of "
            "any of them.",
        ),
    ] = _SFT.fit_to_time,
    detach_prefix: Annotated[
        bool,
        typer.Option(
            "--detach-prefix",
            help="Compute what the conversations of an update begin with, such as tools, without a backward pass: on "
            "CPUs updates then take less time.",
        ),
    ] = _SFT.detach_prefix,
    max_length: Annotated[int, typer.Option(help="Tokens; longer answers are skipped.", min=2)] = _SFT.max_length,
    seed: Annotated[int, typer.Option(help="Order of the rows.", min=0)] = _SFT.seed,
    train_on: Annotated[
        Literal["all", "last"], typer.Option(help="Imitate all answers of a conversation, or the last one.")
    ] = _SFT.train_on,
    as_json: JsonOption = False,
) -> None:
    """Start a policy warm: its next version imitates conversations, in OpenAI's fine-tuning format.

    Only what assistants said is learnt, tool calls included.

    Example: art-langgraph sft agent good.jsonl --validation 10% --max-seconds 300
    """
    if max_seconds is not None and max_seconds <= 0:
        raise ConfigError(f"--max-seconds {max_seconds:g} must be above 0")
    if fit_to_time and max_seconds is None:
        raise ConfigError("--fit-to-time needs the time: give --max-seconds too")
    config = SFTConfig(
        lr=lr,
        lr_updates=lr_updates,
        num_train_epochs=epochs,
        per_device_train_batch_size=batch_size,
        fit_to_time=fit_to_time,
        detach_prefix=detach_prefix,
        max_length=max_length,
        seed=seed,
        train_on=train_on,
        patience=patience or None,
        max_seconds=max_seconds,
    )

    async def start() -> None:
        from art_langgraph.client.client import TrainerClient

        async with TrainerClient() as trainer:
            result = await trainer.sft(
                policy, file, config, validation=None if validation is None else _validation(validation)
            )
        metrics = result.metrics
        tell({"policy": policy, **result.model_dump(mode="json", exclude={"trajectories"})})
        skipped = {**metrics["turns_skipped"], **metrics["conversations_skipped"]}
        left_out = ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "nothing"
        if reason := metrics.get("skipped"):
            print(f"{policy} stays at version {result.version}: {reason}")
            raise typer.Exit(1)
        print(
            f"{policy}@{result.version} is served: {metrics['turns']} answers of {metrics['tokens_trained']} tokens, "
            f"loss {metrics['loss_first']:.3f} → {metrics['loss_last']:.3f}{_held_out(metrics)}; left out: {left_out}"
        )

    with only_json(as_json) as tell:
        asyncio.run(start())


def _validation(text: str) -> Path | float:
    """The value of --validation: a share, or else a file."""
    percent = text.removesuffix("%")
    try:
        return float(percent) / (100 if percent != text else 1)
    except ValueError:
        return Path(text)


def _held_out(metrics: Mapping[str, Any]) -> str:
    """How the held-out loss went, and what ended the training; empty without validation."""
    by = {"epochs": "all epochs", "patience": "no new least held-out loss", "max_seconds": "out of time"}
    ended = f"; ended after {metrics['updates']} updates: {by[metrics['stopped']]}"
    if not (losses := metrics["validation_losses"]):
        return ended
    kept = metrics["updates_kept"]
    return f", held-out loss {losses[0]:.3f} → {min(losses):.3f} (that of {kept} updates, which is kept){ended}"
