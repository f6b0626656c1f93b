"""The protocol of a dialect: an API in which clients ask, translated to chat completions.

The gateway answers a request of any dialect in the same way: it is a chat request, an engine answers it, and the ledger
records the answer's exact tokens. Only what the client sent, and what it gets, has another form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, Self

from trainer_server.gateway.body import MOST_CHAT_VALUES
from trainer_server.gateway.errors import APIError
from trainer_server.wire import Completion


class Stream(Protocol):
    """Translates the chunks of one answer to server-sent events."""

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        """Translates a chunk.

        Args:
            chunk: A chat completion chunk; the first one has `prompt_token_ids`, the last one usage. It may be changed.

        Returns:
            The events; empty if the client gets nothing of this chunk.
        """
        ...

    def end(self) -> bytes:
        """The events after the last chunk. The answer is recorded by then."""
        ...

    def failure(self, error: APIError) -> bytes:
        """The last event of a stream that fails after its first event."""
        ...


class Exchange(Protocol):
    """One request in a dialect, and the translation of its answer."""

    chat: dict[str, Any]
    """The request as a body of `/v1/chat/completions`."""
    prompt: str | list[int] | None
    """The prompt of a text completion, which has no messages: a text, or token ids. None: a chat request."""
    dropped_names: list[str]
    """Parameters, and fields of messages, that the engine does not get because they change nothing about the answer."""
    note: dict[str, Any]
    """What the ledger keeps of the request, besides the parts of the chat request."""
    names: Mapping[str, str]
    """Parameters of the chat request that have another name in this dialect: what errors call them."""
    elastic: bool
    """Whether the request's limit of tokens may be larger than what the context leaves. It then means: all of that."""

    @property
    def stream(self) -> Stream:
        """Translates the answer where it is streamed."""
        ...

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Translates an answer.

        Args:
            answer: A chat completion with `prompt_token_ids`. It may be changed.
        """
        ...


def _brings_all(body: Mapping[str, Any]) -> str | None:
    """Of requests that bring their whole conversation."""
    return None


@dataclass(frozen=True, slots=True)
class Dialect:
    """An API in which clients ask.

    Args:
        read: Translates a request: a JSON object of finite numbers and whole characters, and the completion with status
            `complete` that it continues. Raises APIError, 400, where the request is wrong, or cannot be translated; the
            error names the field and what to do.
        continues: The id of the ledger's completion that a request continues; None: it brings its whole conversation.
            Raises APIError, 400, where the id is none of this server's.
        most_values: Values that a body may have.
    """

    read: Callable[[Mapping[str, Any], Completion | None], Exchange]
    continues: Callable[[Mapping[str, Any]], str | None] = _brings_all
    most_values: int = MOST_CHAT_VALUES


def sse(data: Mapping[str, Any], *, name: str | None = None) -> bytes:
    """A server-sent event.

    Args:
        data: Its data, written as JSON.
        name: Its name; None: it has none.
    """
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(data).encode() + b"\n\n"


class DataStream:
    """An exchange that is its own stream. Its events have no names, as in OpenAI's two older APIs."""

    @property
    def stream(self) -> Self:
        """The exchange itself."""
        return self

    def end(self) -> bytes:
        """The mark of the end."""
        return b"data: [DONE]\n\n"

    def failure(self, error: APIError) -> bytes:
        """The event of an error."""
        return sse(error.body())


def refuse(where: str, problem: str, *, unsupported: bool = False) -> NoReturn:
    """Refuses a request.

    Args:
        where: The field, with its path: `input.3.content`.
        problem: What is wrong, and what to do instead.
        unsupported: Whether the field is right, but not offered here.

    Raises:
        APIError: Always.
    """
    code = "unsupported_parameter" if unsupported else None
    raise APIError(400, f"`{where}`: {problem}", code=code, param=where.split(".")[0])


def text_at(value: object, where: str) -> str:
    """A text in a request. Raises APIError for anything else."""
    if not isinstance(value, str):
        refuse(where, f"must be a text, not {value!r:.100}")
    return value


def object_at(value: object, where: str) -> dict[str, Any]:
    """An object in a request. Raises APIError for anything else."""
    if not isinstance(value, dict):
        refuse(where, f"must be an object, not {value!r:.100}")
    return value


def list_at(value: object, where: str) -> list[Any]:
    """A list in a request. Raises APIError for anything else."""
    if not isinstance(value, list):
        refuse(where, f"must be a list, not {value!r:.100}")
    return value


def content_of(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """The content of a chat message: a single text as such, so that the prompt is that of a chat request."""
    if len(parts) == 1 and parts[0].get("type") == "text":
        return str(parts[0]["text"])
    return parts


def join_texts(parts: Iterable[str]) -> str | None:
    """The text of an assistant message that came in several parts; None if it has none."""
    texts = list(parts)
    return "".join(texts) if texts else None
