"""`art-langgraph sft`: a warm start from a file of conversations."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from art_langgraph.cli.options import JsonOption
from art_langgraph.cli.printing import new_version, only_json
from trainer_server.common.options import with_flags
from trainer_server.wire import ConfigError, Conversation, Policy, SFTConfig, StepResult

_DEFAULTS = SFTConfig()


@dataclass(frozen=True, kw_only=True)
class SFTFlags:
    """A warm start on the command line.

    Args:
        lr: Peak learning rate.
        lr_updates: Number of updates that --lr is meant for: with four times as many it is halved.
        epochs: Passes over the file.
        batch_size: Conversations of an update.
        validation: Conversations to measure and not to train: a file, or a share of FILE such as 0.1 or 10%. The
            version has the weights with the least held-out loss.
        patience: Measurements without a new least held-out loss that end the training; 0: none do.
        max_seconds: Seconds for training; the version is made of what was learnt by then.
        fit_to_time: With --max-seconds: leave the last conversations of FILE out if there is no time for all, instead
            of any of them.
        detach_prefix: Compute what the conversations of an update begin with, such as tools, without a backward pass:
            on CPUs updates then take less time.
        max_length: Tokens; longer answers are skipped.
        seed: Order of the rows.
        train_on: Imitate all answers of a conversation, or the last one.
    """

    lr: float = field(default=_DEFAULTS.lr, metadata={"min": 0.0})
    lr_updates: int | None = field(default=_DEFAULTS.lr_updates, metadata={"min": 1})
    epochs: int = field(default=_DEFAULTS.num_train_epochs, metadata={"min": 1})
    batch_size: int = field(default=_DEFAULTS.per_device_train_batch_size, metadata={"min": 1})
    validation: str | None = field(default=None, metadata={"metavar": "FILE|SHARE"})
    patience: int = field(default=_DEFAULTS.patience or 0, metadata={"min": 0})
    max_seconds: float | None = _DEFAULTS.max_seconds
    fit_to_time: bool = _DEFAULTS.fit_to_time
    detach_prefix: bool = bool(_DEFAULTS.detach_prefix)
    max_length: int = field(default=_DEFAULTS.max_length, metadata={"min": 2})
    seed: int = field(default=_DEFAULTS.seed, metadata={"min": 0})
    train_on: Literal["all", "last"] = _DEFAULTS.train_on

    def config(self) -> SFTConfig:
        """The settings of the warm start. Raises ConfigError where the flags exclude one another."""
        if self.max_seconds is not None and not 0 < self.max_seconds < math.inf:
            raise ConfigError(f"--max-seconds {self.max_seconds:g} must be above 0")
        if self.fit_to_time and self.max_seconds is None:
            raise ConfigError("--fit-to-time needs the time: give --max-seconds too")
        values = asdict(self) | {"patience": self.patience or None}
        del values["validation"]
        return SFTConfig(
            num_train_epochs=values.pop("epochs"), per_device_train_batch_size=values.pop("batch_size"), **values
        )

    def validation_set(self) -> list[Conversation] | float | None:
        """What `validation` means: a share, or else the conversations of a file. Raises ConfigError: it is neither."""
        from art_langgraph.client.demonstrations import load_conversations

        if self.validation is None:
            return None
        percent = self.validation.removesuffix("%")
        try:
            return float(percent) / (100 if percent != self.validation else 1)
        except ValueError:
            return load_conversations(self.validation)


@with_flags
def sft_command(
    policy: Annotated[str, typer.Argument(help="Policy to start warm.")],
    file: Annotated[Path, typer.Argument(help="JSONL, a conversation per line: {'messages': [...], 'tools': [...]}.")],
    flags: Annotated[SFTFlags, None],
    as_json: JsonOption = False,
) -> None:
    """Start a policy warm: its next version imitates conversations, in OpenAI's fine-tuning format.

    Only what assistants said is learnt, tool calls included.

    Example: art-langgraph sft agent good.jsonl --validation 10% --max-seconds 300
    """
    from art_langgraph.client.demonstrations import load_conversations

    # The files first: what is wrong with them needs no server to be said.
    config, demonstrations, validation = flags.config(), load_conversations(file), flags.validation_set()
    with only_json(as_json) as notify:
        result, trained = asyncio.run(_train(policy, demonstrations, config, validation))
        metrics = result.metrics
        notify({"policy": policy, **result.model_dump(mode="json", exclude={"trajectories"})})
        skips = {**metrics["turns_skipped"], **metrics["conversations_skipped"]}
        left_out = ", ".join(f"{count} {reason}" for reason, count in skips.items()) or "nothing"
        if reason := metrics.get("skipped"):
            print(f"{policy} stays at version {result.version}: {reason}")
            raise typer.Exit(1)
        head = new_version(trained, result.version)
        print(
            f"{head}: {metrics['turns']} answers of {metrics['tokens_trained']} tokens, "
            f"loss {metrics['loss_first']:.3f} → {metrics['loss_last']:.3f}{_held_out(metrics)}; left out: {left_out}"
        )


async def _train(
    policy: str, demonstrations: list[Conversation], config: SFTConfig, validation: list[Conversation] | float | None
) -> tuple[StepResult, Policy]:
    from art_langgraph.client.client import TrainerClient

    async with TrainerClient() as trainer:
        result = await trainer.sft(policy, demonstrations, config, validation=validation)
        return result, await trainer.policy(policy)


def _held_out(metrics: Mapping[str, Any]) -> str:
    """How the held-out loss went, and what ended the training; empty without validation."""
    by = {"epochs": "all epochs", "patience": "no new least held-out loss", "max_seconds": "out of time"}
    end = f"; ended after {metrics['updates']} updates: {by[metrics['stopped']]}"
    if not (losses := metrics["validation_losses"]):
        return end
    updates = metrics["updates_kept"]
    return f", held-out loss {losses[0]:.3f} → {min(losses):.3f} (that of {updates} updates, which is kept){end}"
