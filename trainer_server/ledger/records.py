"""What a rollout did, read from its completions: its answers in order, its tool calls and their results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from trainer_server.common.jsonl import to_json
from trainer_server.ledger.base import ErasesCompletions, Ledger
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
from trainer_server.wire.tool_arguments import arguments_input, read_arguments

ROWS_AT_ONCE = 8
"""Rows of the ledger that are read at once for an answer: each may be as large as the body of a request."""
_ERRORS = {
    CompletionStatus.aborted: "aborted: the client went away before the answer was complete",
    CompletionStatus.failed: "failed: the engine went away, or answered without exact tokens",
    CompletionStatus.refused: "refused: the engine took no such request",
}


def rows_of(
    ledger: Ledger, rollout_id: str, most_bytes: float = math.inf, *, requests: bool = True
) -> list[Completion] | None:
    """The completions of a rollout for its record, in the order of their creation. Of their tokens, the numbers stay.

    Each request has the whole conversation, so that those of a long rollout take many times its text.

    Args:
        ledger: Has them. A few are read at once, if it can say which they are (ErasesCompletions).
        rollout_id: The rollout.
        most_bytes: Size of all messages up to which they are read.
        requests: Whether with the messages of requests. Without them, the first completion has those of its request,
            which are the rollout's task; they do not count.

    Returns:
        None: The messages have more bytes.

    Raises:
        LedgerError: The ledger could not be read.
    """
    rows: list[Completion] = []
    first, size = None, 0
    for row in _read(ledger, rollout_id):
        request = {name: row.request[name] for name in ("messages", "prompt") if name in row.request}
        first = row if first is None or row.created < first.created else first
        numbers = {"prompt_token_ids": range(len(row.prompt_token_ids)), "token_ids": range(len(row.token_ids))}
        rows.append(row.model_copy(update={**numbers, "logprobs": [], "request": request if requests else {}}))
        size += len(to_json([rows[-1].request, row.message]).encode())
        if size > most_bytes:
            return None
    rows.sort(key=lambda row: row.created)
    if first is not None and not requests:
        rows[0] = rows[0].model_copy(update={"request": first.request})
    return rows


def _read(ledger: Ledger, rollout_id: str) -> Iterator[Completion]:
    if not isinstance(ledger, ErasesCompletions):
        yield from ledger.rollout(rollout_id)
        return
    yield from read_few(ledger, [*ledger.matching(rollouts=[rollout_id])])


def read_few(ledger: Ledger, ids: Sequence[str], at_once: int = ROWS_AT_ONCE) -> Iterator[Completion]:
    """Rows of a ledger in the order of their ids, a few at once. Ids that it does not know are left out.

    Raises:
        LedgerError: The ledger could not be read.
    """
    for start in range(0, len(ids), at_once):
        rows = ledger.read(chunk := ids[start : start + at_once])
        yield from (rows[completion] for completion in chunk if completion in rows)


def record_of(
    rollout_id: str, completions: Sequence[Completion], spec: RolloutSpec, rewards: Sequence[GivenReward]
) -> RolloutRecord:
    """The record of a rollout.

    Args:
        rollout_id: Its id.
        completions: Its completions, in the order of their creation; see `rows_of`.
        spec: What it was registered with.
        rewards: Its rewards, oldest first.
    """
    last = rewards[-1] if rewards else None
    start = completions[0].created if completions else rewards[0].time if rewards else 0.0
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
        started=start,
        seconds=completions[-1].created - start if completions else 0.0,
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
        answer_calls = (row.message or {}).get("tool_calls") or []
        if row.status != CompletionStatus.complete or not answer_calls:
            continue
        results = _results(requests[at], answer_calls, requests[at + 1 :])
        for call in answer_calls:
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


def _results(
    request: Sequence[dict[str, Any]], calls: Sequence[dict[str, Any]], later: Sequence[Sequence[dict[str, Any]]]
) -> dict[str, str]:
    """Texts of the results of tool calls, by the calls' ids.

    Args:
        request: The messages that the answer follows.
        calls: The answer's tool calls.
        later: Messages of the requests that came after the answer.
    """
    at, ids = len(request), {str(call.get("id")): str(call.get("id")) for call in calls}
    for messages in later:
        answers = [place for place, message in enumerate(messages) if ids.keys() & _ids(message)]
        names = ids if answers else _new_ids(request, calls, messages)
        if not names:
            continue
        first = (at if at in answers or not answers else answers[-1]) + 1
        results: dict[str, str] = {}
        for message in messages[first:]:
            if message.get("role") == "assistant":
                break
            if message.get("role") == "tool" and (call := names.get(str(message.get("tool_call_id")))):
                results.setdefault(call, _text(message.get("content")))
        return results
    return {}


def _ids(message: dict[str, Any]) -> set[str]:
    return {str(call.get("id")) for call in message.get("tool_calls") or [] if isinstance(call, dict)}


def _new_ids(
    request: Sequence[dict[str, Any]], calls: Sequence[dict[str, Any]], messages: Sequence[dict[str, Any]]
) -> dict[str, str]:
    """Ids of an answer's calls by those that a program gave them in a later request, as Agno does. Empty where the
    request does not go on with the same words and calls."""
    at = len(request)
    if len(messages) <= at or _words(messages[:at]) != _words(request):
        return {}
    renamed = [call for call in messages[at].get("tool_calls") or [] if isinstance(call, dict)]
    if [_signature(call) for call in renamed] != [_signature(call) for call in calls]:
        return {}
    return {str(new.get("id")): str(old.get("id")) for new, old in zip(renamed, calls, strict=True)}


def _words(messages: Sequence[dict[str, Any]]) -> list[tuple[Any, str]]:
    return [(message.get("role"), _text(message.get("content"))) for message in messages]


def _signature(call: dict[str, Any]) -> tuple[Any, Any]:
    function = call.get("function")
    return (function.get("name"), read_arguments(function.get("arguments"))) if isinstance(function, dict) else (0, 0)


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
