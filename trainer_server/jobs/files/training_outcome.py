"""What trained.json holds: how the trainer's part of a job ended."""

from __future__ import annotations

from pydantic import BaseModel, Field

from trainer_server.wire import StepResult


class TrainingOutcome(BaseModel):
    """Content of trained.json: how the trainer's part of a job ended."""

    result: StepResult | None = None
    """What the job made; None where it failed or was cancelled."""
    error: str | None = None
    """Why the job failed or was cancelled; None otherwise."""
    cancelled: bool = False
    """Whether a client cancelled the job; `error` says when."""
    seconds: float = Field(default=0.0, description="wall time in the trainer")


CANCELLED = TrainingOutcome(
    cancelled=True,
    error="A client cancelled this job before the trainer took it up. The policy stays at the version it had; to train "
    "after all, send the request again under another idempotency key.",
)
BROKEN_OFF = TrainingOutcome(
    cancelled=True,
    error="A client cancelled this job while the trainer was at it. No version was made, and the policy stays at the "
    "version it had; to train after all, send the request again under another idempotency key.",
)
