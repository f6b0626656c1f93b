"""vLLM's answers, whole and in chunks: read, and held against the form that the gateway relies on.

What listens at an address may be another version of vLLM, or something between. An answer of another form is refused
(MalformedAnswer), and the engine stays in service: it may answer other requests. Fields that are not named here pass as
they are.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, NoReturn, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WrapValidator, model_validator

from trainer_server.common.jsonl import LineTooLong, explain, line_batches_of
from trainer_server.engines.base import EngineLost, MalformedAnswer, RequestRefused
from trainer_server.engines.connection import MOST_BYTES, AnswerStream, RequestFailure, Unreadable
from trainer_server.wire import EngineError
from trainer_server.wire.json_size import MOST_VALUES, TooManyDigits, TooManyValues, count_values, off_loop
from trainer_server.wire.text import beginning

_MOST_CALLS = 1000
"""Tool calls of one answer. A larger index is a fault, and would make a list of that length."""
_TOO_LONG = ("context length", "maximum model length", "max_model_len")
"""Words of a refusal because prompt and answer do not fit the context."""
_MOST_ALTERNATIVES = 1000
"""Tokens of which an answer names the log-probability at one place."""
_MOST_MESSAGE = 4000
"""Characters of an error message that are passed on."""
_BYTES_A_VALUE = 16
"""Bytes that an answer above MOST_BYTES must have for each value. Tokens with their log-probabilities have more: the
bytes of a token, `32, 32`, have four for each, and its other fields many."""
T = TypeVar("T")


def _few(entries: object) -> object:
    if isinstance(entries, dict) and len(entries) > _MOST_ALTERNATIVES:
        raise ValueError(f"has {len(entries)} log-probabilities at one place, and {_MOST_ALTERNATIVES} are the most")
    return entries


TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Items = Annotated[list[T], Field(fail_fast=True)]
"""A list that is checked up to its first error: each error takes a kilobyte, and a wrong answer has millions."""
Alternatives = Annotated[dict[str, T], BeforeValidator(_few)]
"""Log-probabilities by token. Of a dictionary all errors are collected, so it is short."""


class _Form(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _TopLogprob(_Form):
    token: str
    logprob: float


class _TokenLogprob(_TopLogprob):
    top_logprobs: Items[_TopLogprob] = Field(default_factory=list)


def _are_entries(entries: object) -> bool:
    """Whether these are log-probabilities of tokens without alternatives, as most of an answer is."""
    return type(entries) is list and all(
        type(entry) is dict
        and type(entry.get("token")) is str
        and type(entry.get("logprob")) is float
        and entry.get("top_logprobs") == []
        for entry in entries
    )


def _check_entries(entries: Any, check: Callable[[Any], Any]) -> Any:
    """Checks most log-probabilities without pydantic, which takes ten times as long. It finds what is wrong."""
    return entries if _are_entries(entries) else check(entries)


class _Logprobs(_Form):
    content: Annotated[Items[_TokenLogprob] | None, WrapValidator(_check_entries)] = None


class _Details(_Form):
    cached_tokens: int | None = Field(default=None, ge=0)
    reasoning_tokens: int | None = Field(default=None, ge=0)


class _Usage(_Form):
    prompt_tokens: int | None = Field(default=None, ge=0)
    completion_tokens: int | None = Field(default=None, ge=0)
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Words(_Form):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Function(_Form):
    name: str
    arguments: str | None = None


class _Call(_Form):
    id: str | None = None
    function: _Function


class _Message(_Words):
    tool_calls: Items[_Call] | None = None


class _FunctionPart(_Form):
    name: str | None = None
    arguments: str | None = None


class _CallPart(_Form):
    index: int = Field(ge=0, lt=_MOST_CALLS)
    id: str | None = None
    function: _FunctionPart | None = None


class _Delta(_Words):
    tool_calls: Items[_CallPart] | None = None


class _Choice(_Form):
    index: int = Field(ge=0)
    stop_reason: int | str | None = None
    token_ids: Items[TokenId] | None = None


class _WholeChoice(_Choice):
    message: _Message
    finish_reason: str
    logprobs: _Logprobs | None = None


class _ChunkChoice(_Choice):
    delta: _Delta
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Answer(_Form):
    prompt_token_ids: Items[TokenId] | None = None
    usage: _Usage | None = None


class ChatAnswer(_Answer):
    """A chat completion."""

    choices: Items[_WholeChoice]


class ChatChunk(_Answer):
    """A chunk of a chat completion."""

    choices: Items[_ChunkChoice]


class _TextLogprobs(_Form):
    tokens: Items[str] = Field(default_factory=list)
    token_logprobs: Items[float] = Field(default_factory=list)
    top_logprobs: Items[Alternatives[float] | None] = Field(default_factory=list)

    @model_validator(mode="after")
    def _of_one_length(self) -> _TextLogprobs:
        lengths = len(self.tokens), len(self.token_logprobs), len(self.top_logprobs)
        if len(set(lengths)) > 1:
            raise ValueError(f"has {', '.join(map(str, lengths))} tokens, log-probabilities and alternatives")
        return self


class _TextChoice(_Choice):
    text: str
    finish_reason: str | None = None
    logprobs: _TextLogprobs | None = None
    prompt_token_ids: Items[TokenId] | None = None


class TextAnswer(_Answer):
    """A text completion, or a chunk of one."""

    choices: Items[_TextChoice]


class _TokenScore(_Form):
    logprob: float


class _ScoredChoice(_Form):
    prompt_logprobs: Items[Alternatives[_TokenScore] | None] | None = None


class PromptScores(_Form):
    """A text completion with the log-probabilities of its prompt."""

    choices: Items[_ScoredChoice] = Field(min_length=1, max_length=1)


class TextTokens(_Form):
    """Token ids of a text."""

    tokens: Items[TokenId]


class PromptTokens(_Form):
    """A chat completion with the token ids of its prompt."""

    prompt_token_ids: Items[TokenId]


class TokenText(_Form):
    """The text of token ids."""

    prompt: str


class _Model(_Form):
    id: str
    parent: str | None = None
    root: str | None = None
    max_model_len: int | None = None


class Models(_Form):
    """The models that vLLM serves."""

    data: Items[_Model]


class PluginReport(_Form):
    """What the plugins in a vLLM answer."""

    missing: dict[str, list[str]]
    """By feature that they left out: what is missing for it."""
    max_num_seqs: int | None = Field(default=None, ge=1)
    """Requests that vLLM computes at once; None: this vLLM does not say."""


def read(raw: bytes | str, form: type[BaseModel], most_values: int = MOST_VALUES) -> dict[str, Any]:
    """Reads JSON of a form. All of its fields are in the result, those that the form does not name too.

    Args:
        raw: What vLLM sent, in UTF-8.
        form: A class of this module.
        most_values: Values that it may have.

    Raises:
        ValueError: It is no JSON.
        MalformedAnswer: It has more values, numbers that JSON has not, or another form; the message says where.
    """
    return _check_form(parse_json(raw, most_values), form)


def parse_json(raw: bytes | str, most_values: int = MOST_VALUES) -> Any:
    """The value of what vLLM sent; see `read`."""
    if len(raw) > most_values:  # each value has a character of its own
        try:
            count_values(raw.encode() if isinstance(raw, str) else raw, most_values)
        except (TooManyValues, TooManyDigits) as error:
            raise MalformedAnswer(f"it has {error}") from None
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:  # no JSON, or JSON with half of a character, which models write
        pass
    if isinstance(raw, bytes):
        raw = raw.decode()  # by itself, Python's JSON reader would take UTF-16, in which nothing was counted
    try:
        return json.loads(raw, parse_constant=_refuse_number, parse_float=_finite)
    except RecursionError:
        raise MalformedAnswer("it is nested too deeply to be read") from None


def _check_form(body: Any, form: type[BaseModel]) -> dict[str, Any]:
    try:
        form.model_validate(body)
    except ValidationError as error:
        raise MalformedAnswer(beginning(explain(error), _MOST_MESSAGE)) from None
    return dict(body)


def _is_token_chunk(chunk: Any) -> bool:
    """Whether this is a right ChatChunk with a token of text and no more, as almost all chunks are. Pydantic takes four
    times as long to find it."""
    if type(chunk) is not dict or chunk.get("usage") is not None or chunk.get("prompt_token_ids") is not None:
        return False
    if type(choices := chunk.get("choices")) is not list or len(choices) != 1 or type(choice := choices[0]) is not dict:
        return False
    delta, token_ids, logprobs = choice.get("delta"), choice.get("token_ids"), choice.get("logprobs")
    return (
        type(choice.get("index")) is int
        and choice["index"] >= 0
        and choice.get("finish_reason") is None
        and choice.get("stop_reason") is None
        and type(delta) is dict
        and type(delta.get("content")) is str
        and delta.get("reasoning") is None
        and delta.get("reasoning_content") is None
        and delta.get("tool_calls") is None
        and type(token_ids) is list
        and all(type(token) is int and 0 <= token < 2**31 for token in token_ids)
        and type(logprobs) is dict
        and _are_entries(logprobs.get("content"))
    )


def make_refusal(message: str, status: int) -> RequestRefused:
    """What an error answer of vLLM means to a request.

    Args:
        message: The answer's message.
        status: Its status.
    """
    too_long = status == 400 and any(words in message.lower() for words in _TOO_LONG)
    return RequestRefused(message, status=status, too_long=too_long)


def _streamed_error(error: object, *, begun: bool) -> EngineError:
    """An error in a stream. vLLM checks some parameters after it has sent the headers: then it is the first event.

    Args:
        error: What the event has of it.
        begun: Whether a part of the answer came before it.
    """
    fields = error if isinstance(error, dict) else {}
    message, status = beginning(str(fields.get("message") or error), _MOST_MESSAGE), fields.get("code")
    if not begun and type(status) is int and 400 <= status < 500:
        return make_refusal(message, status)
    return EngineLost(message)


class VLLMReply:
    """An answer of vLLM whose headers were received; see Reply.

    Args:
        response: The answer.
        url: Of vLLM.
        token_bytes: How many bytes its tokens can have, beyond MOST_BYTES.
    """

    _whole: type[BaseModel] = ChatAnswer
    _chunk: type[BaseModel] = ChatChunk

    def __init__(self, response: AnswerStream, url: str, token_bytes: int) -> None:
        self._response, self._url = response, url
        self._most_values = MOST_VALUES + token_bytes // _BYTES_A_VALUE

    async def whole(self) -> dict[str, Any]:
        return await self.read(self._whole)

    async def read(self, form: type[BaseModel]) -> dict[str, Any]:
        """The answer in a form.

        Raises:
            EngineLost: The engine went away, or something else answers there.
            MalformedAnswer: The answer has another form.
        """
        with self._errors_as_lost():
            raw = await self._response.read()
            return await off_loop(len(raw), partial(read, raw, form, self._most_values))

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        async for batch in self.batches():
            for chunk in batch:
                yield chunk

    async def batches(self) -> AsyncIterator[list[dict[str, Any]]]:
        is_begun = False
        with self._errors_as_lost():
            async for lines in line_batches_of(self._response.chunks(), most_bytes=MOST_BYTES):
                batch: list[dict[str, Any]] = []
                try:
                    for line in lines:
                        if line.startswith(b"data: ") and line != b"data: [DONE]":
                            read_line = partial(self._read_chunk, line.removeprefix(b"data: "), begun=is_begun)
                            batch.append(await off_loop(len(line), read_line))
                            is_begun = True
                except (EngineError, ValueError):
                    if batch:  # those before the wrong one are the client's
                        yield batch
                    raise
                if batch:
                    yield batch
        if not is_begun:
            raise EngineLost("the stream ended before it began")

    def _read_chunk(self, text: bytes, *, begun: bool) -> dict[str, Any]:
        """begun: whether a part of the answer came before this chunk."""
        chunk = parse_json(text)
        if isinstance(chunk, dict) and "error" in chunk:
            raise _streamed_error(chunk["error"], begun=begun)
        return chunk if self._chunk is ChatChunk and _is_token_chunk(chunk) else _check_form(chunk, self._chunk)

    @contextmanager
    def _errors_as_lost(self) -> Iterator[None]:
        """Turns errors of the connection, and answers that are no JSON, into EngineLost; those that are too large into
        MalformedAnswer."""
        try:
            yield
        except Unreadable as error:
            raise MalformedAnswer(f"{self._url}: {error.why}") from None
        except LineTooLong as error:
            raise MalformedAnswer(f"{self._url}: {error}") from None
        except RequestFailure as error:
            raise EngineLost(f"{self._url}: {error}") from error
        except ValueError as error:
            raise EngineLost(f"{self._url} answered no JSON: {error}") from error
        except MalformedAnswer as error:
            raise MalformedAnswer(f"{self._url} answered what is no answer of vLLM: {error}") from None


class TextReply(VLLMReply):
    """An answer of vLLM to a text completion, in the form of a chat completion; see Engine.complete."""

    _whole = _chunk = TextAnswer

    async def whole(self) -> dict[str, Any]:
        body = await super().whole()
        choices = [_as_chat(choice, "message") for choice in body["choices"]]
        return {**body, "choices": choices, **_prompt_of(body)}

    async def batches(self) -> AsyncIterator[list[dict[str, Any]]]:
        async for batch in super().batches():
            yield [
                {**chunk, "choices": [_as_chat(choice, "delta") for choice in chunk["choices"]], **_prompt_of(chunk)}
                for chunk in batch
            ]


def _as_chat(choice: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A choice of a text completion as that of a chat completion. key: `message`, or `delta`."""
    logprobs = choice.get("logprobs") or {}
    tokens, tops = logprobs.get("tokens") or [], logprobs.get("top_logprobs") or []
    content = [
        {
            "token": token,
            "logprob": logprob,
            "bytes": _bytes(token),
            "top_logprobs": [
                {"token": text, "logprob": value, "bytes": _bytes(text)} for text, value in (top or {}).items()
            ],
        }
        for token, logprob, top in zip(tokens, logprobs.get("token_logprobs") or [], tops, strict=True)
    ]
    return {
        "index": choice["index"],
        key: {"role": "assistant", "content": choice["text"]},
        "finish_reason": choice.get("finish_reason"),
        "stop_reason": choice.get("stop_reason"),
        "token_ids": choice.get("token_ids"),
        "logprobs": {"content": content},
        "routed_experts": choice.get("routed_experts"),
    }


def _bytes(token: str) -> list[int]:
    return list(token.encode(errors="surrogatepass"))


def _prompt_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """`prompt_token_ids` where a chat completion has them; nothing if no choice has them."""
    ids = [choice["prompt_token_ids"] for choice in body["choices"] if choice.get("prompt_token_ids")]
    return {"prompt_token_ids": ids[0]} if ids else {}


def _refuse_number(name: str) -> NoReturn:
    raise MalformedAnswer(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise MalformedAnswer(f"{digits:.40} is too large for a number")
    return number
