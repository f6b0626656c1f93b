"""Completions, as the ledger records them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from trainer_server.wire.bounds import MOST_ROWS, ListOf

MIN_TEMPERATURE = 0.01
"""The lowest temperature at which is sampled, but for 0. vLLM raises lower ones to this one, because they overflow; so
the gateway does it, for all engines: ledger and trainer must know the temperature that was used."""


def effective_temperature(temperature: float) -> float:
    """The temperature at which the gateway samples where a request asks for this one."""
    return max(temperature, MIN_TEMPERATURE) if temperature else 0.0


class CompletionStatus(StrEnum):
    """How a completion ended. Only completions with status `complete` are trained, unless they are `untrainable`."""

    complete = "complete"
    aborted = "aborted"
    """The client disconnected."""
    failed = "failed"
    """The engine died, or answered without exact tokens."""
    refused = "refused"
    """The engine is well and took no such request: it is longer than the context, for example."""


class Continuation(StrEnum):
    """How a prompt that continues an earlier turn of its conversation was made of that turn's tokens.

    A turn is a completion together with its prompt. Every member but `extended` and `spliced` is a reason why the
    prompt was rendered anew although it differs from what was sampled.
    """

    extended = "extended"
    """The chat template renders exactly the earlier turn's tokens, and goes on."""
    spliced = "spliced"
    """The prompt is the earlier turn's tokens, followed by what the template renders after them."""
    off = "off"
    """The server splices no prompts (`serve --splice off`)."""
    thoughts = "thoughts"
    """The template or the client leaves thoughts of earlier turns out (`serve --splice thoughts` keeps them)."""
    cut = "cut"
    """The earlier answer does not end with a token that ends a turn: a limit or a stop text cut it."""
    changed = "changed"
    """The template renders what stands before the earlier answer otherwise than it did then: other tools, or text that
    depends on later messages."""
    unlike = "unlike"
    """The template leaves text of the earlier answer out, or ends it otherwise than the policy did."""
    ambiguous = "ambiguous"
    """Several answers with other tokens are the same message."""
    forced = "forced"
    """The earlier answer is a forced tool call, which engines write in a form of their own."""
    media = "media"
    """The messages have images or other media."""
    prefill = "prefill"
    """The request continues its last message, or asks for no generation prompt."""
    unsupported = "unsupported"
    """The engine cannot render a prompt without answering it, or does not take tokens as a prompt."""
    refused = "refused"
    """The engine refused the spliced prompt, for example because it is longer than the rendered one and too long."""


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
    model: str | None = None
    """The model that the request named: a policy (`agent`), a version (`agent@3`), or the base model. None: a row of
    another ledger that does not say."""
    rollout: str | None = None
    """Id of the rollout; None: the request belonged to none."""
    status: CompletionStatus
    untrainable: str | None = None
    """Why the completion is never trained although it is complete: tokens of it are missing, or its prompt has images
    or other media. None: it may be."""
    error: str | None = None
    """Why there is no whole answer, in the words that the client got; None for a complete one, and where nobody was
    left to hear them."""
    finish_reason: str | None = None
    """Why the answer ended: `stop`, `length` or `tool_calls`, for example; None where it did not end."""
    sampling: Sampling
    constrained: ListOf[str] = Field(default_factory=list)
    """Reasons why the sampling log-probs are not the policy's own: any of `grammar`, `top_p`, `top_k`, `min_p`,
    `penalties`, `logit_bias`. Empty for plain sampling."""
    dropped: ListOf[str] = Field(default_factory=list)
    """Parameters of the request that the engine did not get, because they change nothing about the answer: `user` or
    `verbosity`, for example."""
    prompt_token_ids: ListOf[int] = Field(default_factory=list)
    """Tokens of the prompt."""
    token_ids: ListOf[int] = Field(default_factory=list)
    """Sampled tokens, the end-of-sequence token included when it was sampled."""
    logprobs: ListOf[float] = Field(default_factory=list)
    """Log-probability of each sampled token under the processed distribution (temperature applied). Same length as
    token_ids, unless the completion is `untrainable`."""
    routed_experts: str | None = None
    """The experts that a mixture chose for each token of the prompt and the answer but the last: tokens × layers ×
    experts of a token, as an .npy file of uint8 or uint16, compressed (zlib), in base64. None: the engine returns none,
    as it does in streams."""
    hint: str | None = None
    """The hint that the server put into the prompt, because its rollout was registered with it. `request` and
    `prompt_token_ids` have it too. Such a completion is never trained: without the hint, the policy would not have said
    it. None: there is no hint."""
    request: dict[str, Any] = Field(default_factory=dict)
    """`messages`, `tools`, `tool_choice` and `stop`, in the form of a chat request; or the text that was the `prompt`
    of a text completion. `api` names the API that was asked, unless it was chat completions: `responses`, `messages` or
    `completions`. `instructions` is the number of messages that are a response's instructions. A refused
    request has the beginnings of its texts."""
    message: dict[str, Any] | None = None
    """The assistant message; None where the engine sent nothing."""
    continues: str | None = None
    """Id of the completion whose messages and answer are the beginning of this request's messages, the longest such one
    of the same rollout (or of requests without a rollout, where this one has none); None: none is known."""
    continuation: Continuation | None = None
    """How the prompt was made of that completion's tokens. None if and only if `continues` is."""

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

    completions: ListOf[Completion] = Field(max_length=MOST_ROWS)


