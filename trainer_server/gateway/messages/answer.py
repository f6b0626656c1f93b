"""Answers of chat completions as those of Anthropic's Messages API, whole and as events of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from trainer_server.gateway.answer import call_text, merge_delta
from trainer_server.gateway.client_api import sse
from trainer_server.gateway.errors import APIError
from trainer_server.wire.completions import MESSAGE, answer_id
from trainer_server.wire.tool_arguments import arguments_object

_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


def message_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """A chat completion as a message."""
    (choice,) = answer["choices"]
    message = choice["message"]
    blocks: list[dict[str, Any]] = []
    if thought := message.get("reasoning") or message.get("reasoning_content"):
        blocks.append(_thinking_block(thought))
    calls = [tool_use(call) for call in message.get("tool_calls") or []]
    has_calls = any(call["type"] == "tool_use" for call in calls)
    if message.get("content"):
        blocks.append(_text_block(message["content"]))
    blocks += calls
    usage = answer.get("usage") or {}
    counts = _usage_of(usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0)
    stop = _stop_fields(choice.get("finish_reason"), choice.get("stop_reason"), has_calls)
    return {**_head(answer), "content": blocks, **stop, "usage": counts}


def _head(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a message has from its beginning."""
    return {
        "id": answer_id(answer["id"], MESSAGE),
        "type": "message",
        "role": "assistant",
        "model": answer["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _thinking_block(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": ""}  # nothing here signs thoughts


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def tool_use(call: Mapping[str, Any]) -> dict[str, Any]:
    """The block of a tool call. A call becomes text where its arguments are no JSON object, as this API needs."""
    function = call["function"]
    arguments = arguments_object(function["arguments"])
    if arguments is None:
        return _text_block(call_text(call))
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}


def _stop_fields(finish_reason: str | None, stop: object, calls: bool) -> dict[str, Any]:
    """`stop_reason` and `stop_sequence`.

    Args:
        finish_reason: That of the chat completion.
        stop: The text that ended the answer, if one of the request's did.
        calls: Whether the answer has tool calls.
    """
    if isinstance(stop, str) and finish_reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    reason = _REASONS.get(finish_reason or "", "end_turn")
    if reason in ("tool_use", "end_turn"):
        reason = "tool_use" if calls else "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


def _usage_of(prompt: int, completion: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt,
        "output_tokens": completion,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, name=kind)


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

    def failure(self, error: APIError) -> bytes:
        """The event of an error."""
        return sse(error.anthropic_body(), name="error")

    def chunk(self, chunk: Mapping[str, Any]) -> Iterator[bytes]:
        """The events of a chunk."""
        usage = chunk.get("usage") or {}
        self._prompt = usage.get("prompt_tokens") or len(chunk.get("prompt_token_ids") or ()) or self._prompt
        self._completion = usage.get("completion_tokens") or self._completion
        if not self._head:
            self._head = _head(chunk)
            yield _event("message_start", message={**self._head, "usage": _usage_of(self._prompt, 0)})
            yield _event("ping")
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
            block = _thinking_block("") if kind == "thinking" else _text_block("")
            yield _event("content_block_start", index=self._count, content_block=block)
            self._open = kind
        yield _event("content_block_delta", index=self._count, delta=delta)

    def _close(self) -> Iterator[bytes]:
        if self._open is None:
            return
        if self._open == "thinking":
            delta = {"type": "signature_delta", "signature": ""}
            yield _event("content_block_delta", index=self._count, delta=delta)
        yield _event("content_block_stop", index=self._count)
        self._open, self._count = None, self._count + 1

    def end(self) -> Iterator[bytes]:
        """The events after the last chunk."""
        calls = False
        for call in self._message.get("tool_calls") or []:
            block = tool_use(call)
            if block["type"] == "tool_use":
                calls = True
                yield from self._close()
                yield _event("content_block_start", index=self._count, content_block={**block, "input": {}})
                delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}
                yield _event("content_block_delta", index=self._count, delta=delta)
                self._open = "tool_use"
            else:
                yield from self._add("text", {"type": "text_delta", "text": block["text"]})
        yield from self._close()
        stop = _stop_fields(self._finish_reason, self._stop, calls)
        yield _event("message_delta", delta=stop, usage=_usage_of(self._prompt, self._completion))
        yield _event("message_stop")
