"""Rows for TRL: an answer with its prompt, in TRL's conversational prompt-completion form.

`SFTTrainer` imitates `completion`. `prompt_ids`, `completion_ids` and `logprobs`, as TRL's own rollout functions call
them, are the tokens that were sampled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from art_langgraph.exports.answers import answers, exact, model_of, parsed_arguments, reward_of
from art_langgraph.exports.ledger_rows import Rows
from art_langgraph.trajectory import Trajectory


def records(run: Trajectory, rows: Rows) -> Iterator[dict[str, Any]]:
    """A row for each answer that counts: those that failed, were superseded or came from a cache are left out.

    Args:
        run: The run.
        rows: Its rows of the ledger. An answer without one has no tools and no tokens, since the run alone does not
            tell them.
    """
    for call, message in answers(run):
        row = rows.get(call.id or "")
        sampled = exact(row)
        yield {
            "prompt": [parsed_arguments(earlier) for earlier in call.messages],
            "completion": [parsed_arguments(message)],
            "tools": (row.request.get("tools") if row else None) or None,
            "reward": reward_of(run, call),
            "prompt_ids": sampled.prompt_token_ids if sampled else None,
            "completion_ids": sampled.token_ids if sampled else None,
            "logprobs": sampled.logprobs if sampled else None,
            "model": model_of(call),
            "scenario": run.scenario.id,
            "trajectory": run.id,
        }
