"""Chunks of chat completions as events of Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from trainer_server.gateway.answer import merge_delta
from trainer_server.gateway.dialects.base import sse
from trainer_server.gateway.dialects.messages import output
from trainer_server.gateway.errors import APIError


class MessageStream:
    """Makes the events of one answer.

    Tool calls are sent when they are complete: only then it is known that their arguments are a JSON object.
    """

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._prompt = self._completion = 0
        self._finish_reason: str | None = None
        self._stop: object = None
        self._open: str | None = None
        """Kind of the block that text is added to."""
        self._count = 0
        self._message: dict[str, Any] = {}
        """Collects the tool calls."""

    def chunk(self, chunk: Mapping[str, Any]) -> bytes:
        """The events of a chunk."""
        return b"".join(self._chunk(chunk))

    def end(self) -> bytes:
        """The events after the last chunk."""
        return b"".join(self._end())

    def failure(self, error: APIError) -> bytes:
        """The event of an error."""
        return sse(error.anthropic_body(), name="error")

    def _event(self, kind: str, **fields: Any) -> bytes:
        return sse({"type": kind, **fields}, name=kind)

    def _chunk(self, chunk: Mapping[str, Any]) -> Iterator[bytes]:
        usage = chunk.get("usage") or {}
        self._prompt = usage.get("prompt_tokens") or len(chunk.get("prompt_token_ids") or ()) or self._prompt
        self._completion = usage.get("completion_tokens") or self._completion
        if not self._head:
            self._head = output.head(chunk)
            yield self._event("message_start", message={**self._head, "usage": output.usage_of(self._prompt, 0)})
            yield self._event("ping")
        for choice in chunk.get("choices") or []:
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            self._stop = choice.get("stop_reason") or self._stop
            delta = choice.get("delta") or {}
            if thought := delta.get("reasoning") or delta.get("reasoning_content"):
                yield from self._add("thinking", {"type": "thinking_delta", "thinking": thought})
            if content := delta.get("content"):
                yield from self._add("text", {"type": "text_delta", "text": content})
            merge_delta(self._message, {"tool_calls": delta.get("tool_calls")})

    def _add(self, kind: str, delta: dict[str, Any]) -> Iterator[bytes]:
        if self._open != kind:
            yield from self._close()
            block = output.thinking_block("") if kind == "thinking" else output.text_block("")
            yield self._event("content_block_start", index=self._count, content_block=block)
            self._open = kind
        yield self._event("content_block_delta", index=self._count, delta=delta)

    def _close(self) -> Iterator[bytes]:
        if self._open is None:
            return
        if self._open == "thinking":
            delta = {"type": "signature_delta", "signature": ""}
            yield self._event("content_block_delta", index=self._count, delta=delta)
        yield self._event("content_block_stop", index=self._count)
        self._open, self._count = None, self._count + 1

    def _end(self) -> Iterator[bytes]:
        calls = False
        for call in self._message.get("tool_calls") or []:
            block = output.tool_use(call)
            if output.is_tool_use(block):
                calls = True
                yield from self._close()
                yield self._event("content_block_start", index=self._count, content_block={**block, "input": {}})
                written = {"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}
                yield self._event("content_block_delta", index=self._count, delta=written)
                self._open = "tool_use"
            else:
                yield from self._add("text", {"type": "text_delta", "text": block["text"]})
        yield from self._close()
        ended = output.stop_reason(self._finish_reason, self._stop, calls)
        yield self._event("message_delta", delta=ended, usage=output.usage_of(self._prompt, self._completion))
        yield self._event("message_stop")
