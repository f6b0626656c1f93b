"""A client API: the form in which a client writes requests and reads answers, translated to chat completions and back.

The gateway answers the requests of all client APIs in the same way: each becomes a chat request, an engine answers it,
and the ledger records the exact tokens. OpenAI's chat completions, which need no translation, are at the end of this
file. The others are `completions.py`, `messages/` and `responses/`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn, Protocol, Self

import orjson

from trainer_server.gateway.body import MOST_CHAT_VALUES
from trainer_server.gateway.errors import APIError
from trainer_server.wire import Completion


class Stream(Protocol):
    """Translates the chunks of one answer to server-sent events."""

    def chunk(self, chunk: dict[str, Any]) -> Iterator[bytes]:
        """The events of a chunk; none if the client gets nothing of it.

        Args:
            chunk: A chat completion chunk; the first one has `prompt_token_ids`, the last one usage. It may be changed.
        """
        ...

    def end(self) -> Iterator[bytes]:
        """The events after the last chunk. The answer is recorded by then."""
        ...

    def failure(self, error: APIError) -> bytes:
        """The last event of a stream that fails after its first event."""
        ...


class Exchange(Protocol):
    """One request in a client API, and the translation of its answer."""

    chat: dict[str, Any]
    """The request as a body of `/v1/chat/completions`."""
    prompt: str | list[int] | None
    """The prompt of a text completion, which has no messages: a text, or token ids. None: a chat request."""
    dropped_names: list[str]
    """Parameters, and fields of messages, that the engine does not get because they change nothing about the answer."""
    note: dict[str, Any]
    """Fields that the ledger's row gets besides the parts of the chat request."""
    names: Mapping[str, str]
    """Parameters of the chat request that have another name in this API. Errors use the API's name."""
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


def _no_earlier(body: Mapping[str, Any]) -> str | None:
    """For APIs whose requests have the whole conversation."""
    return None


@dataclass(frozen=True, slots=True)
class ClientAPI:
    """A client API.

    Args:
        read: Translates a request: a JSON object of finite numbers and whole characters, and the completion with status
            `complete` that it continues. Raises APIError, 400, where the request is wrong, or cannot be translated; the
            error names the field and what to do.
        continues: The id of the ledger's completion that a request continues; None: it has its whole conversation.
            Raises APIError, 400, where the id is none of this server's.
        most_values: Values that a body may have.
    """

    read: Callable[[Mapping[str, Any], Completion | None], Exchange]
    continues: Callable[[Mapping[str, Any]], str | None] = _no_earlier
    most_values: int = MOST_CHAT_VALUES


def sse(data: Mapping[str, Any], *, name: str | None = None) -> bytes:
    """A server-sent event.

    Args:
        data: Its data, written as JSON.
        name: Its name; None: it has none.
    """
    head = f"event: {name}\n".encode() if name else b""
    try:
        text = orjson.dumps(data)
    except orjson.JSONEncodeError:  # half of a character, which JSON can escape
        text = json.dumps(data).encode()
    return head + b"data: " + text + b"\n\n"


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


def objects_at(value: object, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a list in a request, each with its path. Raises APIError at the first that is anything else."""
    for index, item in enumerate(list_at(value, where)):
        yield f"{where}.{index}", object_at(item, f"{where}.{index}")


def refuse_deferred(tool: Mapping[str, Any], where: str) -> None:
    """Raises APIError for a tool that the model would have to search for."""
    if tool.get("defer_loading"):
        problem = "no tools are searched here; send the tools that the model may call"
        refuse(f"{where}.defer_loading", problem, unsupported=True)


def content_of(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """The content of a chat message: a single text as such, so that the prompt is that of a chat request."""
    if len(parts) == 1 and parts[0].get("type") == "text":
        return str(parts[0]["text"])
    return parts


class DataExchange:
    """An exchange that is its own stream. Its events have no names, as in OpenAI's two older APIs.

    Args:
        options: `stream_options` of the request.
    """

    elastic = False

    def __init__(self, options: object) -> None:
        self._usage_wanted = isinstance(options, dict) and bool(options.get("include_usage"))

    @property
    def stream(self) -> Self:
        """The exchange itself."""
        return self

    def end(self) -> Iterator[bytes]:
        """The mark of the end."""
        yield b"data: [DONE]\n\n"

    def failure(self, error: APIError) -> bytes:
        """The event of an error."""
        return sse(error.body())


class ChatExchange(DataExchange):
    """A chat request as it is. Its answer has no more than the client asked for.

    Args:
        body: The request.
    """

    prompt: str | list[int] | None = None
    names: Mapping[str, str] = MappingProxyType({})

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__(body.get("stream_options"))
        self.chat = dict(body)
        self.dropped_names: list[str] = []
        self.note: dict[str, Any] = {}

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer without the tokens of the prompt."""
        answer.pop("prompt_token_ids", None)
        return answer

    def chunk(self, chunk: dict[str, Any]) -> Iterator[bytes]:
        """The event of a chunk; none for one of usage that the client did not ask for."""
        if not self._usage_wanted:
            if not chunk.get("choices"):
                return
            chunk.pop("usage", None)
        chunk.pop("prompt_token_ids", None)
        yield sse(chunk)


CHAT = ClientAPI(lambda body, earlier: ChatExchange(body))
"""`/v1/chat/completions`."""
