"""Harmony, the format of gpt-oss: what a warm start must know of it.

vLLM renders chat requests of gpt-oss by Harmony's own library, not by the tokenizer's chat template, which its
`/tokenize` renders with. An answer is a sequence of messages, each with a channel: a thought in `analysis`, then a call
in `commentary` or a text in `final`. In a prompt a text ends with `<|end|>`; sampled it ends with `<|return|>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MODEL_TYPE = "gpt_oss"
"""The architecture's name in transformers."""
START = "<|start|>assistant"
"""What every prompt ends with."""
_ENDS = ("<|end|>", "<|return|>", "<|call|>")


def answer(message: Mapping[str, Any]) -> str | None:
    """The text that the model samples after START to give an answer.

    Args:
        message: An assistant message in OpenAI's format, with `reasoning` or `reasoning_content` for a thought.

    Returns:
        None for what no single answer can be: no content and no call, several calls, or a text with a token in it that
        ends a message.
    """
    content, calls = message.get("content"), message.get("tool_calls") or []
    text = content if isinstance(content, str) else "".join(part["text"] for part in content or ())
    thought = message.get("reasoning") or message.get("reasoning_content") or ""
    bodies = [thought, text, *(call["function"]["arguments"] for call in calls)]
    if len(calls) > 1 or not (text or calls) or any(end in body for end in _ENDS for body in bodies):
        return None
    parts = []
    if calls and text:
        parts.append(f"<|channel|>commentary<|message|>{text}<|end|>")
    if thought:
        parts.append(f"<|channel|>analysis<|message|>{thought}<|end|>")
    if calls:
        function = calls[0]["function"]
        header = f" to=functions.{function['name']}<|channel|>commentary json<|message|>"  # as vLLM's prompts have it
        parts.append(f"{header}{function['arguments']}<|call|>")
    else:
        parts.append(f"<|channel|>final<|message|>{text}<|return|>")
    return START.join(parts)
