"""What progress.json holds: how far a running job is."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Progress(BaseModel):
    """How far the trainer is with a running job; the fields are those of Job."""

    share: float | None = None
    measured: dict[str, float] = Field(default_factory=dict)
