"""`system` and `messages` of Anthropic's API as messages of a chat request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainer_server.gateway.dialects.base import content_of, join_texts, list_at, object_at, refuse, text_at

_IGNORED = ("cache_control", "citations")


class Blocks:
    """Translates messages one by one.

    Attributes:
        messages: The messages so far.
        dropped: Names of fields that the messages do not have.
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
        for at, message in enumerate(list_at(value, "messages")):
            where = f"messages.{at}"
            role = object_at(message, where).get("role")
            if role == "user":
                self._add_user(message.get("content"), f"{where}.content")
            elif role == "assistant":
                self._add_assistant(message.get("content"), f"{where}.content")
            elif role == "system":
                self.add_system(message.get("content"), f"{where}.content")
            else:
                refuse(f"{where}.role", f"must be user, assistant or system, not {role!r:.50}")

    def _add_user(self, content: object, where: str) -> None:
        """A user's blocks: results of tools are messages of their own, in the order of the blocks."""
        if isinstance(content, str):
            self.messages.append({"role": "user", "content": content})
            return
        parts: list[dict[str, Any]] = []
        for at, block in enumerate(self._blocks(content, where)):
            here = f"{where}.{at}"
            if block.get("type") != "tool_result":
                parts.append(self._part(block, here))
                continue
            self._flush(parts)
            if block.get("is_error"):
                self.dropped_names.add("tool_result.is_error")
            content_block = block.get("content")
            result = "" if content_block is None else self._content(content_block, f"{here}.content")
            call_id = text_at(block.get("tool_use_id"), f"{here}.tool_use_id")
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
        for at, block in enumerate(self._blocks(content, where)):
            here, kind = f"{where}.{at}", block.get("type")
            if kind == "text":
                texts.append(text_at(block.get("text"), f"{here}.text"))
            elif kind == "thinking":
                thoughts.append(text_at(block.get("thinking"), f"{here}.thinking"))
            elif kind == "tool_use":
                calls.append(_tool_call(block, here))
            else:
                refuse(
                    f"{here}.type",
                    f"{kind!r:.50} cannot be rendered here, for it is not what a model of this server said: send text, "
                    "thinking and tool_use blocks only",
                    unsupported=True,
                )
        message: dict[str, Any] = {"role": "assistant", "content": join_texts(texts)}
        if thoughts:
            message["reasoning"] = "".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        self.messages.append(message)

    def _content(self, value: object, where: str) -> str | list[dict[str, Any]]:
        if isinstance(value, str):
            return value
        return content_of([self._part(block, f"{where}.{at}") for at, block in enumerate(self._blocks(value, where))])

    def _blocks(self, value: object, where: str) -> list[dict[str, Any]]:
        blocks = [object_at(block, f"{where}.{at}") for at, block in enumerate(list_at(value, where))]
        self.dropped_names |= {name for block in blocks for name in _IGNORED if block.get(name) is not None}
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
    if source.get("type") == "base64":
        kind, data = (
            text_at(source.get("media_type"), f"{where}.media_type"),
            text_at(source.get("data"), f"{where}.data"),
        )
        return f"data:{kind};base64,{data}"
    if source.get("type") == "url":
        return text_at(source.get("url"), f"{where}.url")
    refuse(
        f"{where}.type",
        f"{source.get('type')!r:.50}: no files are kept here; send the image as base64",
        unsupported=True,
    )
