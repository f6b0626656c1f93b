"""Requests of Anthropic's Messages API as chat requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trainer_server.gateway.client_api import (
    ClientAPI,
    content_of,
    object_at,
    objects_at,
    refuse,
    refuse_deferred,
    text_at,
)
from trainer_server.gateway.messages.answer import MessageStream, message_of
from trainer_server.gateway.parameters import VLLM, check_names, handling_of

_REMEDIES = {
    "container": "this server runs no code and has no skills; give the agent a tool that does it",
    "context_management": "nothing is cut from the conversation here; shorten it in the agent",
    "mcp_servers": "this server calls no MCP servers; give the agent their tools",
}

PARAMETERS = handling_of(
    use=(
        "max_tokens messages model output_config stop_sequences stream system temperature thinking "
        "tool_choice tools top_k top_p"
    ),
    drop="cache_control diagnostics inference_geo metadata service_tier speed user_profile_id workspace_id",
    refuse=_REMEDIES,
)
"""All parameters of `messages.create` in Anthropic's Python SDK, and those of its beta that agents send. A test fails
when the SDK has others."""

_EXTRA = VLLM | handling_of(
    forward="frequency_penalty logit_bias presence_penalty reasoning_effort response_format seed",
)
"""Parameters of chat completions that this API lacks. Clients send them by `extra_body`."""


_SAME = {
    "model": "model",
    "stream": "stream",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_tokens": "max_tokens",
    "stop_sequences": "stop",
}
"""Parameters that have the same values in a chat request: their names here and there."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_TOOL_FIELDS = ("cache_control", "input_examples", "eager_input_streaming", "allowed_callers")
"""Fields of tools that change nothing about the answer."""
_BLOCK_FIELDS = ("cache_control", "citations")
"""The same of blocks."""


class MessagesExchange:
    """A request for a message, as a chat request.

    Every request of this API has `max_tokens`, and clients that do not care send much more than a small model's
    context. So it is elastic.

    Args:
        body: The request.
    """

    prompt: str | list[int] | None = None
    elastic = True
    names: Mapping[str, str] = MappingProxyType({"stop": "stop_sequences", "reasoning_effort": "output_config"})

    def __init__(self, body: Mapping[str, Any]) -> None:
        names = check_names(body, {**_EXTRA, **PARAMETERS}, _REMEDIES)
        fields = {name: value for name, value in body.items() if value is not None}
        chat = {name: fields[name] for name in _EXTRA if name in fields}
        chat |= {theirs: fields[ours] for ours, theirs in _SAME.items() if ours in fields}
        conversation = _Conversation()
        if "system" in fields:
            conversation.add_system(fields["system"], "system")
        conversation.add(fields.get("messages", []))
        chat["messages"] = conversation.messages
        dropped_names = {*names, *conversation.dropped_names}
        if fields.get("tools"):
            chat["tools"] = _tools(fields["tools"], dropped_names)
            if "tool_choice" in fields:
                chat |= _tool_choice(fields["tool_choice"])
        if "thinking" in fields:
            thinking = object_at(fields["thinking"], "thinking")
            dropped_names |= {f"thinking.{name}" for name in _names(thinking) - {"type"}}
            if (thinks := {"enabled": True, "disabled": False}.get(str(thinking.get("type")))) is not None:
                chat["chat_template_kwargs"] = {"enable_thinking": thinks, **chat.get("chat_template_kwargs", {})}
        if "output_config" in fields:
            chat |= _output_config(fields["output_config"], dropped_names)
        _continue_last(chat)
        self.chat, self.dropped_names = chat, sorted(dropped_names)
        self.note: dict[str, Any] = {"api": "messages"}
        self.stream = MessageStream()

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """A chat completion as a message."""
        return message_of(answer)


def _names(settings: Mapping[str, Any]) -> set[str]:
    return {name for name, value in settings.items() if value is not None}


def _tools(value: object, dropped_names: set[str]) -> list[dict[str, Any]]:
    """Translates `tools`, and adds names of fields to `dropped_names`.

    Raises:
        APIError: 400 for tools that Anthropic runs, or whose schema only its models know.
    """
    tools = []
    for where, tool in objects_at(value, "tools"):
        if tool.get("type") not in (None, "custom"):
            refuse(
                f"{where}.type",
                f"{tool['type']!r:.50} is a tool of Anthropic's: give the agent a tool of its own that does it, with "
                "`name`, `description` and `input_schema`",
                unsupported=True,
            )
        refuse_deferred(tool, where)
        schema = object_at(tool.get("input_schema"), f"{where}.input_schema")
        function = {"name": tool.get("name"), "parameters": schema}
        function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
        tools.append({"type": "function", "function": function})
        dropped_names |= {f"tools.{name}" for name in _TOOL_FIELDS if tool.get(name) is not None}
    return tools


def _tool_choice(value: object) -> dict[str, Any]:
    """Translates `tool_choice` to `tool_choice` and `parallel_tool_calls`."""
    choice = object_at(value, "tool_choice")
    parallel = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    if choice.get("type") == "tool":
        return {"tool_choice": {"type": "function", "function": {"name": choice.get("name")}}, **parallel}
    if choice.get("type") not in _CHOICES:
        refuse("tool_choice.type", f"must be auto, any, tool or none, not {choice.get('type')!r:.50}")
    return {"tool_choice": _CHOICES[choice["type"]], **parallel}


