"""What a rollout did, read from its completions: its answers in order, its tool calls and their results."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
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
_Place = tuple[int, int]
"""Of a message: the number of its request, and its own in the request."""
_NOWHERE = (sys.maxsize, sys.maxsize)
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
    requests = _Requests([_messages(row) for row in completions])
    calls = []
    for number, row in enumerate(completions):
        answer_calls = (row.message or {}).get("tool_calls") or []
        if row.status != CompletionStatus.complete or not answer_calls:
            continue
        results = requests.results(number, answer_calls)
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


class _Requests:
    """Finds the results of tool calls in the requests of a rollout.

    Each request has the whole conversation, and there may be no results: messages are read once, not for each answer.

    Args:
        requests: The messages of each, in their order.
    """

    def __init__(self, requests: Sequence[Sequence[dict[str, Any]]]) -> None:
        self._requests = requests
        self._prefixes: dict[tuple[int, Hashable, str], int] = {}
        """A number for the words of messages: by that of the messages before (0: there are none) and the last one."""
        self._ends: list[int] = []
        """By request: the number of all its messages."""
        self._calls: defaultdict[str, list[_Place]] = defaultdict(list)
        """By id of a tool call: the messages that have the call."""
        self._same_calls: defaultdict[Hashable, list[_Place]] = defaultdict(list)
        """By the words of all messages before, and the calls without their ids: the messages that have the calls."""
        self._results: defaultdict[str, list[_Place]] = defaultdict(list)
        """By id of a tool call: the messages that are its result."""
        self._assistants: list[_Place] = []
        for number, messages in enumerate(requests):
            prefix = 0
            for place, message in enumerate(messages):
                if calls := _calls(message):
                    self._same_calls[prefix, _signatures(calls)].append((number, place))
                for call_id in _ids(calls):
                    self._calls[call_id].append((number, place))
                if (role := message.get("role")) == "tool":
                    self._results[str(message.get("tool_call_id"))].append((number, place))
                elif role == "assistant":
                    self._assistants.append((number, place))
                words = (prefix, _hashable(role), _text(message.get("content")))
                prefix = self._prefixes.setdefault(words, len(self._prefixes) + 1)
            self._ends.append(prefix)

    def results(self, number: int, calls: Sequence[dict[str, Any]]) -> dict[str, str]:
        """Texts of the results of tool calls, by the calls' ids. A program may have given the calls new ids, as Agno
        does: a later request that goes on with the same words and calls counts, too.

        Args:
            number: The request that the answer follows.
            calls: The answer's tool calls.
        """
        start, ids = (number + 1, 0), _ids(calls)
        same_ids = [self._calls.get(call_id, []) for call_id in ids]
        request = min(_first(places, start)[0] for places in same_ids)
        same_calls = _first(self._same_calls.get((self._ends[number], _signatures(calls)), []), start)
        if request > same_calls[0]:
            answer = same_calls
            new_calls = _calls(self._requests[answer[0]][answer[1]])
            names = {str(new.get("id")): str(old.get("id")) for new, old in zip(new_calls, calls, strict=True)}
        elif request == _NOWHERE[0]:
            return {}
        else:
            answer = request, len(self._requests[number])
            if all(_first(places, answer) != answer for places in same_ids):  # the history was rewritten
                answer = max(_last(places, (request + 1, 0)) for places in same_ids)
            names = {call_id: call_id for call_id in ids}
        start = answer[0], answer[1] + 1
        end = min(_first(self._assistants, start), (start[0] + 1, 0))
        texts: dict[str, str] = {}
        for place, name in sorted((_first(self._results.get(name, []), start), name) for name in names):
            if place < end and names[name]:
                texts.setdefault(names[name], _text(self._requests[place[0]][place[1]].get("content")))
        return texts


def _first(places: Sequence[_Place], start: _Place) -> _Place:
    """The first of ascending places from one on; `_NOWHERE`: there is none."""
    at = bisect_left(places, start)
    return places[at] if at < len(places) else _NOWHERE


def _last(places: Sequence[_Place], end: _Place) -> _Place:
    """The last of ascending places before one; (-1, -1): there is none."""
    at = bisect_left(places, end)
    return places[at - 1] if at else (-1, -1)


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _ids(calls: Sequence[dict[str, Any]]) -> set[str]:
    return {str(call.get("id")) for call in calls}


def _signatures(calls: Sequence[dict[str, Any]]) -> Hashable:
    """Names and arguments of calls."""
    return tuple(map(_signature, calls))


def _signature(call: dict[str, Any]) -> Hashable:
    function = call.get("function")
    if not isinstance(function, dict):
        return 0, 0
    arguments = function.get("arguments")
    try:
        return _hashable(function.get("name")), _hashable(read_arguments(arguments))
    except RecursionError:  # a text of deep JSON
        return _hashable(function.get("name")), arguments


def _hashable(value: Any) -> Hashable:
    """A JSON value as a key: equal to that of another value where the values are equal."""
    if isinstance(value, dict):
        return frozenset((name, _hashable(part)) for name, part in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


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
