"""Completions, as the ledger records them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

MIN_TEMPERATURE = 0.01
"""The lowest temperature at which is sampled, but for 0. vLLM raises lower ones to this one, because they overflow; so
the gateway does it, for all engines: ledger and trainer must know the temperature that was used."""


def effective_temperature(asked: float) -> float:
    """The temperature at which the gateway samples where a request asks for this one."""
    return max(asked, MIN_TEMPERATURE) if asked else 0.0


class CompletionStatus(StrEnum):
    """How a completion ended. Only completions with status `complete` are trained, unless they are `untrainable`."""

    complete = "complete"
    aborted = "aborted"
    """The client disconnected."""
    failed = "failed"
    """The engine died, or answered without exact tokens."""


class Sampling(BaseModel):
    """The *effective* sampling parameters, after defaults and overrides, as the engine got them."""

    model_config = ConfigDict(extra="allow")

    temperature: float = 1.0
    """Never between 0 and 0.01: the gateway raises such temperatures to 0.01, as vLLM would."""
    top_p: float = 1.0
    top_k: int = 0
    """0: no limit."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    """Limit of sampled tokens; None: the context length."""
    n: int = 1
    seed: int | None = None
    """The seed in the request. It is not forwarded to vLLM on CPUs, which seeds can crash."""


class Completion(BaseModel):
    """One answer of a model, with exactly the tokens that the engine sampled."""

    id: str
    """Globally unique. Choice i > 0 of a request with n > 1 has the id `<id of the answer>.<i>`."""
    created: float
    """Unix time, seconds: when it was sampled, or when it arrived here from another server."""
    server_id: str
    """Id of the server that recorded it. Steps train no completion of another server."""
    base_model: str
    """Name of the base model."""
    tokenizer: str
    """Fingerprint (sha256, hex) of tokenizer and chat template."""
    policy: str | None
    """Name of the policy; None: the base model itself, which is never trained."""
    version: int | None
    """Version of the policy; None: the base model."""
    rollout: str | None = None
    """Id of the rollout; None: the request belonged to none."""
    status: CompletionStatus
    untrainable: str | None = None
    """Why the completion is never trained although it is complete: tokens of it are missing. None: it may be."""
    finish_reason: str | None = None
    """Why the answer ended: `stop`, `length` or `tool_calls`, for example; None where it did not end."""
    sampling: Sampling
    constrained: list[str] = Field(default_factory=list)
    """Reasons why the sampling log-probs are not the policy's own: any of `grammar`, `top_p`, `top_k`, `min_p`,
    `penalties`, `logit_bias`. Empty for plain sampling."""
    dropped: list[str] = Field(default_factory=list)
    """Parameters of the request that the engine did not get, because they change nothing about the answer: `user` or
    `verbosity`, for example."""
    prompt_token_ids: list[int] = Field(default_factory=list)
    """Tokens of the prompt."""
    token_ids: list[int] = Field(default_factory=list)
    """Sampled tokens, the end-of-sequence token included when it was sampled."""
    logprobs: list[float] = Field(default_factory=list)
    """Log-probability of each sampled token under the processed distribution (temperature applied). Same length as
    token_ids, unless the completion is `untrainable`."""
    request: dict[str, Any] = Field(default_factory=dict)
    """`messages`, `tools`, `tool_choice` and `stop`, as the client sent them."""
    message: dict[str, Any] | None = None
    """The assistant message; None where the engine sent nothing."""

    @property
    def greedy(self) -> bool:
        """Whether the temperature was 0, as in evaluations. Such completions are never trained."""
        return self.sampling.temperature == 0.0

    @property
    def truncated(self) -> bool:
        """Whether the limit of tokens cut the answer.

        The finish reason alone does not tell: vLLM says `tool_calls` for a tool call that was cut, too.
        """
        limit = self.sampling.max_tokens
        return self.finish_reason == "length" or (limit is not None and len(self.token_ids) >= limit)


class Completions(BaseModel):
    """Body of `POST /api/completions`, and answer of `POST /api/completions/find`."""

    completions: list[Completion]


class Added(BaseModel):
    """What became of completions that were brought from another server."""

    added: int
    """Rows that are new here."""
    known: int
    """Rows that were here already, with the same content."""


class RolloutCalls(BaseModel):
    """What a rollout has asked the gateway for. The server forgets it when the rollout has not called for a while."""

    calls: int = 0
    """Requests that had the rollout's id; 0 also for a rollout that is unknown or forgotten."""
    versions: dict[str, list[int]] = Field(default_factory=dict)
    """The versions that were asked, by policy; without requests to the base model."""
    temperatures: list[float] = Field(default_factory=list)
    """The effective temperatures."""
