"""Answers: whether all tokens that were sampled were received."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.engines.experts import as_vllm_sends
from trainer_server.common.routed_experts import unpack_experts
from trainer_server.gateway.answer import Answer, as_text, unusable_calls, why_incomplete


@pytest.mark.parametrize(
    ("ids", "logprobs", "counted", "reason"),
    [
        ([[5, 6]], [[-1.0, -2.0]], 2, None),
        ([[5, 6], [7]], [[-1.0, -2.0], [-1.0]], 3, None),
        ([[5, 6]], [[-1.0, -2.0]], 4, "sampled 4 tokens, and sent 2 token ids"),
        ([[5, 6], [7]], [[-1.0, -2.0], [-1.0]], 4, "sampled 4 tokens, and sent 3 token ids"),
        ([[5, 6]], [[-1.0]], 2, "sent 2 token ids, and 1 log-probabilities"),
        ([[5, 6], [7]], [[-1.0], [-1.0, -2.0]], 3, "sent 3 token ids, and 3 log-probabilities"),
        ([[5, 6]], [[-1.0, -2.0]], None, "no usage that says how many"),
    ],
)
def test_tokens_that_were_not_received_are_noticed(
    ids: list[list[int]], logprobs: list[list[float]], counted: int | None, reason: str | None
) -> None:
    answers = [Answer([1], own, logp) for own, logp in zip(ids, logprobs, strict=True)]
    found = why_incomplete(answers, counted)
    assert found == reason if reason is None else reason in (found or "")


def choice(*arguments: str, content: str | None = None, reasoning: str | None = None) -> dict[str, Any]:
    calls = [{"function": {"name": "add", "arguments": one}} for one in arguments]
    message = {"content": content, "tool_calls": calls, "reasoning": reasoning}
    return {"message": message, "finish_reason": "tool_calls"}


@pytest.mark.parametrize(
    ("sampled", "thought", "content"),
    [
        ('<tool_call>{"name": "add", "arguments": 3}</tool_call>', None, None),
        ('[TOOL_CALLS][{"name": "add", "arguments": [1]}]', None, None),
        ('<think>\nHm.\n</think>\n\n<tool_call>{"a": 1}</tool_call>', "\nHm.\n", '<tool_call>{"a": 1}</tool_call>'),
        ("[THINK]Hm.[/THINK]add[1]", "Hm.", "add[1]"),
        ("<think>Hm.<tool_call>3</tool_call>", "Hm.", "<tool_call>3</tool_call>"),  # the thought is not closed
        ("text of no thought", "another", None),
    ],
)
def test_unusable_calls_become_what_the_model_wrote(sampled: str, thought: str | None, content: str | None) -> None:
    one = choice("3", reasoning=thought)
    as_text(one, sampled)
    assert one["message"]["content"] == (content or sampled)
    assert (one["message"]["tool_calls"], one["finish_reason"]) == ([], "stop")


def test_usable_calls_stay_beside_those_that_become_text() -> None:
    one = choice('{"a": 1}', "[2]", content="So:")
    assert [call["function"]["arguments"] for call in unusable_calls(one)] == ["[2]"]
    as_text(one, "whatever")
    assert one["message"]["content"] == 'So:\n{"name": "add", "arguments": [2]}'
    assert [call["function"]["arguments"] for call in one["message"]["tool_calls"]] == ['{"a": 1}']
    assert one["finish_reason"] == "tool_calls"
    assert unusable_calls(choice("no JSON")) == [], "clients handle it"


async def test_the_engines_experts_are_kept_for_the_ledger_and_not_for_the_client() -> None:
    sent = as_vllm_sends(np.arange(12, dtype=np.uint8).reshape(3, 2, 2))
    one = {"index": 0, "message": {"content": "a"}, "token_ids": [8, 9], "routed_experts": sent}
    answer = Answer()
    answer.take(one, [6, 7])
    assert "routed_experts" not in one
    await answer.pack_experts()
    assert answer.routed_experts is not None
    assert unpack_experts(answer.routed_experts).values == bytes(range(12))
    wrong = Answer([6], [8, 9], sent_experts=sent)
    with pytest.raises(ValueError, match="3 rows for 3 tokens"):
        await wrong.pack_experts()
    none = Answer([6], [8])
    await none.pack_experts()
    assert none.routed_experts is None
