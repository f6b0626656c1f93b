"""The answers of a run that other trainers get, and their messages in the forms that these read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from art_langgraph.credit import matches
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
