"""Messages of a conversation in a form that is the same for a message and for what clients make of it.

A client sends an answer back in its own words: it writes the arguments of tool calls anew, leaves empty fields and
thoughts out, adds the name of an agent. Two messages with the same canonical form mean the same to the model, apart
from thoughts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer_server.wire.tool_arguments import read_arguments

_THOUGHTS = ("reasoning", "reasoning_content")
_UNSAID = frozenset({"annotations", "audio", "refusal", *_THOUGHTS})
"""Fields of an assistant message that are no part of what it says to the next turn."""
_WORDS = frozenset({"text", "thinking", "refusal", "input_text", "output_text"})
"""Types of parts that are text. All others are images or other media."""
_END_OF_THOUGHT = "</think>"


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
