"""What a training step measured of the tokens that it trained, and why it left out what it left out.

The trainer writes it beside the job, compressed, and it is deleted with the job. The dashboard reads it. Nothing is
trained by it.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, Field

_NAME = "tokens.json.gz"


class CompletionInStep(BaseModel):
    """A completion that a step trained, as a part of one trajectory. The lists have a value for each sampled token;
    None: the step did not compute it."""

    trajectory: str
    """Id of the trajectory, as the step's request has it."""
    completion: str
    advantage: float
    """Of the trajectory's reward. A teacher's part is not in it."""
    trained: list[bool]
    """Whether a token has a loss: tokens that a grammar forced have none."""
    logprobs: list[float | None]
    """The trainer's log-probabilities before the weights of this completion's update moved."""
    entropy: list[float | None]
    """In nats."""


class LeftOut(BaseModel):
    """Something that a step did not train."""

    trajectory: str
    completion: str | None = None
    """None: the whole trajectory."""
    reason: str
    """A key of the step's metrics `groups_skipped_by`, `trajectories_skipped` or `completions_skipped`."""


class StepTokens(BaseModel):
    """What a step did with each completion that it was sent."""

    completions: list[CompletionInStep] = Field(default_factory=list)
    left_out: list[LeftOut] = Field(default_factory=list)

    def of(self, trajectory: str, completion: str) -> CompletionInStep | None:
        """What the step did with a completion as a part of a trajectory; None: it did not train it."""
        matching = (
            entry for entry in self.completions if (entry.trajectory, entry.completion) == (trajectory, completion)
        )
        return next(matching, None)

    def reasons(self, trajectory: str, completion: str | None = None) -> list[str]:
        """Why the step left out a trajectory, or one of its completions. For a completion, reasons for the whole
        trajectory count too."""
        scopes = (None, completion)
        return [
            entry.reason for entry in self.left_out if entry.trajectory == trajectory and entry.completion in scopes
        ]


def write_step_tokens(directory: Path, tokens: StepTokens) -> None:
    """Writes what a step measured into the directory of its job. A reader sees all of it or nothing."""
    aside = directory / f".{_NAME}"
    aside.write_bytes(gzip.compress(tokens.model_dump_json().encode(), 6))
    aside.replace(directory / _NAME)


def read_step_tokens(directory: Path) -> StepTokens | None:
    """What a step measured; None where it wrote nothing, or the file is damaged."""
    try:
        return StepTokens.model_validate_json(gzip.decompress((directory / _NAME).read_bytes()))
    except (OSError, EOFError, zlib.error, ValueError):
        return None


def round_values(values: Sequence[float]) -> list[float | None]:
    """Values as they are written: four digits, and None for what is no number."""
    return [round(value, 4) if value == value else None for value in values]
