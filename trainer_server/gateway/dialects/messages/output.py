"""Answers of chat completions as those of Anthropic's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_server.gateway.answer import written_call
from trainer_server.wire.completions import MESSAGE, answer_id
from trainer_server.wire.tool_arguments import arguments_object

_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


def whole(answer: Mapping[str, Any]) -> dict[str, Any]:
    """A chat completion as a message."""
    (choice,) = answer["choices"]
    message = choice["message"]
    blocks: list[dict[str, Any]] = []
    if thought := message.get("reasoning") or message.get("reasoning_content"):
        blocks.append(thinking_block(thought))
    calls = [tool_use(call) for call in message.get("tool_calls") or []]
    if message.get("content"):
        blocks.append(text_block(message["content"]))
    blocks += calls
    usage = answer.get("usage") or {}
    counts = usage_of(usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0)
    ended = stop_reason(choice.get("finish_reason"), choice.get("stop_reason"), any(map(is_tool_use, calls)))
    return {**head(answer), "content": blocks, **ended, "usage": counts}


def head(answer: Mapping[str, Any]) -> dict[str, Any]:
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


def thinking_block(text: str) -> dict[str, Any]:
    """What the model thought. Nothing here signs it."""
    return {"type": "thinking", "thinking": text, "signature": ""}


def text_block(text: str) -> dict[str, Any]:
    """What the model said."""
    return {"type": "text", "text": text}


def tool_use(call: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call. One whose arguments are no JSON object, which this API cannot say, becomes text."""
    function = call["function"]
    arguments = arguments_object(function["arguments"])
    if arguments is None:
        return text_block(written_call(call))
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}


def is_tool_use(block: Mapping[str, Any]) -> bool:
    """Whether a block is a tool call."""
    return bool(block["type"] == "tool_use")


def stop_reason(finish_reason: str | None, stop: object, calls: bool) -> dict[str, Any]:
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


def usage_of(prompt: int, completion: int) -> dict[str, Any]:
    """`usage`, in tokens."""
    return {
        "input_tokens": prompt,
        "output_tokens": completion,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
