"""Chat completion requests: checks them, fills in defaults, and makes the request to the engine."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from trainer_server.gateway.body import check_values
from trainer_server.gateway.chat_body import ChatBody, TextBody, check_media
from trainer_server.gateway.errors import APIError
from trainer_server.gateway.parameters import check_parameters, forwarded_parameters
from trainer_server.wire import Sampling
from trainer_server.wire.completions import effective_temperature
from trainer_server.wire.tool_arguments import complete_calls

_PENALTIES = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked chat request."""

    body: dict[str, Any]
    """What the client sent. Tool calls in it are complete; see `complete_calls`."""
    options: ChatBody
    """The parameters in it, with their defaults."""
    sampling: Sampling
    """Effective sampling parameters, after defaults and overrides."""
    dropped_names: list[str]
    """Parameters that the client sent and that change nothing about the answer."""
    prompt: str | list[int] | None = None
    """The prompt of a text completion, as text or as token ids. None: the prompt is rendered from the messages."""
    note: dict[str, Any] = field(default_factory=dict)
    """What the ledger keeps of the request, besides its parts in `body`."""
    elastic: bool = False
    """Whether a limit of tokens that the context does not leave means: all that it leaves."""

    @property
    def model(self) -> str:
        """The policy, version or base model that the client named."""
        return self.options.model

    @property
    def stream(self) -> bool:
        """Whether the answer is streamed."""
        return self.options.stream

    @property
    def shrinks(self) -> bool:
        """Whether the limit of tokens holds as far as the context allows: that of the server's default, which applies
        where the client names none, and that of an elastic request."""
        return self.elastic or (self.options.max_completion_tokens is None and self.options.max_tokens is None)

    def constraints(self, *, calls: bool) -> list[str]:
        """See Completion.constrained.

        Args:
            calls: Whether the engine answers all requests with tools under a grammar.
        """
        sampling = self.sampling
        reasons = ["grammar"] * (self.options.grammar or (calls and self.options.may_call))
        reasons += ["top_p"] * (sampling.top_p < 1) + ["top_k"] * (sampling.top_k > 0)
        reasons += ["min_p"] * (sampling.min_p > 0)
        if any(getattr(sampling, name) != neutral for name, neutral in _PENALTIES.items()):
            reasons.append("penalties")
        if self.options.logit_bias or self.options.min_tokens:
            reasons.append("logit_bias")
        return reasons

    @property
    def adds_strict(self) -> bool:
        """Whether `upstream` makes tools strict that the client did not: vLLM enforces the schema of a forced tool call
        only if the tool is strict."""
        return self.options.forced_tool and any(
            "strict" not in tool["function"] for tool in self.body.get("tools") or ()
        )

    def upstream(self, adapter: str, *, strict: bool = True) -> dict[str, Any]:
        """The request to an engine; see Engine.chat. It always asks for exact tokens, and for their number.

        Args:
            adapter: What the engine calls the version, or the base model.
            strict: Whether forced tools are made strict; see `adds_strict`.
        """
        parameters = forwarded_parameters(self.body)
        if strict and self.adds_strict:
            parameters["tools"] = [
                {**tool, "function": {"strict": True, **tool["function"]}} for tool in parameters["tools"]
            ]
        return {
            **parameters,
            **({"prompt": self.prompt} if self.prompt is not None else {}),
            "model": adapter,
            "n": self.sampling.n,
            "temperature": self.sampling.temperature,
            "max_tokens": self.sampling.max_tokens,
            "logprobs": True,
            "top_logprobs": self.options.top_logprobs,
            "return_token_ids": True,
            **({"stream_options": {"include_usage": True}} if self.stream else {}),
            **({"seed": self.sampling.seed} if self.sampling.seed is not None else {}),
        }

    def ledger_request(self) -> dict[str, Any]:
        """The part of the request that the ledger keeps. A prompt of token ids is in the row already."""
        kept = {key: self.body[key] for key in ("messages", "tools", "tool_choice", "stop") if self.body.get(key)}
        return {**kept, **({"prompt": self.prompt} if isinstance(self.prompt, str) else {}), **self.note}


def parse(
    body: object,
    *,
    default_max_tokens: int,
    temperature: float | None,
    media_domains: Collection[str] = (),
    prompt: str | list[int] | None = None,
) -> ChatRequest:
    """Checks a request's body.

    Args:
        body: What the client sent, read as JSON.
        default_max_tokens: Limit of tokens when the body names none.
        temperature: Overrides the body's temperature; None: no override.
        media_domains: Domains that images and other media may come from.
        prompt: Prompt of a text completion, whose body has no messages.

    Raises:
        APIError: 400; it names the field that is wrong.
    """
    if not isinstance(body, dict):
        raise APIError(400, "the body must be a JSON object")
    dropped = check_parameters(body)
    check_values(body)
    asked = (ChatBody if prompt is None else TextBody).of(body)
    check_media(body.get("messages") or [], media_domains)
    if body.get("messages"):
        body = {**body, "messages": complete_calls(body["messages"])}
    if asked.stream and asked.n > 1:
        raise APIError(400, "streaming with n > 1 is not offered: use n = 1, or do not stream", param="n")
    temperature = asked.temperature if temperature is None else temperature
    limit = asked.max_completion_tokens or asked.max_tokens or default_max_tokens
    sampling = Sampling(
        temperature=effective_temperature(temperature),
        top_p=asked.top_p,
        top_k=max(asked.top_k, 0),
        min_p=asked.min_p,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        repetition_penalty=asked.repetition_penalty,
        max_tokens=limit,
        n=asked.n,
        seed=asked.seed,
    )
    return ChatRequest(body=body, options=asked, sampling=sampling, dropped_names=dropped, prompt=prompt)
