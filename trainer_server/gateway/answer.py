"""One choice of a completion while it grows, from chunks or at once."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Answer:
    """One choice while it grows."""

    prompt_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    message: dict[str, Any] | None = None

    def take(self, choice: dict[str, Any], prompt_token_ids: list[int] | None) -> None:
        """Adds the tokens of a choice, whole or a chunk of it."""
        if prompt_token_ids:
            self.prompt_token_ids = prompt_token_ids
        self.token_ids += choice.get("token_ids") or []
        self.logprobs += [entry["logprob"] for entry in (choice.get("logprobs") or {}).get("content") or []]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if delta := choice.get("delta"):
            self.message = merge_delta(self.message or {"role": "assistant", "content": None}, delta)
        elif message := choice.get("message"):
            self.message = message

    @property
    def whole(self) -> bool:
        return bool(self.prompt_token_ids and self.token_ids) and len(self.token_ids) == len(self.logprobs)


def merge_delta(message: dict[str, Any], delta: dict[str, Any]) -> dict[str, Any]:
    """Adds a streamed delta to a message: texts are concatenated, tool calls merged by index."""
    for key in ("content", "reasoning", "reasoning_content"):
        if delta.get(key):
            message[key] = (message.get(key) or "") + delta[key]
    for part in delta.get("tool_calls") or []:
        calls = message.setdefault("tool_calls", [])
        while len(calls) <= part["index"]:
            calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        call, function = calls[part["index"]], part.get("function") or {}
        call["id"] = part.get("id") or call["id"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""
    return message


def as_text(choice: dict[str, Any]) -> None:
    """Turns tool calls whose arguments are no JSON object back into text, in place, as if they had not parsed.

    A policy that explores writes such calls, and clients raise on them: the run would be lost, with what it teaches.
    """
    message = choice["message"]
    good: list[dict[str, Any]] = []
    bad: list[dict[str, Any]] = []
    for call in message.get("tool_calls") or ():
        (good if _is_object(call["function"]["arguments"]) else bad).append(call)
    if not bad:
        return
    written = [
        f'<tool_call>\n{{"name": {json.dumps(call["function"]["name"])}, '
        f'"arguments": {call["function"]["arguments"]}}}\n</tool_call>'
        for call in bad
    ]
    message["content"] = "\n".join([*([message["content"]] if message.get("content") else []), *written])
    message["tool_calls"] = good
    if not good:
        choice["finish_reason"] = "stop" if choice["finish_reason"] == "tool_calls" else choice["finish_reason"]


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return True  # clients know what to do with arguments that are no JSON
