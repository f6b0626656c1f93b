"""Policies: named trainable LoRAs over the server's base model, and their versions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"


class PolicySpec(BaseModel):
    """What `POST /api/policies` takes. Creating a policy again with the same values answers the existing one."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=NAME_PATTERN, description="letters, digits, `.`, `_`, `-`; not the base model's name")
    rank: Literal[1, 8, 16, 32, 64, 128, 256] = 8
    """LoRA rank r; the sizes that vLLM has slots for."""
    alpha: float = Field(default=16.0, gt=0)
    """LoRA scale: the adapter adds (alpha / rank)·B·A."""
    targets: tuple[str, ...] = TARGETS
    """Names of the linear layers that get an adapter."""
    seed: int = 0
    """Seeds the initial A matrices (B = 0)."""
    temperature: float | None = Field(default=None, ge=0)
    """Override for clients that send no header; many graphs hard-code temperature 0."""

    @field_validator("targets")
    @classmethod
    def _known_targets(cls, targets: tuple[str, ...]) -> tuple[str, ...]:
        if not targets or set(targets) - set(TARGETS):
            raise ValueError(f"targets must be a non-empty subset of {', '.join(TARGETS)}")
        return tuple(t for t in TARGETS if t in targets)


class Version(BaseModel):
    """One immutable adapter of a policy. Version 0 is untrained (B = 0)."""

    policy: str
    version: int
    created: float
    job_id: str | None = None
    """The job that made it."""
    metrics: dict[str, Any] = Field(default_factory=dict)
    loaded: bool = False
    """Whether the engine holds it right now."""


class Policy(BaseModel):
    """A policy as the server describes it."""

    name: str
    spec: PolicySpec
    base_model: str
    created: float
    latest: int
    """Newest version, the one that `name` alone means on the gateway."""
