"""What a step writes of its tokens, for people."""

from __future__ import annotations

import math
from pathlib import Path

from trainer_server.ledger.step_tokens import (
    CompletionInStep,
    LeftOut,
    StepTokens,
    read_step_tokens,
    round_values,
    write_step_tokens,
)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    measured = CompletionInStep(
        trajectory="t",
        completion="c",
        advantage=-0.5,
        trained=[True, False],
        logprobs=round_values([-0.12345678, math.nan]),
        entropy=[1.0, None],
    )
    left = [LeftOut(trajectory="t", completion="d", reason="greedy"), LeftOut(trajectory="u", reason="no_reward")]
    tokens = StepTokens(completions=[measured], left_out=left)
    write_step_tokens(tmp_path, tokens)
    found = read_step_tokens(tmp_path)
    assert found == tokens
    assert found.completions[0].logprobs == [-0.1235, None]
    assert (found.of("t", "c"), found.of("u", "c")) == (measured, None)
    assert (found.reasons("t", "d"), found.reasons("t", "c"), found.reasons("u", "c")) == (
        ["greedy"],
        [],
        ["no_reward"],
    )


def test_a_missing_or_damaged_file_is_none(tmp_path: Path) -> None:
    assert read_step_tokens(tmp_path) is None
    (tmp_path / "tokens.json.gz").write_bytes(b"not compressed")
    assert read_step_tokens(tmp_path) is None
