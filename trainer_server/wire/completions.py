"""What the ledger knows about one completion."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class CompletionStatus(StrEnum):
    """How a completion ended. Only `complete` ones are ever trained."""

    complete = "complete"
    aborted = "aborted"  # the client went away
    failed = "failed"  # the engine died or answered without tokens


class Sampling(BaseModel):
    """The *effective* sampling parameters: after defaults and overrides, as the engine got them."""

    model_config = ConfigDict(extra="allow")

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: no limit."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    n: int = 1
    seed: int | None = None
    """As asked for. Not forwarded to a CPU engine, which a seed can kill."""


class Completion(BaseModel):
    """One answer of a model, with the exact tokens of the place that sampled them."""

    id: str
    """Globally unique. Choice i > 0 of a request with n > 1 has the id `<id of the answer>.<i>`."""
    created: float
    """Unix time, seconds."""
    server_id: str
    base_model: str
    tokenizer: str
    """Fingerprint (sha256, hex) of tokenizer and chat template."""
    policy: str | None
    """None: the base model itself, which is never trained."""
    version: int | None
    rollout: str | None = None
    status: CompletionStatus
    finish_reason: str | None = None
    sampling: Sampling
    constrained: list[str] = Field(default_factory=list)
    """Why the sampling log-probs are not the policy's: any of `grammar`, `top_p`, `top_k`, `min_p`, `penalties`,
    `logit_bias`. Empty for plain sampling."""
    dropped: list[str] = Field(default_factory=list)
    """Parameters of the request that changed nothing about the answer, such as `user` or `verbosity`: the engine did
    not get them."""
    prompt_token_ids: list[int] = Field(default_factory=list)
    token_ids: list[int] = Field(default_factory=list)
    """Sampled tokens, the end-of-sequence token included when it was sampled."""
    logprobs: list[float] = Field(default_factory=list)
    """One per sampled token: log-probability under the processed distribution (temperature applied).
    Same length as token_ids."""
    request: dict[str, Any] = Field(default_factory=dict)
    """messages, tools and tool_choice as the client sent them."""
    message: dict[str, Any] | None = None
    """The assistant message as answered."""

    @property
    def greedy(self) -> bool:
        """Temperature 0: an evaluation, never trained."""
        return self.sampling.temperature == 0.0

    @property
    def truncated(self) -> bool:
        """Cut by the limit of tokens. vLLM says `tool_calls` of a call that was cut, too."""
        limit = self.sampling.max_tokens
        return self.finish_reason == "length" or (limit is not None and len(self.token_ids) >= limit)
