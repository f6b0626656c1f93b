"""Chat completion requests: checks them, fills in defaults, and makes the request to the engine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer_server.gateway.errors import APIError
from trainer_server.gateway.parameters import check_parameters, forwarded
from trainer_server.wire import Sampling

_PENALTIES = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked chat request."""

    body: dict[str, Any]
    """What the client sent."""
    model: str
    """The policy, version or base model that the client named."""
    stream: bool
    """Whether the answer is streamed."""
    sampling: Sampling
    """Effective sampling parameters, after defaults and overrides."""
    default_max_tokens: bool
    """Whether the client named no limit of tokens. Then the server's default applies, as far as the context allows."""
    wants_logprobs: bool
    """Whether the client asked for log-probabilities."""
    wants_usage: bool
    """Whether the client asked for usage in the stream."""
    constrained: list[str]
    """See Completion.constrained."""
    dropped: list[str]
    """Parameters that the client sent and that change nothing about the answer."""

    def upstream(self, adapter: str) -> dict[str, Any]:
        """The request to an engine; see Engine.chat. It always asks for exact tokens.

        Args:
            adapter: What the engine calls the version, or the base model.
        """
        parameters = forwarded(self.body)
        if _forced(self.body) and parameters.get("tools"):
            # vLLM enforces the schema of a forced tool call only if the tool is strict.
            parameters["tools"] = [_strict(tool) for tool in parameters["tools"]]
        return {
            **parameters,
            "model": adapter,
            "n": self.sampling.n,
            "temperature": self.sampling.temperature,
            "max_tokens": self.sampling.max_tokens,
            "logprobs": True,
            "top_logprobs": self.body.get("top_logprobs") or 0,
            "return_token_ids": True,
            **({"stream_options": {"include_usage": True}} if self.stream else {}),
            **({"seed": self.sampling.seed} if self.sampling.seed is not None else {}),
        }

    def recorded(self) -> dict[str, Any]:
        """The part of the request that the ledger keeps."""
        return {key: self.body[key] for key in ("messages", "tools", "tool_choice", "stop") if self.body.get(key)}


def parse(body: object, *, default_max_tokens: int, temperature: float | None) -> ChatRequest:
    """Checks a request's body.

    Args:
        body: What the client sent, read as JSON.
        default_max_tokens: Limit of tokens when the body names none.
        temperature: Overrides the body's temperature; None: no override.

    Raises:
        APIError: 400; it names the field that is wrong.
    """
    if not isinstance(body, dict):
        raise APIError(400, "the body must be a JSON object")
    dropped = check_parameters(body)
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise APIError(400, "`model` is missing: name a policy (see /v1/models)", param="model")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise APIError(400, "`messages` must be a non-empty list of message objects", param="messages")
    n = _number(body, "n", 1, low=1, high=128, kind=int)
    if (stream := bool(body.get("stream"))) and n > 1:
        raise APIError(400, "streaming with n > 1 is not offered: use n = 1, or do not stream", param="n")
    limits = [
        _number(body, key, None, low=1, kind=int)
        for key in ("max_completion_tokens", "max_tokens")
        if body.get(key) is not None
    ]
    asked_temperature = _number(body, "temperature", 1.0, low=0.0, high=10.0)
    sampling = Sampling(
        temperature=asked_temperature if temperature is None else temperature,
        top_p=_number(body, "top_p", 1.0, low=0.0, high=1.0),
        top_k=max(_number(body, "top_k", 0, low=-1, kind=int), 0),
        min_p=_number(body, "min_p", 0.0, low=0.0, high=1.0),
        presence_penalty=_number(body, "presence_penalty", 0.0, low=-2.0, high=2.0),
        frequency_penalty=_number(body, "frequency_penalty", 0.0, low=-2.0, high=2.0),
        repetition_penalty=_number(body, "repetition_penalty", 1.0, low=0.01),
        max_tokens=limits[0] if limits else default_max_tokens,
        n=n,
        seed=_number(body, "seed", None, kind=int),
    )
    _number(body, "top_logprobs", 0, low=0, high=20, kind=int)
    return ChatRequest(
        body=body,
        model=model,
        stream=stream,
        sampling=sampling,
        default_max_tokens=not limits,
        wants_logprobs=bool(body.get("logprobs")),
        wants_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        constrained=_constraints(body, sampling),
        dropped=dropped,
    )


def header_temperature(headers: Mapping[str, str], name: str) -> float | None:
    """Reads a temperature from a header.

    Args:
        headers: Headers of the request.
        name: Name of the header.

    Returns:
        The temperature; None if the header is missing.

    Raises:
        APIError: 400 for a value that is no number from 0 to 10.
    """
    if (text := headers.get(name)) is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 10.0:
        raise APIError(400, f"header {name}: {text!r} is no temperature between 0 and 10", param=name)
    return value


def _constraints(body: Mapping[str, Any], sampling: Sampling) -> list[str]:
    """Reasons why the sampling distribution is not the policy's own; see Completion.constrained."""
    reasons = []
    kind = (body.get("response_format") or {}).get("type")
    tools = [tool.get("function") for tool in body.get("tools") or () if isinstance(tool, dict)]
    strict = any(isinstance(function, dict) and function.get("strict") for function in tools)
    if _forced(body) or strict or kind in ("json_schema", "json_object") or body.get("structured_outputs"):
        reasons.append("grammar")
    reasons += ["top_p"] * (sampling.top_p < 1) + ["top_k"] * (sampling.top_k > 0) + ["min_p"] * (sampling.min_p > 0)
    if any(getattr(sampling, name) != neutral for name, neutral in _PENALTIES.items()):
        reasons.append("penalties")
    if body.get("logit_bias") or body.get("min_tokens"):
        reasons.append("logit_bias")
    return reasons


def _forced(body: Mapping[str, Any]) -> bool:
    """Whether the answer must be a tool call."""
    return body.get("tool_choice") == "required" or isinstance(body.get("tool_choice"), dict)


def _strict(tool: Any) -> Any:
    """The tool with `strict` set to True, unless it sets `strict` itself."""
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
        return tool
    return {**tool, "function": {"strict": True, **tool["function"]}}


def _number(
    body: Mapping[str, Any],
    key: str,
    default: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    kind: type = float,
) -> Any:
    value = body.get(key)
    if value is None:
        return default
    right_type = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    if not right_type or not low <= value <= high:
        bounds = f" between {low:g} and {high:g}" if math.isfinite(low + high) else f" of at least {low:g}"
        name = "an integer" if kind is int else "a number"
        raise APIError(400, f"`{key}` must be {name}{bounds}, not {value!r}", param=key)
    return kind(value)
