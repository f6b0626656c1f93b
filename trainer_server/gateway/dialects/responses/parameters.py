"""Parameters of the Responses API, and what the gateway does with each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_server.gateway.dialects.base import list_at, object_at, refuse
from trainer_server.gateway.parameters import VLLM, Handling

RESPONSES: dict[str, Handling] = {
    "access_programs": Handling.dropped,
    "background": Handling.refused,
    "background_options": Handling.refused,
    "context_management": Handling.refused,
    "conversation": Handling.refused,
    "image": Handling.dropped,
    "include": Handling.used,
    "input": Handling.used,
    "instructions": Handling.used,
    "max_output_tokens": Handling.used,
    "max_tool_calls": Handling.dropped,
    "metadata": Handling.dropped,
    "model": Handling.used,
    "moderation": Handling.refused,
    "parallel_tool_calls": Handling.used,
    "previous_response_id": Handling.used,
    "prompt": Handling.refused,
    "prompt_cache_key": Handling.dropped,
    "prompt_cache_options": Handling.dropped,
    "prompt_cache_retention": Handling.dropped,
    "reasoning": Handling.used,
    "safety_identifier": Handling.dropped,
    "service_tier": Handling.dropped,
    "store": Handling.dropped,
    "stream": Handling.used,
    "stream_options": Handling.dropped,
    "temperature": Handling.used,
    "text": Handling.used,
    "tool_choice": Handling.used,
    "tools": Handling.used,
    "top_logprobs": Handling.used,
    "top_p": Handling.used,
    "truncation": Handling.used,
    "user": Handling.dropped,
}
"""All parameters of `responses.create` in OpenAI's Python SDK. A test fails when the SDK has others."""

EXTRA: dict[str, Handling] = {
    **dict.fromkeys(VLLM, Handling.forwarded),
    "frequency_penalty": Handling.forwarded,
    "logit_bias": Handling.forwarded,
    "presence_penalty": Handling.forwarded,
    "seed": Handling.forwarded,
    "stop": Handling.forwarded,
}
"""Parameters of chat completions that this API lacks. Clients send them by `extra_body`."""

REMEDIES = {
    "background": "answers are not kept for later here; send the request without it, and wait for the answer",
    "background_options": "answers are not kept for later here; send the request without it",
    "context_management": "nothing is cut from the conversation here; shorten it in the agent",
    "conversation": "no conversations are kept here; send the messages, or `previous_response_id`",
    "moderation": "no moderation model is served here; moderate inputs and answers in the agent",
    "prompt": "no prompt templates are kept here; send `instructions` and `input`",
}


def tools(value: object) -> list[dict[str, Any]]:
    """Translates `tools`.

    Raises:
        APIError: 400 for a tool that is no function: only the client can run its tools.
    """
    return [_tool(object_at(tool, f"tools.{at}"), f"tools.{at}") for at, tool in enumerate(list_at(value, "tools"))]


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind != "function":
        refuse(
            where,
            f"this server runs no tool of type {kind!r:.50}: give the agent a tool of type `function` that does it",
            unsupported=True,
        )
    if tool.get("defer_loading"):
        refuse(
            f"{where}.defer_loading",
            "no tools are searched here; send the tools that the model may call",
            unsupported=True,
        )
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}}


def tool_choice(value: object) -> object:
    """Translates `tool_choice`.

    Raises:
        APIError: 400 for the choice of a tool that is no function.
    """
    if not isinstance(value, dict):
        return value  # checked with the chat request
    if value.get("type") != "function":
        refuse(
            "tool_choice",
            f'{value.get("type")!r:.50} is not offered: send "auto", "none", "required" or '
            '{"type": "function", "name": …}, and only the tools that may be called',
            unsupported=True,
        )
    return {"type": "function", "function": {"name": value.get("name")}}


def response_format(text: object) -> tuple[dict[str, Any] | None, list[str]]:
    """Translates `text`.

    Returns:
        `response_format` of a chat request, and the names of what is dropped.
    """
    settings = object_at(text, "text")
    if unknown := set(settings) - {"format", "verbosity"}:
        refuse(f"text.{min(unknown)}", "is unknown: send `format` or `verbosity`")
    dropped = ["text.verbosity"] if settings.get("verbosity") is not None else []
    if settings.get("format") is None:
        return None, dropped
    fields = object_at(settings["format"], "text.format")
    if fields.get("type") != "json_schema":
        return {"type": fields.get("type")}, dropped
    schema = {name: value for name, value in fields.items() if name != "type" and value is not None}
    return {"type": "json_schema", "json_schema": schema}, dropped


def reasoning(data: object) -> tuple[str | None, bool, list[str]]:
    """Reads `reasoning`.

    Returns:
        The effort, or None; whether a summary is wanted; and the names of what is dropped.
    """
    settings = object_at(data, "reasoning")
    names = {name for name, value in settings.items() if value is not None}
    summary = settings.get("summary") or settings.get("generate_summary")
    dropped = sorted(f"reasoning.{name}" for name in names - {"effort", "summary", "generate_summary"})
    return settings.get("effort"), summary is not None, dropped


LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"


def include(value: object) -> tuple[bool, list[str]]:
    """Reads `include`.

    Returns:
        Whether log-probabilities are wanted, and the names of what is dropped. Reasoning is always in the answer as
        text, so that its encrypted form adds nothing.

    Raises:
        APIError: 400 for what only tools that the server runs would have.
    """
    names = list_at(value, "include")
    for name in names:
        if name not in (LOGPROBS, _ENCRYPTED):
            refuse(
                "include", f"{name!r:.80} is not offered: no such items are made here; leave it out", unsupported=True
            )
    return LOGPROBS in names, [f"include.{_ENCRYPTED}"] if _ENCRYPTED in names else []
