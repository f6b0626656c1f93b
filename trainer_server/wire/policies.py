"""Policies: named trainable LoRA adapters on the server's base model, and their versions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, field_validator

from trainer_server.wire.bounds import ClosedRecord

ABSORBED_TARGET = "kv_b_proj"
"""A linear layer of latent attention that gets no adapter: vLLM multiplies it into the queries when it decodes, so that
its adapter would count in the trainer and not in the sampler."""
ATTENTION_TARGETS = (
    *("q_proj", "k_proj", "v_proj", "o_proj"),
    # Latent attention (DeepSeek), without `ABSORBED_TARGET`.
    *("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa"),
    "qkv_proj",
)
RECURRENT_TARGETS = (
    *("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
    *("in_proj_qkvz", "in_proj_ba", "in_proj", "out_proj"),
)
MLP_TARGETS = ("gate_proj", "up_proj", "down_proj")
TARGETS = (
    *ATTENTION_TARGETS,
    *RECURRENT_TARGETS,
    *MLP_TARGETS,
    *("gate_up_proj", "w1", "w3", "w2", "input_linear", "output_linear"),
)
"""Common names of linear layers that get an adapter. As a policy's targets, all of them together mean every linear
layer of the model that can have one, whatever its name."""
EXPERTS = "experts"
"""Among a policy's targets: all experts of a mixture. They are none of `TARGETS`, as vLLM adapts them on GPUs alone."""
ATTENTION = "attention"
"""Among a policy's targets: `ATTENTION_TARGETS`."""
_TARGET = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
MAX_VERSION = 10**9
"""Version numbers are below this."""
VersionNumber = Annotated[int, Field(ge=0, lt=MAX_VERSION)]
"""The number of a version, in a request."""
LATEST = "latest"
"""In place of a number: the newest version, whatever is promoted."""
FOLLOW = "follow"
"""In place of a number, for a rollout: the newest version at each of its calls. The rollout holds none."""
VersionRef = VersionNumber | Literal["latest", "follow"]
"""A version, in a request: its number, the newest one, or of a rollout the newest one at each call."""
_VERSION = re.compile(r"0|[1-9][0-9]{0,8}")


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names of linear layers, each once: the common ones in the order of `TARGETS`, then the others by the alphabet."""
    others = set(names)
    return (*(name for name in TARGETS if name in others), *sorted(others - set(TARGETS)))


def version_number(text: str) -> int | None:
    """The version that a text names: `7`, but not `07`, `7.bak`, `-1` or `²`. None: it names no version."""
    return int(text) if _VERSION.fullmatch(text) else None


def names_version(model: str) -> bool:
    """Whether the name of a model fixes a version: `agent@3` does, `agent` and `agent@latest` do not."""
    return "@" in model and not model.endswith(f"@{LATEST}")


class Fork(ClosedRecord):
    """The version of another policy that a policy starts from."""

    policy: str = Field(pattern=NAME_PATTERN)
    version: VersionNumber
    optimizer: bool = True
    """Whether training continues with the optimizer's moments of that version; else it starts with new moments."""


class PolicySpec(ClosedRecord):
    """Body of `POST /api/policies`. Creating a policy again with the same values returns the existing policy."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: str = Field(pattern=NAME_PATTERN, description="letters, digits, `.`, `_`, `-`; not the base model's name")
    rank: Literal[1, 8, 16, 32, 64, 128, 256] = 8
    """LoRA rank r, one of the sizes that vLLM supports."""
    alpha: float = Field(default=16.0, gt=0)
    """LoRA scale: the adapter adds (alpha / rank)·B·A."""
    targets: Annotated[tuple[str, ...], FailFast()] = TARGETS
    """Names of the linear layers that get an adapter, or `attention`. By default all that the model has."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the initial A matrices (B = 0)."""
    temperature: float | None = Field(default=None, ge=0, le=10)
    """Sampling temperature that overrides the one in requests without the header `X-ART-Temperature`; None: no
    override. Many graphs hard-code temperature 0."""
    fork_of: Fork | None = None
    """The version of another policy whose weights version 0 gets; None: untrained weights. With a fork, rank, alpha,
    targets and seed are those of the other policy."""

    @field_validator("targets")
    @classmethod
    def _known_targets(cls, targets: tuple[str, ...]) -> tuple[str, ...]:
        if not targets or not all(_TARGET.fullmatch(target) for target in targets):
            raise ValueError(f"targets must be names of linear layers, such as {', '.join(TARGETS)}; or {ATTENTION}")
        names = {*targets, *(ATTENTION_TARGETS if ATTENTION in targets else ())} - {ATTENTION}
        return in_order(names)


