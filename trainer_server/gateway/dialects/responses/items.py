"""`input` of the Responses API as messages of a chat request.

A model's turn is several items there: its reasoning, its text, and each tool call. It becomes the one assistant message
that a chat client would send, so that the prompt goes on exactly where the model's turn ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainer_server.gateway.dialects.base import content_of, list_at, object_at, refuse, text_at

_ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
"""Chat templates of open models know no role `developer`; most leave its messages out without a word."""
_ITEM_ID = re.compile(r"(?:msg|rs|fc)_([0-9a-f]{32})(?:_\d+)?")
_HOSTED = (
    "only messages, reasoning, function calls and their outputs can be rendered here; leave the item out, or send what "
    "it says as a message"
)


class _Turn:
    """One turn of the model: items that follow one another."""

    def __init__(self, source: str | None) -> None:
        self.source = source
        self.message: dict[str, Any] = {"role": "assistant", "content": None}
        self._parts: dict[str, list[str]] = {}

    def add(self, name: str, text: str) -> None:
        """Adds text to a field of the message. The field has all of it when the turn is over: to make it longer with
        each item would take the square of their number."""
        parts = self._parts.setdefault(name, [self.message.get(name) or ""])
        parts.append(text)
        self.message[name] = self.message.get(name) or ""

    def end(self) -> None:
        """Writes the texts into the message."""
        self.message |= {name: "".join(parts) for name, parts in self._parts.items()}
        self._parts.clear()

    def takes(self, kind: str, source: str | None) -> bool:
        """Whether an item belongs to this turn: it has the same origin, or it may follow what is there."""
        if source is not None and self.source is not None:
            return source == self.source
        begun = self.message["content"] is not None or "tool_calls" in self.message
        return kind == "function_call" or not (begun or (kind == "reasoning" and "reasoning" in self.message))


class Items:
    """Translates items one by one."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._turn: _Turn | None = None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages so far."""
        if self._turn is not None:
            self._turn.end()
        return self._messages

    def add_input(self, value: object) -> None:
        """Adds `input`: a text, or a list of items.

        Raises:
            APIError: 400 for items that cannot be translated.
        """
        if isinstance(value, str):
            self._add({"role": "user", "content": value})
            return
        for at, item in enumerate(list_at(value, "input")):
            self._add_item(object_at(item, f"input.{at}"), f"input.{at}")

    def add_system(self, value: object, where: str) -> None:
        """Adds `instructions`: a text, or a list of items."""
        if isinstance(value, str):
            self._add({"role": "system", "content": value})
            return
        for at, item in enumerate(list_at(value, where)):
            self._add_item(object_at(item, f"{where}.{at}"), f"{where}.{at}")

    def add_turn(self, message: Mapping[str, Any], source: str) -> None:
        """Adds an answer of the ledger, of the response `resp_<source>`."""
        turn = self._assistant("message", source).message
        turn.update({name: value for name, value in message.items() if name in ("content", "tool_calls") and value})
        if reasoning := message.get("reasoning") or message.get("reasoning_content"):
            turn["reasoning"] = reasoning

    def _add(self, message: dict[str, Any]) -> None:
        if self._turn is not None:
            self._turn.end()
        self._turn = None
        self._messages.append(message)

    def _assistant(self, kind: str, source: str | None) -> _Turn:
        """The turn that an item belongs to."""
        if self._turn is None or not self._turn.takes(kind, source):
            turn = _Turn(source)
            self._add(turn.message)
            self._turn = turn
        self._turn.source = self._turn.source or source
        return self._turn

    def _add_item(self, item: Mapping[str, Any], where: str) -> None:
        kind = item.get("type") or ("message" if "role" in item else None)
        source = match[1] if (match := _ITEM_ID.fullmatch(str(item.get("id")))) else None
        if kind == "message":
            self._add_message(item, source, where)
        elif kind == "reasoning":
            self._add_reasoning(item, source, where)
        elif kind == "function_call":
            call = {"name": text_at(item.get("name"), f"{where}.name")}
            call["arguments"] = text_at(item.get("arguments"), f"{where}.arguments")
            entry = {"id": text_at(item.get("call_id"), f"{where}.call_id"), "type": "function", "function": call}
            self._assistant(kind, source).message.setdefault("tool_calls", []).append(entry)
        elif kind == "function_call_output":
            content = self._content(item.get("output"), f"{where}.output")
            call_id = text_at(item.get("call_id"), f"{where}.call_id")
            self._add({"role": "tool", "tool_call_id": call_id, "content": content})
        elif kind == "item_reference":
            refuse(where, "items are not kept here: send the item itself, or `previous_response_id`", unsupported=True)
        else:
            refuse(f"{where}.type", f"{kind!r:.50}: {_HOSTED}", unsupported=True)

    def _add_message(self, item: Mapping[str, Any], source: str | None, where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            refuse(f"{where}.role", f"must be one of {', '.join(_ROLES)}, not {role!r:.50}")
        if role != "assistant":
            self._add({"role": _ROLES[role], "content": self._content(item.get("content"), f"{where}.content")})
            return
        content = self._content(item.get("content"), f"{where}.content")
        if not isinstance(content, str):
            if any(part["type"] != "text" for part in content):
                refuse(f"{where}.content", "what the model said can only be text")
            content = "".join(part["text"] for part in content)
        self._assistant("message", source).add("content", content)

    def _add_reasoning(self, item: Mapping[str, Any], source: str | None, where: str) -> None:
        parts = item.get("content") or item.get("summary") or []
        texts = [
            text_at(object_at(part, f"{where}.content.{at}").get("text"), f"{where}.content.{at}.text")
            for at, part in enumerate(list_at(parts, f"{where}.content"))
        ]
        if not texts and item.get("encrypted_content"):
            refuse(
                f"{where}.encrypted_content",
                "no model here can read it: send the reasoning as text, or leave the item out",
                unsupported=True,
            )
        if texts:
            self._assistant("reasoning", source).add("reasoning", "".join(texts))

    def _content(self, value: object, where: str) -> str | list[dict[str, Any]]:
        if isinstance(value, str):
            return value
        parts = [
            self._part(object_at(part, f"{where}.{at}"), f"{where}.{at}")
            for at, part in enumerate(list_at(value, where))
        ]
        return content_of(parts)

    def _part(self, part: Mapping[str, Any], where: str) -> dict[str, Any]:
        kind = part.get("type")
        if kind in ("input_text", "output_text", "text", "summary_text"):
            return {"type": "text", "text": text_at(part.get("text"), f"{where}.text")}
        if kind == "refusal":
            return {"type": "text", "text": text_at(part.get("refusal"), f"{where}.refusal")}
        if kind == "input_image" and part.get("image_url") is not None:
            url: dict[str, Any] = {"url": text_at(part["image_url"], f"{where}.image_url")}
            if part.get("detail") is not None:
                url["detail"] = part["detail"]
            return {"type": "image_url", "image_url": url}
        if kind == "input_audio":
            return {"type": "input_audio", "input_audio": object_at(part.get("input_audio"), f"{where}.input_audio")}
        if kind in ("input_image", "input_file"):
            refuse(
                where,
                "no files are kept or read here: send an image as a `data:` URL in `image_url`, and a file's text as "
                "`input_text`",
                unsupported=True,
            )
        refuse(f"{where}.type", f"{kind!r:.50} is not offered: send `input_text` or `input_image`", unsupported=True)
