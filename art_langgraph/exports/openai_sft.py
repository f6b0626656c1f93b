"""Lines for fine-tuning at OpenAI: a conversation with its tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from art_langgraph.exports.answers import answers
from art_langgraph.exports.ledger_rows import Rows
from art_langgraph.traces.run import ForeignRun, ModelCall
from art_langgraph.trajectory import Trajectory

_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "weight", "refusal")
"""What a message of OpenAI's fine-tuning format has. Others, such as the reasoning of open models, are left out."""


def records(run: Trajectory, rows: Rows) -> Iterator[dict[str, Any]]:
    """The run's conversations: those of which no other is a continuation. Answers of other runs have weight 0.

    Args:
        run: The run.
        rows: Its rows of the ledger. A conversation without one has no tools, since the run alone does not tell them.

    Raises:
        Unreadable: A conversation has a part that cannot be imitated.
    """
    calls = []
    for call, message in answers(run):
        row = rows.get(call.id or "")
        tools = (row.request.get("tools") if row else None) or None
        messages = [_select_fields(earlier) for earlier in call.messages]
        calls.append(ModelCall(messages=messages, answer=_select_fields(message), tools=tools))
    for conversation in ForeignRun("art-langgraph", run.id, calls).demonstrations():
        yield conversation.model_dump(mode="json", exclude_none=True)


def _select_fields(message: dict[str, Any]) -> dict[str, Any]:
    return {name: message[name] for name in _FIELDS if message.get(name) is not None or name == "content"}
