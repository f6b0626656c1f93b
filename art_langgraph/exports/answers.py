"""The answers of a run that other trainers get: as rows for TRL, as conversations for OpenAI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from art_langgraph.credit import matches
from art_langgraph.exports.ledger_rows import Rows
from art_langgraph.traces.run import ForeignRun, ModelCall
from art_langgraph.trajectory import CompletionCall, Trajectory
from trainer_server.wire import Completion, CompletionStatus
from trainer_server.wire.tool_arguments import arguments_object


def answers(run: Trajectory) -> Iterator[tuple[CompletionCall, dict[str, Any]]]:
    """The calls that count, with their answers. Those that failed, were superseded or came from a cache do not."""
    for call in run.completions:
        if call.message is not None and call.superseded is None and call.error is None and not call.cached:
            yield call, call.message


def reward_of(run: Trajectory, call: CompletionCall) -> float | None:
    """The reward of an answer: its own, else that of its node where nodes have rewards, else the run's."""
    if call.reward is not None:
        return call.reward
    if run.node_rewards is None:
        return run.reward
    return next((reward for pattern, reward in run.node_rewards.items() if matches(call, pattern)), None)


def exact(row: Completion | None) -> Completion | None:
    """A row whose tokens are those that were sampled, all of them; None for any other."""
    whole = row is not None and row.status == CompletionStatus.complete and row.untrainable is None
    return row if whole else None


def model_of(call: CompletionCall) -> str | None:
    """Who answered: a version of a policy, as `agent@3`, or another model."""
    return call.model if call.version is None or call.policy is None else f"{call.policy}@{call.version}"


def parsed_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose tool calls have arguments as values, as chat templates of open models take them.

    Arguments that are no JSON object stay text.
    """
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [_parse_arguments(call) for call in message["tool_calls"]]}


def _parse_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    arguments = arguments_object(function.get("arguments"))
    return call if arguments is None else {**call, "function": {**function, "arguments": arguments}}


def trl_rows(run: Trajectory, rows: Rows) -> Iterator[dict[str, Any]]:
    """Rows for TRL, in its conversational prompt-completion form: one for each answer that counts.

    `SFTTrainer` imitates `completion`. `prompt_ids`, `completion_ids` and `logprobs`, as TRL's own rollout functions
    call them, are the tokens that were sampled. Answers that failed, were superseded or came from a cache are left out.

    Args:
        run: The run.
        rows: Its rows of the ledger. An answer without one has no tools and no tokens, since the run alone does not
            tell them.
    """
    for call, message in answers(run):
        row = rows.get(call.id or "")
        tokens = exact(row)
        yield {
            "prompt": [parsed_arguments(earlier) for earlier in call.messages],
            "completion": [parsed_arguments(message)],
            "tools": (row.request.get("tools") if row else None) or None,
            "reward": reward_of(run, call),
            "prompt_ids": tokens.prompt_token_ids if tokens else None,
            "completion_ids": tokens.token_ids if tokens else None,
            "logprobs": tokens.logprobs if tokens else None,
            "model": model_of(call),
            "scenario": run.scenario.id,
            "trajectory": run.id,
        }


_OPENAI_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "weight", "refusal")
"""What a message of OpenAI's fine-tuning format has. Others, such as the reasoning of open models, are left out."""


def openai_conversations(run: Trajectory, rows: Rows) -> Iterator[dict[str, Any]]:
    """Lines for fine-tuning at OpenAI, conversations with their tools: those of which no other is a continuation.
    Answers of other runs have weight 0.

    Args:
        run: The run.
        rows: Its rows of the ledger. A conversation without one has no tools, which the run alone does not have.

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
    return {name: message[name] for name in _OPENAI_FIELDS if message.get(name) is not None or name == "content"}
