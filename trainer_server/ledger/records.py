"""What a rollout did, read from its completions: its answers in order, its tool calls and their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer_server.wire import (
    Completion,
    CompletionStatus,
    GivenReward,
    RolloutCompletion,
    RolloutRecord,
    RolloutScenario,
    RolloutSpec,
    RolloutToolCall,
)
from trainer_server.wire.tool_arguments import arguments_input

_ERRORS = {
    CompletionStatus.aborted: "aborted: the client went away before the answer was complete",
    CompletionStatus.failed: "failed: the engine went away, or answered without exact tokens",
    CompletionStatus.refused: "refused: the engine took no such request",
}


def record_of(
    rollout_id: str, completions: Sequence[Completion], spec: RolloutSpec, rewards: Sequence[GivenReward]
) -> RolloutRecord:
    """The record of a rollout.

    Args:
        rollout_id: Its id.
        completions: Its completions, in the order of their creation.
        spec: What it was registered with.
        rewards: Its rewards, oldest first.
    """
    last = rewards[-1] if rewards else None
    started = completions[0].created if completions else rewards[0].time if rewards else 0.0
    versions: dict[str, set[int]] = {}
    for row in completions:
        if row.policy is not None and row.version is not None:
            versions.setdefault(row.policy, set()).add(row.version)
    return RolloutRecord(
        id=rollout_id,
        rollout_id=rollout_id,
        calls=len({row.id.partition(".")[0] for row in completions}),
        versions={policy: sorted(numbers) for policy, numbers in versions.items()},
        temperatures=sorted({row.sampling.temperature for row in completions}),
        scenario=spec.scenario or RolloutScenario(input={"messages": _messages(completions[0]) if completions else []}),
        completions=[_completion(row) for row in completions],
        tool_calls=tool_calls(completions),
        reward=last.reward if last else None,
        reward_reason=last.reason if last else None,
        reward_source=last.source if last else None,
        metrics=last.metrics if last else {},
        rewards=list(rewards),
        evaluation=spec.evaluation,
        temperature=spec.temperature,
        requested_version=spec.version,
        metadata=spec.metadata,
        started=started,
        seconds=completions[-1].created - started if completions else 0.0,
    )


def tool_calls(completions: Sequence[Completion]) -> list[RolloutToolCall]:
    """The tool calls of the answers of a rollout, in their order, with the results that a later request brought.

    The next request of a conversation has the messages of the request before, then the answer, then the results. Where
    a program has rewritten the history, the first later request counts that has the answer's call in it.

    Args:
        completions: Those of the rollout, in the order of their creation.
    """
    requests = [_messages(row) for row in completions]
    calls = []
    for at, row in enumerate(completions):
        made = (row.message or {}).get("tool_calls") or []
        if row.status != CompletionStatus.complete or not made:
            continue
        results = _results(len(requests[at]), {str(call.get("id")) for call in made}, requests[at + 1 :])
        for call in made:
            function = call.get("function") or {}
            calls.append(
                RolloutToolCall(
                    tool=str(function.get("name") or ""),
                    arguments=arguments_input(function.get("arguments")),
                    result=results.get(str(call.get("id"))),
                    tool_call_id=call.get("id"),
                    started=row.created,
                )
            )
    return calls


def error_of(row: Completion) -> str | None:
    """Why a completion has no whole answer; None where it has one."""
    if row.status == CompletionStatus.complete:
        return None
    return f"{row.status}: {row.error}" if row.error else _ERRORS[row.status]


def _results(at: int, calls: set[str], later: Sequence[Sequence[dict[str, Any]]]) -> dict[str, str]:
    """Texts of the results of tool calls, by the calls' ids.

    Args:
        at: Where the answer stands in the next request, if its history was not changed.
        calls: Ids of the answer's tool calls.
        later: Messages of the requests that came after the answer.
    """
    for messages in later:
        answers = [
            place
            for place, message in enumerate(messages)
            if calls & {str(call.get("id")) for call in message.get("tool_calls") or [] if isinstance(call, dict)}
        ]
        if not answers:
            continue
        first = (at if at in answers else answers[-1]) + 1
        results: dict[str, str] = {}
        for message in messages[first:]:
            if message.get("role") == "assistant":
                break
            if message.get("role") == "tool" and str(message.get("tool_call_id")) in calls:
                results.setdefault(str(message["tool_call_id"]), _text(message.get("content")))
        return results
    return {}


def _messages(row: Completion) -> list[dict[str, Any]]:
    """The messages of a request. The prompt of a text completion is a user's message."""
    if isinstance(prompt := row.request.get("prompt"), str):
        return [{"role": "user", "content": prompt}]
    messages = row.request.get("messages")
    return [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []


def _completion(row: Completion) -> RolloutCompletion:
    return RolloutCompletion(
        id=row.id,
        model=row.model or row.policy or row.base_model,
        version=row.version,
        message=row.message,
        messages=_messages(row),
        error=error_of(row),
        prompt_tokens=len(row.prompt_token_ids),
        sampled_tokens=len(row.token_ids),
        started=row.created,
    )


def _text(content: object) -> str:
    """The text of a message's content; parts that are no text are left out."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") if isinstance(part, dict) else str(part) for part in content)
    return "" if content is None else str(content)
