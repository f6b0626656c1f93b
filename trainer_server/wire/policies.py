"""Policies: named trainable LoRAs over the server's base model, and their versions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"


class Fork(BaseModel):
    """The version of another policy that a policy starts from."""

    model_config = ConfigDict(extra="forbid")

    policy: str = Field(pattern=NAME_PATTERN)
    version: int = Field(ge=0)
    optimizer: bool = True
    """Whether training goes on with the optimizer's moments of that version, or with fresh ones."""


class PolicySpec(BaseModel):
    """What `POST /api/policies` takes. Creating a policy again with the same values answers the existing one."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

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

    fork_of: Fork | None = None
    """Version 0 has the weights of another policy's version, instead of untrained ones. Rank, alpha, targets and seed
    are then those of that policy."""

    @field_validator("targets")
    @classmethod
    def _known_targets(cls, targets: tuple[str, ...]) -> tuple[str, ...]:
        if not targets or set(targets) - set(TARGETS):
            raise ValueError(f"targets must be a non-empty subset of {', '.join(TARGETS)}")
        return tuple(t for t in TARGETS if t in targets)


class Version(BaseModel):
    """One immutable adapter of a policy. Version 0 is untrained (B = 0), or that of a fork's source."""

    policy: str
    version: int
    created: float
    job_id: str | None = None
    """The job that made it."""
    made_from: int | None = None
    """The version that it was trained from; None for version 0."""
    metrics: dict[str, Any] = Field(default_factory=dict)
    loaded: bool = False
    """Whether the engine holds it right now."""
    score: float | None = None
    """How good it is: what the best version is chosen by when old ones are deleted."""
    scored_by: Literal["evaluation", "rollouts"] | None = None
    """A client said so (`evaluation`), or it is the mean reward of the rollouts that the next step learnt from."""


class Score(BaseModel):
    """What `PUT /api/policies/{name}/versions/{number}/score` takes."""

    model_config = ConfigDict(extra="forbid")

    score: float = Field(allow_inf_nan=False)
    """Larger is better; comparable between the versions of one policy."""


class Policy(BaseModel):
    """A policy as the server describes it."""

    name: str
    spec: PolicySpec
    base_model: str
    created: float
    latest: int
    """Newest version, the one that `name` alone means on the gateway."""
    quarantined: dict[int, str] = Field(default_factory=dict)
    """Versions that cannot be used - damaged, deleted by hand, refused by the engine - and why."""


ExportFormat = Literal["peft", "merged", "gguf"]
"""An adapter as PEFT and vLLM read it; base and adapter in one model; that model in one file for llama.cpp."""