class Added(BaseModel):
    """What became of completions that were brought from another server."""

    added: int
    """Rows that are new here."""
    known: int
    """Rows that were here already, with the same content."""


@dataclass(frozen=True, slots=True)
class PrefixDrift:
    """How much of what was sampled the next prompts do not have."""

    sampled: int
    """Tokens that were sampled by completions which another one continues."""
    missing: int
    """Those of them that the next prompt does not have where they were sampled, after the same tokens."""

    @property
    def share(self) -> float | None:
        """The metric `prefix_drift`; None where no completion is continued."""
        return self.missing / self.sampled if self.sampled else None


def prefix_drift(completions: Iterable[Completion]) -> PrefixDrift:
    """Compares what completions sampled with the next prompts of their conversations.

    The next prompt of a completion is that of the earliest completion which `continues` it. A sampled token is in it if
    prompt and sampled tokens up to and including this one are a prefix of it; only then can a prefix cache and the
    trainer's prefix tree share it. Completions that nothing continues do not count.

    Args:
        completions: Of one trajectory, of a step, or of any number of them.
    """
    by_id = {completion.id: completion for completion in completions}
    following: dict[str, Completion] = {}
    for completion in sorted(by_id.values(), key=lambda completion: completion.created):
        if completion.continues is not None and completion.continues in by_id:
            following.setdefault(completion.continues, completion)
    sampled = missing = 0
    for id_, later in following.items():
        earlier = by_id[id_]
        turn = earlier.prompt_token_ids + earlier.token_ids
        pairs = zip(turn, later.prompt_token_ids, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        sampled += len(earlier.token_ids)
        missing += len(earlier.token_ids) - max(0, shared - len(earlier.prompt_token_ids))
    return PrefixDrift(sampled, missing)


CHAT = "chatcmpl-"
"""How ids in the ledger begin. The other APIs of the gateway have beginnings of their own; what follows is the same, so
that the id of every answer leads to its completion."""
RESPONSE = "resp_"
MESSAGE = "msg_"
TEXT = "cmpl-"

_OTHER = re.compile(rf"(?:{RESPONSE}|{MESSAGE}|{TEXT})([0-9a-f]{{32}}(?:\.\d+)?)")
"""OpenAI's and Anthropic's own ids have other lengths, or other characters."""


def answer_id(completion_id: str, prefix: str) -> str:
    """The id of a completion in another API. prefix: RESPONSE, MESSAGE or TEXT."""
    return prefix + completion_id.removeprefix(CHAT)


def ledger_id(value: object) -> str | None:
    """The id of the ledger's completion that an answer's id leads to; None for an id of another server.

    Args:
        value: Id of an answer of any of the APIs.
    """
    if not isinstance(value, str):
        return None
    if value.startswith(CHAT):
        return value
    return CHAT + match[1] if (match := _OTHER.fullmatch(value)) else None
