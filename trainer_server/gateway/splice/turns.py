"""The turns of conversations that are under way, by their messages."""

from __future__ import annotations

import dataclasses
from array import array
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from trainer_server.gateway.splice.messages import digests, extend_digest
from trainer_server.wire import Continuation

TOKENS_OF_A_MIB = 2**18
"""Tokens that take a MiB of memory."""
MOST_TOKENS = 128 * TOKENS_OF_A_MIB
"""Tokens that are remembered, in all. The turns that were used least recently are forgotten first."""
_OVERHEAD = 1_000
"""What a turn counts for its message, in tokens."""

Tokens: TypeAlias = "array[int]"


@dataclass(frozen=True, slots=True)
class Turn:
    """A completion that later prompts may continue."""

    id: str
    """Id of the completion."""
    prompt: Tokens
    """What the engine was prompted with."""
    sampled_tokens: Tokens
    """What it sampled, up to and including the token that ended the turn."""
    rendered_prompt: Tokens
    """The prompt as the chat template renders it. The same as `prompt`, unless that was spliced."""
    message: Mapping[str, Any]
    """The answer, as the client got it."""
    unavailable_reason: Continuation | None = None
    """Why prompts are never spliced with these tokens; None: they may be."""
    single: bool = False
    """Whether the answer was limited to one tool call: it may have sampled others, which the client never got."""

    @property
    def size(self) -> int:
        """Tokens that it keeps in memory."""
        own = 0 if self.rendered_prompt is self.prompt else len(self.rendered_prompt)
        return len(self.prompt) + len(self.sampled_tokens) + own + _OVERHEAD


@dataclass(frozen=True, slots=True)
class Match:
    """A turn that a request continues."""

    turn: Turn
    length: int
    """How many of the request's messages are the turn's: those of its prompt, and its answer."""


class Conversation:
    """The messages of one request, and the key of every beginning of them.

    Args:
        messages: Of the request.
        rollout: Its rollout. Only turns of the same rollout are found; requests without a rollout find one another.
    """

    def __init__(self, messages: Sequence[Mapping[str, Any]], rollout: str | None) -> None:
        self.messages, self.rollout = messages, rollout
        self._keys = digests(messages, "" if rollout is None else f"rollout {rollout}")

    def beginnings(self) -> list[tuple[int, bytes]]:
        """Length and key of each beginning that ends with an answer, and that a message follows. The longest first."""
        lengths = range(len(self.messages) - 1, 0, -1)
        return [(k, self._keys[k - 1]) for k in lengths if self.messages[k - 1].get("role") == "assistant"]

    def answer_key(self, message: Mapping[str, Any]) -> bytes:
        """The key of the conversation with its answer."""
        return extend_digest(self._keys[-1], message)


class Turns:
    """Remembers turns, and finds those that a request continues.

    Args:
        most_tokens: Limit of memory, in tokens.
    """

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self._most = most_tokens
        self._turns: OrderedDict[bytes, tuple[Turn, str | None]] = OrderedDict()
        """By key: the turn, and its rollout."""
        self._of_rollout: dict[str, set[bytes]] = {}
        self._size = 0

    def add(self, conversation: Conversation, turn: Turn) -> None:
        """Remembers a turn: the conversation that was answered, and the answer."""
        key, rollout = conversation.answer_key(turn.message), conversation.rollout
        if earlier := self._drop(key):
            same = (earlier.prompt, earlier.sampled_tokens) == (turn.prompt, turn.sampled_tokens)
            if not same or earlier.unavailable_reason == Continuation.ambiguous:
                turn = dataclasses.replace(turn, unavailable_reason=Continuation.ambiguous)
        self._turns[key] = turn, rollout
        if rollout is not None:
            self._of_rollout.setdefault(rollout, set()).add(key)
        self._size += turn.size
        while self._size > self._most:
            self._drop(next(iter(self._turns)))

    def forget(self, rollouts: Collection[str]) -> None:
        """Forgets the turns of rollouts that have ended; those that have none are fine."""
        for rollout in rollouts:
            for key in tuple(self._of_rollout.get(rollout, ())):
                self._drop(key)

    def drop(self, completions: Collection[str]) -> None:
        """Forgets the turns of completions that were deleted; those that have none are fine."""
        wanted = set(completions)
        for key in [key for key, (turn, _) in self._turns.items() if turn.id in wanted]:
            self._drop(key)

    def matches(self, conversation: Conversation) -> list[Match]:
        """The turns that a conversation begins with, the longest first."""
        matches: list[Match] = []
        for length, key in conversation.beginnings():
            if entry := self._turns.get(key):
                self._turns.move_to_end(key)
                matches.append(Match(entry[0], length))
        return matches

    def _drop(self, key: bytes) -> Turn | None:
        """Forgets a turn, and returns it if it was known."""
        if key not in self._turns:
            return None
        turn, rollout = self._turns.pop(key)
        self._size -= turn.size
        if rollout is not None:
            keys = self._of_rollout[rollout]
            keys.discard(key)
            if not keys:
                del self._of_rollout[rollout]
        return turn