class Version(BaseModel):
    """One immutable adapter of a policy. Version 0 is untrained (B = 0), or a copy of a fork's source."""

    policy: str
    version: int
    created: float
    """Unix time, seconds."""
    job_id: str | None = None
    """Id of the job that made it."""
    made_from: int | None = None
    """The version that it was trained from; None for version 0."""
    base_revision: str | None = None
    """Commit of the base model on its hub; None for a base model from elsewhere."""
    metrics: dict[str, Any] = Field(default_factory=dict)
    """Metrics of the job that made it."""
    loaded: bool = False
    """Whether the engines hold it now."""
    score: float | None = None
    """How good the version is; larger is better. The best version is kept when old versions are deleted."""
    scored_by: Literal["evaluation", "rollouts"] | None = None
    """Where the score comes from: a client set it (`evaluation`), or it is the mean reward of the rollouts that this
    version sampled, over all steps that were sent them (`rollouts`)."""


class AdapterFile(BaseModel):
    """A file of an adapter."""

    name: str
    size: int
    """Bytes."""
    sha256: str
    """Hexadecimal."""


class AdapterFiles(BaseModel):
    """What `GET /api/policies/{name}/versions/{number}/files` answers."""

    digest: str
    """SHA-256, hexadecimal, that tells the adapter from all others."""
    files: list[AdapterFile]


class Score(ClosedRecord):
    """Body of `PUT /api/policies/{name}/versions/{number}/score`."""

    score: float = Field(allow_inf_nan=False)
    """Larger is better. Scores are compared between the versions of one policy."""


class Promotion(ClosedRecord):
    """Body of `PUT /api/policies/{name}/promotion`."""

    version: VersionNumber | None
    """The version that the policy's name means from now on; null: the newest one, as before any promotion."""
    after: int | None = Field(default=None, ge=0)
    """Promote only if `Policy.promotions` is this number, that is, if nobody has promoted meanwhile; else 409."""


class CandidateSpec(ClosedRecord):
    """Body of `PUT /api/policies/{name}/candidate`."""

    model_config = ConfigDict(allow_inf_nan=False)

    version: VersionNumber
    """The candidate: it answers a share of the new rollouts, and the promoted version all others."""
    share: float = Field(gt=0, le=1)
    """Its share of the new rollouts that ask for the policy by its name, from 0 to 1. It never gets more."""
    after: int | None = Field(default=None, ge=0)
    """Serve the candidate only if `Policy.promotions` is this number, that is, if nobody has promoted meanwhile; else
    409."""


class Candidate(BaseModel):
    """A version that is tried beside the promoted one. Each promotion ends it."""

    version: int
    share: float
    """Its share of the new rollouts, from 0 to 1."""
    since: float
    """When it began. Unix time, seconds."""
    beside: int
    """The promoted version, which answers the other rollouts."""
    promotions: int
    """`Policy.promotions` when it began."""


class CanaryCounts(BaseModel):
    """What `GET /api/policies/{name}/candidate` answers."""

    candidate: Candidate | None
    """None: no candidate is served."""
    rollouts: int = 0
    """Rollouts that began since, and asked for the policy by its name."""
    taken: int = 0
    """Those of them that the candidate answers. Never more than its share."""


class Policy(BaseModel):
    """A policy as the server describes it."""

    name: str
    spec: PolicySpec
    base_model: str
    created: float
    """Unix time, seconds."""
    latest: int
    """The newest version. `name@latest` means it on the gateway."""
    promoted: int | None = None
    """The version that `name` alone means on the gateway; None: none was promoted, and it means the newest."""
    promotions: int = 0
    """How many promotions there were until now, those that were taken back included."""
    candidate: Candidate | None = None
    """The version that answers a share of the new rollouts in place of the promoted one; None: there is none."""
    quarantined: dict[int, str] = Field(default_factory=dict)
    """Versions that cannot be used - damaged, deleted by hand, refused by the engine: number → reason."""

    @property
    def served(self) -> int:
        """The version that `name` alone means on the gateway."""
        return self.latest if self.promoted is None else self.promoted


ExportFormat = Literal["peft", "merged", "gguf"]
"""peft: the adapter in PEFT's format. merged: base model and adapter in one model. gguf: that model in one file for
llama.cpp."""
