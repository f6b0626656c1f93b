"""The turns of conversations that are under way, found by their messages.

A client sends an answer back in its own words: it writes the arguments of tool calls anew, leaves empty fields and
thoughts out, adds the name of an agent. Messages have a canonical form, which is the same for a message and for what
clients make of it. Two messages with the same form mean the same to the model, apart from thoughts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from trainer_server.wire import Continuation
from trainer_server.wire.tool_arguments import read_arguments

TOKENS_OF_A_MIB = 2**18
"""Tokens that take a MiB of memory."""
MOST_TOKENS = 128 * TOKENS_OF_A_MIB
"""Tokens that are remembered, in all. The turns that were used least recently are forgotten first."""
_OVERHEAD = 1_000
"""What a turn counts for its message, in tokens."""

_THOUGHTS = ("reasoning", "reasoning_content")
_UNSAID = frozenset({"annotations", "audio", "refusal", *_THOUGHTS})
"""Fields of an assistant message that are no part of the next turn's prompt."""
_WORDS = frozenset({"text", "thinking", "refusal", "input_text", "output_text"})
"""Types of parts that are text. All others are images or other media."""
_END_OF_THOUGHT = "</think>"

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
        self.put(conversation.answer_key(turn.message), conversation.rollout, turn)

    def put(self, key: bytes, rollout: str | None, turn: Turn) -> None:
        """Remembers a turn by the key of its conversation with the answer."""
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
        ids = set(completions)
        for key in [key for key, (turn, _) in self._turns.items() if turn.id in ids]:
            self._drop(key)

    def matches(self, conversation: Conversation) -> list[Match]:
        """The turns that a conversation begins with, the longest first."""
        return self.find(conversation.beginnings())

    def find(self, beginnings: Iterable[tuple[int, bytes]], most: int | None = None) -> list[Match]:
        """The turns with these lengths and keys, in their order.

        Args:
            beginnings: As `Conversation.beginnings` has them.
            most: How many at most; None: all.
        """
        matches: list[Match] = []
        for length, key in beginnings:
            if len(matches) == most:
                break
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


def digests(messages: Sequence[Mapping[str, Any]], scope: str) -> list[bytes]:
    """A digest of each beginning of a conversation: the one at index i is of the first i + 1 messages.

    Args:
        messages: Of a checked request.
        scope: Conversations of different scopes have different digests.
    """
    beginnings: list[bytes] = []
    digest = hashlib.sha256(scope.encode()).digest()
    for message in messages:
        digest = extend_digest(digest, message)
        beginnings.append(digest)
    return beginnings


def extend_digest(digest: bytes, message: Mapping[str, Any]) -> bytes:
    """The digest of a conversation with one more message."""
    return hashlib.sha256(digest + canonical(message).encode()).digest()


def canonical(message: Mapping[str, Any]) -> str:
    """The canonical form of a message, as JSON in ASCII.

    Empty fields are left out, the arguments of tool calls are read as JSON, and a content of a single part of text is
    that text. An answer has neither its thoughts nor the name of its author, which the client adds.
    """
    fields = {name: value for name, value in message.items() if not _empty(value)}
    if message.get("role") == "assistant":
        fields = {name: value for name, value in fields.items() if name not in _UNSAID and name != "name"}
    if "content" in fields:
        fields["content"] = _content(fields["content"])
    if "tool_calls" in fields:
        fields["tool_calls"] = [_call(call) for call in fields["tool_calls"]]
    return json.dumps(fields, sort_keys=True)


def thoughts(message: Mapping[str, Any]) -> list[str]:
    """The thoughts of a message: what a parser took for such, and what stands before the end of a thought in its
    content."""
    content = message.get("content")
    before = content.rpartition(_END_OF_THOUGHT)[0] if isinstance(content, str) else ""
    texts = [message.get(name) for name in _THOUGHTS] + [before.lstrip().removeprefix("<think>")]
    return list(dict.fromkeys(text.strip() for text in texts if isinstance(text, str) and text.strip()))


def visible_texts(message: Mapping[str, Any]) -> Iterator[str]:
    """The texts of a message without its thoughts, stripped, in the order in which templates render them."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) else [_text(part) for part in content or ()]
    if message.get("role") == "assistant":
        parts = [part.rpartition(_END_OF_THOUGHT)[2] for part in parts]
    names = [call["function"]["name"] for call in message.get("tool_calls") or ()]
    yield from (text.strip() for text in [*parts, *names] if text.strip())


def holds(message: Mapping[str, Any], text: str) -> bool:
    """Whether a text stands anywhere in a message, in the arguments of its tool calls too."""
    rest: list[Any] = [message]
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            if text in value:
                return True
        elif isinstance(value, Mapping):
            rest += [*value, *value.values()]
            if isinstance(arguments := value.get("arguments"), str):
                read = read_arguments(arguments)
                rest += [read] if read is not arguments else []
        elif isinstance(value, list):
            rest += value
    return False


def only_text(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether messages have no images or other media."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, str):
                continue
            if part.get("type", "text") not in _WORDS or any(key.endswith("_url") for key in part):
                return False
    return True


def _empty(value: object) -> bool:
    return value is None or value == "" or value == [] or value == {}


def _text(part: object) -> str:
    return part if isinstance(part, str) else str(part.get("text") or "") if isinstance(part, Mapping) else ""


def _content(content: Any) -> Any:
    if isinstance(content, list) and len(content) == 1:
        (part,) = content
        if isinstance(part, str) or set(part) == {"type", "text"}:
            return _text(part)
    return content


def _call(call: Mapping[str, Any]) -> list[Any]:
    """A tool call: id, name and arguments."""
    function = call["function"]
    arguments = function.get("arguments")
    read = read_arguments(arguments)
    return [call.get("id"), function["name"], read, read is arguments and isinstance(read, str)]
