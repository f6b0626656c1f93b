"""Answers: whether all tokens that were sampled were received."""

from __future__ import annotations

import pytest

from trainer_server.gateway.answer import Answer, why_incomplete


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
