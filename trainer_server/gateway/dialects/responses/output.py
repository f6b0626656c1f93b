"""Answers of chat completions as those of the Responses API."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from trainer_server.wire.completions import CHAT, RESPONSE, answer_id

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseBody:
    """Makes the objects of one answer.

    Args:
        request: The request, as the client sent it.
        summary: Whether the client wants a summary of the reasoning. It then gets the reasoning itself: nothing here
            could write a shorter one.
        logprobs: Whether the client wants log-probabilities.
    """

    def __init__(self, request: Mapping[str, Any], *, summary: bool, logprobs: bool) -> None:
        self._request, self.summary, self.logprobs = request, summary, logprobs
        self._created = int(time.time())

    def response(
        self,
        answer: Mapping[str, Any],
        output: list[dict[str, Any]],
        *,
        finish_reason: str | None = None,
        usage: Mapping[str, Any] | None = None,
        begun: bool = False,
    ) -> dict[str, Any]:
        """The `Response` object.

        Args:
            answer: The chat completion, or a chunk of it.
            output: The items.
            finish_reason: Why the answer ended.
            usage: Of the chat completion.
            begun: Whether the answer has only begun.
        """
        fields, incomplete = self._request, _INCOMPLETE.get(finish_reason or "")
        status = "in_progress" if begun else "incomplete" if incomplete else "completed"
        return {
            "id": answer_id(answer["id"], RESPONSE),
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": incomplete} if incomplete else None,
            "instructions": fields.get("instructions"),
            "max_output_tokens": fields.get("max_output_tokens"),
            "max_tool_calls": fields.get("max_tool_calls"),
            "metadata": fields.get("metadata") or {},
            "model": answer["model"],
            "output": output,
            "parallel_tool_calls": fields.get("parallel_tool_calls", True) is not False,
            "previous_response_id": fields.get("previous_response_id"),
            "reasoning": fields.get("reasoning") or {"effort": None, "summary": None},
            "store": fields.get("store", True) is not False,
            "temperature": 1.0 if fields.get("temperature") is None else fields["temperature"],
            "text": fields.get("text") or {"format": {"type": "text"}},
            "tool_choice": fields.get("tool_choice") or "auto",
            "tools": fields.get("tools") or [],
            "top_logprobs": fields.get("top_logprobs") or 0,
            "top_p": 1.0 if fields.get("top_p") is None else fields["top_p"],
            "truncation": fields.get("truncation") or "disabled",
            "usage": None if usage is None else _usage(usage),
            "user": fields.get("user"),
        }

    def items(self, answer: Mapping[str, Any], choice: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The items of a whole answer."""
        message, source = choice["message"], str(answer["id"]).removeprefix(CHAT)
        items: list[dict[str, Any]] = []
        if reasoning := message.get("reasoning") or message.get("reasoning_content"):
            items.append(self.reasoning(source, reasoning))
        calls = message.get("tool_calls") or []
        if message.get("content") or not calls:
            entries = (choice.get("logprobs") or {}).get("content") or []
            items.append(self.message(source, message.get("content") or "", self.text_logprobs(entries)))
        items += [
            self.call(source, at, call["id"], call["function"]["name"], call["function"]["arguments"] or "")
            for at, call in enumerate(calls)
        ]
        return items

    def reasoning(self, source: str, text: str, status: str = "completed") -> dict[str, Any]:
        """A reasoning item. source: what follows the prefix in the ids of the answer."""
        return {
            "id": f"rs_{source}",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": text}] if self.summary and text else [],
            "content": [{"type": "reasoning_text", "text": text}] if text else [],
            "status": status,
        }

    def message(
        self, source: str, text: str | None, logprobs: list[dict[str, Any]], status: str = "completed", at: int = 0
    ) -> dict[str, Any]:
        """A message item. text: None: nothing yet. at: how many messages the answer has already."""
        return {
            "id": f"msg_{source}" + (f"_{at}" if at else ""),
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [] if text is None else [self.text(text, logprobs)],
        }

    def text(self, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        """A part of a message."""
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def call(
        self, source: str, at: int, call_id: str, name: str, arguments: str, status: str = "completed"
    ) -> dict[str, Any]:
        """A function call."""
        return {
            "id": f"fc_{source}_{at}",
            "type": "function_call",
            "call_id": call_id,
            "name": name,
            "arguments": arguments,
            "status": status,
        }

    def text_logprobs(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Log-probabilities in the form of the Responses API; empty if the client does not want them."""
        if not self.logprobs:
            return []

        def plain(entry: Mapping[str, Any]) -> dict[str, Any]:
            return {"token": entry["token"], "logprob": entry["logprob"], "bytes": entry.get("bytes") or []}

        return [{**plain(entry), "top_logprobs": [plain(top) for top in entry["top_logprobs"]]} for entry in entries]


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    prompt, completion = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompt + completion,
    }