def _output_config(value: object, dropped_names: set[str]) -> dict[str, Any]:
    """Translates `output_config` to `reasoning_effort` and `response_format`, and adds names to `dropped_names`."""
    settings = object_at(value, "output_config")
    chat: dict[str, Any] = {}
    if settings.get("effort") is not None:
        chat["reasoning_effort"] = settings["effort"]
    if settings.get("format") is not None:
        form = object_at(settings["format"], "output_config.format")
        if form.get("type") != "json_schema":
            refuse("output_config.format.type", f"must be json_schema, not {form.get('type')!r:.50}")
        schema = object_at(form.get("schema"), "output_config.format.schema")
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
    dropped_names |= {f"output_config.{name}" for name in _names(settings) - {"effort", "format"}}
    return chat


def _continue_last(chat: dict[str, Any]) -> None:
    """Has the model go on with the last message, where that is its own, as this API does."""
    last = chat["messages"][-1] if chat["messages"] else {}
    if last.get("role") != "assistant":
        return
    if last.get("tool_calls"):
        where = f"messages.{len(chat['messages']) - 1}"
        refuse(where, "the last message calls a tool: send the tool's result after it")
    chat.setdefault("continue_final_message", True)
    chat.setdefault("add_generation_prompt", False)


class _Conversation:
    """Translates `system` and `messages`.

    Attributes:
        messages: The messages so far.
        dropped_names: Names of fields that the messages do not have.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.dropped_names: set[str] = set()

    def add_system(self, value: object, where: str) -> None:
        """Adds `system`: a text, or a list of text blocks."""
        content = self._content(value, where)
        if content:
            self.messages.append({"role": "system", "content": content})

    def add(self, value: object) -> None:
        """Adds `messages`.

        Raises:
            APIError: 400 for blocks that cannot be translated.
        """
        add = {"user": self._add_user, "assistant": self._add_assistant, "system": self.add_system}
        for where, message in objects_at(value, "messages"):
            role = message.get("role")
            if not isinstance(role, str) or role not in add:
                refuse(f"{where}.role", f"must be user, assistant or system, not {role!r:.50}")
            add[role](message.get("content"), f"{where}.content")

    def _add_user(self, content: object, where: str) -> None:
        """A user's blocks: results of tools are messages of their own, in the order of the blocks."""
        if isinstance(content, str):
            self.messages.append({"role": "user", "content": content})
            return
        parts: list[dict[str, Any]] = []
        for path, block in self._blocks(content, where):
            if block.get("type") != "tool_result":
                parts.append(self._part(block, path))
                continue
            self._flush(parts)
            if block.get("is_error"):
                self.dropped_names.add("tool_result.is_error")
            result = block.get("content")
            result = "" if result is None else self._content(result, f"{path}.content")
            call_id = text_at(block.get("tool_use_id"), f"{path}.tool_use_id")
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
        self._flush(parts)

    def _flush(self, parts: list[dict[str, Any]]) -> None:
        if parts:
            self.messages.append({"role": "user", "content": content_of(parts.copy())})
            parts.clear()

    def _add_assistant(self, content: object, where: str) -> None:
        if isinstance(content, str):
            self.messages.append({"role": "assistant", "content": content})
            return
        texts, thoughts, calls = [], [], []
        for path, block in self._blocks(content, where):
            kind = block.get("type")
            if kind == "text":
                texts.append(text_at(block.get("text"), f"{path}.text"))
            elif kind == "thinking":
                thoughts.append(text_at(block.get("thinking"), f"{path}.thinking"))
            elif kind == "tool_use":
                calls.append(_tool_call(block, path))
            else:
                refuse(
                    f"{path}.type",
                    f"{kind!r:.50} cannot be rendered here, for it is not what a model of this server said: send text, "
                    "thinking and tool_use blocks only",
                    unsupported=True,
                )
        message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts else None}
        if thoughts:
            message["reasoning"] = "".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        self.messages.append(message)

    def _content(self, value: object, where: str) -> str | list[dict[str, Any]]:
        if isinstance(value, str):
            return value
        return content_of([self._part(block, path) for path, block in self._blocks(value, where)])

    def _blocks(self, value: object, where: str) -> list[tuple[str, dict[str, Any]]]:
        blocks = list(objects_at(value, where))
        self.dropped_names |= {name for _, block in blocks for name in _BLOCK_FIELDS if block.get(name) is not None}
        return blocks

    def _part(self, block: Mapping[str, Any], where: str) -> dict[str, Any]:
        kind = block.get("type")
        if kind == "text":
            return {"type": "text", "text": text_at(block.get("text"), f"{where}.text")}
        if kind == "image":
            return {"type": "image_url", "image_url": {"url": _image(block.get("source"), f"{where}.source")}}
        refuse(f"{where}.type", f"{kind!r:.50} is not offered: send what it says as a text block", unsupported=True)


def _tool_call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    arguments = json.dumps(object_at(block.get("input"), f"{where}.input"), ensure_ascii=False)
    function = {"name": text_at(block.get("name"), f"{where}.name"), "arguments": arguments}
    return {"id": text_at(block.get("id"), f"{where}.id"), "type": "function", "function": function}


def _image(value: object, where: str) -> str:
    source = object_at(value, where)
    kind = source.get("type")
    if kind == "base64":
        media_type = text_at(source.get("media_type"), f"{where}.media_type")
        return f"data:{media_type};base64,{text_at(source.get('data'), f'{where}.data')}"
    if kind == "url":
        return text_at(source.get("url"), f"{where}.url")
    refuse(f"{where}.type", f"{kind!r:.50}: no files are kept here; send the image as base64", unsupported=True)


MESSAGES = ClientAPI(lambda body, earlier: MessagesExchange(body))
"""`/v1/messages`."""
