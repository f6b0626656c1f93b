"""Parameters of Anthropic's Messages API, and what the gateway does with each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_server.gateway.dialects.base import list_at, object_at, refuse
from trainer_server.gateway.parameters import VLLM, Handling

MESSAGES: dict[str, Handling] = {
    "cache_control": Handling.dropped,
    "container": Handling.refused,
    "context_management": Handling.refused,
    "diagnostics": Handling.dropped,
    "inference_geo": Handling.dropped,
    "max_tokens": Handling.used,
    "mcp_servers": Handling.refused,
    "messages": Handling.used,
    "metadata": Handling.dropped,
    "model": Handling.used,
    "output_config": Handling.used,
    "service_tier": Handling.dropped,
    "speed": Handling.dropped,
    "stop_sequences": Handling.used,
    "stream": Handling.used,
    "system": Handling.used,
    "temperature": Handling.used,
    "thinking": Handling.used,
    "tool_choice": Handling.used,
    "tools": Handling.used,
    "top_k": Handling.used,
    "top_p": Handling.used,
    "user_profile_id": Handling.dropped,
    "workspace_id": Handling.dropped,
}
"""All parameters of `messages.create` in Anthropic's Python SDK, and those of its beta that agents send. A test fails
when the SDK has others."""

EXTRA: dict[str, Handling] = {
    **dict.fromkeys(VLLM, Handling.forwarded),
    "frequency_penalty": Handling.forwarded,
    "logit_bias": Handling.forwarded,
    "presence_penalty": Handling.forwarded,
    "reasoning_effort": Handling.forwarded,
    "response_format": Handling.forwarded,
    "seed": Handling.forwarded,
}
"""Parameters of chat completions that this API lacks. Clients send them by `extra_body`."""

REMEDIES = {
    "container": "this server runs no code and has no skills; give the agent a tool that does it",
    "context_management": "nothing is cut from the conversation here; shorten it in the agent",
    "mcp_servers": "this server calls no MCP servers; give the agent their tools",
}

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def tools(value: object) -> tuple[list[dict[str, Any]], set[str]]:
    """Translates `tools`.

    Returns:
        The tools, and the names of what is dropped.

    Raises:
        APIError: 400 for tools that Anthropic runs, or whose schema only its models know.
    """
    translated, dropped = [], set()
    for at, entry in enumerate(list_at(value, "tools")):
        where = f"tools.{at}"
        tool = object_at(entry, where)
        if tool.get("type") not in (None, "custom"):
            refuse(
                f"{where}.type",
                f"{tool['type']!r:.50} is a tool of Anthropic's: give the agent a tool of its own that does it, with "
                "`name`, `description` and `input_schema`",
                unsupported=True,
            )
        if tool.get("defer_loading"):
            refuse(
                f"{where}.defer_loading",
                "no tools are searched here; send the tools that the model may call",
                unsupported=True,
            )
        function = {
            "name": tool.get("name"),
            "parameters": object_at(tool.get("input_schema"), f"{where}.input_schema"),
        }
        function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
        translated.append({"type": "function", "function": function})
        others = ("cache_control", "input_examples", "eager_input_streaming", "allowed_callers")
        dropped |= {f"tools.{name}" for name in others if tool.get(name) is not None}
    return translated, dropped


def tool_choice(value: object) -> dict[str, Any]:
    """Translates `tool_choice` to `tool_choice` and `parallel_tool_calls`."""
    choice = object_at(value, "tool_choice")
    parallel = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    if choice.get("type") == "tool":
        return {"tool_choice": {"type": "function", "function": {"name": choice.get("name")}}, **parallel}
    if choice.get("type") not in _CHOICES:
        refuse("tool_choice.type", f"must be auto, any, tool or none, not {choice.get('type')!r:.50}")
    return {"tool_choice": _CHOICES[choice["type"]], **parallel}


def thinking(value: object) -> tuple[bool | None, set[str]]:
    """Reads `thinking`.

    Returns:
        Whether the model shall think; None: as it usually does. And the names of what is dropped.
    """
    settings = object_at(value, "thinking")
    dropped = {f"thinking.{name}" for name in set(settings) - {"type"} if settings[name] is not None}
    return {"enabled": True, "disabled": False}.get(str(settings.get("type"))), dropped


def output_config(value: object) -> tuple[dict[str, Any], set[str]]:
    """Translates `output_config` to `reasoning_effort` and `response_format`."""
    settings: Mapping[str, Any] = object_at(value, "output_config")
    chat: dict[str, Any] = {}
    if settings.get("effort") is not None:
        chat["reasoning_effort"] = settings["effort"]
    if settings.get("format") is not None:
        form = object_at(settings["format"], "output_config.format")
        if form.get("type") != "json_schema":
            refuse("output_config.format.type", f"must be json_schema, not {form.get('type')!r:.50}")
        chat["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": object_at(form.get("schema"), "output_config.format.schema")},
        }
    others = set(settings) - {"effort", "format"}
    return chat, {f"output_config.{name}" for name in others if settings[name] is not None}
