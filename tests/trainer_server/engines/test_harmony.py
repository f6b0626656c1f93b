"""Answers in Harmony's format, which gpt-oss samples after `<|start|>assistant`."""

from __future__ import annotations

from typing import Any

import pytest

from trainer_server.engines.harmony import answer


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "Hello."}, "<|channel|>final<|message|>Hello.<|return|>"),
        ({"content": [{"type": "text", "text": "Hello."}]}, "<|channel|>final<|message|>Hello.<|return|>"),
        (
            {"content": "Hello.", "reasoning": "They greet."},
            "<|channel|>analysis<|message|>They greet.<|end|><|start|>assistant"
            "<|channel|>final<|message|>Hello.<|return|>",
        ),
        (
            {"content": None, "tool_calls": [call("add", "{}")]},
            " to=functions.add<|channel|>commentary json<|message|>{}<|call|>",
        ),
        (
            {"content": "", "reasoning_content": "A sum.", "tool_calls": [call("add", "{}")]},
            "<|channel|>analysis<|message|>A sum.<|end|><|start|>assistant"
            " to=functions.add<|channel|>commentary json<|message|>{}<|call|>",
        ),
        (
            {"content": "I add.", "tool_calls": [call("add", "{}")]},
            "<|channel|>commentary<|message|>I add.<|end|><|start|>assistant"
            " to=functions.add<|channel|>commentary json<|message|>{}<|call|>",
        ),
    ],
)
def test_thought_call_and_text_have_channels_of_their_own(message: dict[str, Any], text: str) -> None:
    assert answer({"role": "assistant", **message}) == text


@pytest.mark.parametrize(
    "message",
    [
        {"content": None},
        {"content": "", "reasoning": "only a thought"},
        {"content": None, "tool_calls": [call("add", "{}"), call("add", "{}")]},
        {"content": "a<|return|>b"},
        {"content": None, "tool_calls": [call("add", "<|call|>")]},
    ],
)
def test_what_no_single_answer_can_be_is_none(message: dict[str, Any]) -> None:
    assert answer({"role": "assistant", **message}) is None
