"""Parameters of a chat completion request: what the gateway does with each, and which values each may have.

Frameworks send parameters of OpenAI's API that do not change what is sampled here. The gateway drops them and notes
them in the ledger. It refuses a parameter that would change the answer in a way that the server does not support:
without the error, training would use answers to another request than the client's.

Values are taken that the gateway reads, and that an engine would not only fail on. Types are strict: `true` is no
number, `"1"` neither.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainer_server.gateway.errors import APIError
from trainer_server.wire.bounds import ListOf


class Handling(StrEnum):
    """What the gateway does with a parameter."""

    use = "use"
    """Reads it, and decides what the engine gets."""
    forward = "forward"
    """Sends it to the engine unchanged."""
    drop = "drop"
    """Leaves it out, as it changes nothing about the answer. The ledger's row names it."""
    refuse = "refuse"
    """Answers the request with status 400 and what to do instead."""


def handling_of(
    *, use: str = "", forward: str = "", drop: str = "", refuse: Collection[str] = ()
) -> dict[str, Handling]:
    """What the gateway does with each parameter of an API. Each argument names parameters, in one text."""
    names = {
        Handling.use: use.split(),
        Handling.forward: forward.split(),
        Handling.drop: drop.split(),
        Handling.refuse: refuse,
    }
    return {name: handling for handling, group in names.items() for name in group}


_REMEDIES = {
    "function_call": "it is deprecated: use `tool_choice`",
    "functions": "they are deprecated: use `tools`",
    "moderation": "no moderation model is served here; moderate inputs and answers in the agent",
    "web_search_options": "this server does not search the web; give the agent a search tool",
}

OPENAI = handling_of(
    use="logprobs max_completion_tokens max_tokens model n seed stream_options temperature top_logprobs",
    forward=(
        "frequency_penalty logit_bias messages parallel_tool_calls presence_penalty reasoning_effort "
        "response_format stop stream tool_choice tools top_p"
    ),
    drop=(
        "audio metadata modalities prediction prompt_cache_key prompt_cache_options prompt_cache_retention "
        "safety_identifier service_tier store user verbosity"
    ),
    refuse=_REMEDIES,
)
"""All parameters of `chat.completions.create` in OpenAI's Python SDK. A test fails when the SDK has others."""

VLLM = handling_of(
    use="include_reasoning return_token_ids",
    forward=(
        "add_generation_prompt chat_template_kwargs continue_final_message ignore_eos "
        "include_stop_str_in_output min_p min_tokens repetition_penalty skip_special_tokens stop_token_ids "
        "structured_outputs top_k"
    ),
)
"""Parameters of vLLM that the gateway supports too."""

PARAMETERS = OPENAI | VLLM


def check_parameters(body: Mapping[str, Any]) -> list[str]:
    """Checks which parameters a chat request has.

    Returns:
        Names of the parameters that are dropped.

    Raises:
        APIError: 400 for a parameter that is unknown or not supported.
    """
    dropped_names = check_names(body, PARAMETERS, _REMEDIES)
    modalities = body.get("modalities")
    if modalities is not None and modalities != ["text"]:
        raise APIError(
            400,
            f'`modalities` {modalities!r}: answers are text; leave it out, or send ["text"]',
            code="unsupported_parameter",
            param="modalities",
        )
    return dropped_names


def check_names(body: Mapping[str, Any], parameters: Mapping[str, Handling], remedies: Mapping[str, str]) -> list[str]:
    """Checks which parameters a request has. A known parameter that is null counts as not given, and one that is
    refused may be empty or false.

    Args:
        body: Body of the request.
        parameters: The parameters of its API.
        remedies: By parameter that is refused: what to do instead.

    Returns:
        Names of the parameters that are dropped.

    Raises:
        APIError: 400 for a parameter that is unknown or not supported.
    """
    names = sorted(name for name, value in body.items() if name not in parameters or value is not None)
    for name in names:
        if name not in parameters:
            raise APIError(400, f"unknown parameter: {name!r}", code="unknown_parameter", param=name)
        if parameters[name] == Handling.refuse and body[name] not in ([], {}, False):
            raise APIError(400, f"`{name}`: {remedies[name]}", code="unsupported_parameter", param=name)
    return [name for name in names if parameters[name] == Handling.drop]


def forwarded_parameters(body: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a request that the engine gets unchanged."""
    return {
        name: value for name, value in body.items() if value is not None and PARAMETERS.get(name) == Handling.forward
    }


_PLAIN = re.compile(r"[!-\[\]-~]+")
"""An address without backslashes, white space, control characters and characters beyond ASCII."""
MOST_MESSAGES = 10_000
"""Messages of a conversation. Each takes time of the event loop, however short it is."""
_MOST_PARTS = 10_000
"""Parts of a message: texts, images, frames of a video."""
_MOST_CALLS = 1_000
"""Tool calls of a message, and texts that end an answer."""
_MOST_TOOLS = 1_000
_MOST_IDS = 2**19
"""Token ids with a bias, or that end an answer. The largest vocabularies have about 2**18 tokens."""
_MOST = 2**31 - 1
"""The largest count that a request may name: engines keep counts in 32 bits."""


def _content(value: object) -> object:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) > _MOST_PARTS:
        raise ValueError(f"has {len(value)} parts, more than {_MOST_PARTS}: send less in one message")
    if isinstance(value, list) and all(isinstance(part, str) or _is_part(part) for part in value):
        return value
    raise ValueError('must be a text, or a list of parts: {"type": "text", "text": "…"}')


def _is_part(part: object) -> bool:
    kind = part.get("type") if isinstance(part, dict) else 0
    if kind == "text":
        return isinstance(part, dict) and isinstance(part.get("text"), str)
    return kind is None or isinstance(kind, str)


def _stop(value: object) -> object:
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list) and len(texts) > _MOST_CALLS:
        raise ValueError(f"has {len(texts)} texts, more than {_MOST_CALLS}")
    if isinstance(texts, list) and all(isinstance(text, str) and text for text in texts):
        return value
    raise ValueError("must be a text that is not empty, or a list of such texts")


def _logit_bias(value: object) -> object:
    """Not pydantic's: it would list all faults of an object, where the first one says enough."""
    if not isinstance(value, dict):
        raise ValueError("should be an object")
    if len(value) > _MOST_IDS:
        raise ValueError(f"has {len(value)} tokens, more than {_MOST_IDS}")
    for token, bias in value.items():
        if type(bias) not in (int, float) or not math.isfinite(bias):
            raise ValueError(f"{token!r:.50} should be a finite number")
    return value


def _tool_choice(value: object) -> object:
    if value in ("none", "auto", "required"):
        return value
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    if isinstance(function, dict) and isinstance(function.get("name"), str) and function["name"]:
        return value
    raise ValueError('must be "none", "auto", "required", or {"type": "function", "function": {"name": …}}')


def _arguments(value: object) -> object:
    if value is None or isinstance(value, str | dict):
        return value
    raise ValueError("must be a JSON object, or the text of one")


class _Part(BaseModel):
    """A part of a request. It may have fields that are not named here; the engine gets all of them."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _CalledFunction(_Part):
    name: str
    arguments: Annotated[Any, AfterValidator(_arguments)] = None


class _ToolCall(_Part):
    id: str | None = None
    function: _CalledFunction


class _Message(_Part):
    role: str = Field(min_length=1)
    content: Annotated[Any, AfterValidator(_content)] = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: ListOf[_ToolCall] | None = Field(default=None, max_length=_MOST_CALLS)


class _Function(_Part):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(_Part):
    type: Literal["function"]
    function: _Function


class _ResponseFormat(_Part):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        schema = self.json_schema or {}
        if self.type == "json_schema" and not (
            isinstance(schema.get("name"), str) and isinstance(schema.get("schema", {}), dict)
        ):
            raise ValueError('needs "json_schema": {"name": …, "schema": {…}}')
        return self


class _StreamOptions(_Part):
    include_usage: bool | None = None


class ChatBody(BaseModel):
    """The parameters of a request that the gateway reads or forwards; those that are not given have their defaults."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    model: str = Field(min_length=1)
    messages: ListOf[_Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    continue_final_message: bool = False
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    ignore_eos: bool = False
    include_reasoning: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: Annotated[Any, AfterValidator(_logit_bias)] = Field(default_factory=dict)
    logprobs: bool = False
    max_completion_tokens: int | None = Field(default=None, ge=1, le=_MOST)
    max_tokens: int | None = Field(default=None, ge=1, le=_MOST)
    min_p: float = Field(default=0.0, ge=0, le=1)
    min_tokens: int = Field(default=0, ge=0, le=_MOST)
    n: int = Field(default=1, ge=1, le=128)
    parallel_tool_calls: bool = True
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    reasoning_effort: str | None = None
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=1e6)
    response_format: _ResponseFormat | None = None
    return_token_ids: bool = False
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    skip_special_tokens: bool = True
    stop: Annotated[Any, AfterValidator(_stop)] = None
    stop_token_ids: ListOf[Annotated[int, Field(ge=0, le=_MOST)]] = Field(default_factory=list, max_length=_MOST_IDS)
    stream: bool = False
    stream_options: _StreamOptions | None = None
    structured_outputs: dict[str, Any] = Field(default_factory=dict)
    temperature: float = Field(default=1.0, ge=0, le=10)
    tool_choice: Annotated[Any, AfterValidator(_tool_choice)] = None
    tools: ListOf[_Tool] = Field(default_factory=list, max_length=_MOST_TOOLS)
    top_k: int = Field(default=0, ge=-1, le=_MOST)
    top_logprobs: int = Field(default=0, ge=0, le=20)
    top_p: float = Field(default=1.0, ge=0, le=1)

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> ChatBody:
        """Checks the parameters of a request. A parameter that is null counts as not given.

        Raises:
            APIError: 400; it names the parameter, and where in it the fault is.
        """
        try:
            return cls.model_validate({name: value for name, value in body.items() if value is not None})
        except ValidationError as error:
            raise _refusal(error) from None

    @property
    def forced_tool(self) -> bool:
        """Whether the answer must be a tool call."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, dict)

    @property
    def grammar(self) -> bool:
        """Whether a grammar may constrain the answer. vLLM limits answers to one tool call by a grammar, too."""
        strict = any(tool.function.strict for tool in self.tools)
        single = self.may_call and not self.parallel_tool_calls
        has_format = self.response_format is not None and self.response_format.type != "text"
        return self.forced_tool or strict or single or has_format or bool(self.structured_outputs)

    @property
    def may_call(self) -> bool:
        """Whether the answer may be a tool call."""
        return bool(self.tools) and self.tool_choice != "none"


class TextBody(ChatBody):
    """The parameters of a text completion, whose prompt is not rendered from messages."""

    messages: ListOf[_Message] = Field(default_factory=list, max_length=0)


def check_media(messages: list[dict[str, Any]], domains: Collection[str]) -> None:
    """Checks the addresses of images, videos and sounds in messages.

    An engine fetches what an address names, from the network that it is in or from its own disk, and the model tells
    the client what was there. So an engine fetches nothing that the operator did not allow.

    Args:
        messages: Of a checked request.
        domains: Domains that media may come from (`serve --allowed-media-domain`).

    Raises:
        APIError: 400 for an address that is no `data:` URL and in none of these domains.
    """
    for at, message in enumerate(messages):
        for address in _addresses(message.get("content")):
            if not _is_allowed(address, domains):
                or_domains = f", or from {', '.join(sorted(domains))}" if domains else ""
                raise APIError(
                    400,
                    f"`messages.{at}.content`: the engine does not fetch {address!r:.100}: send media as `data:` "
                    f"URLs{or_domains}, or serve with --allowed-media-domain",
                    code="media_refused",
                    param="messages",
                )


def _addresses(content: object) -> Iterator[object]:
    """Addresses in the parts of a message's content: `image_url`, `video_url` and the like."""
    for part in content if isinstance(content, list) else ():
        for key, value in part.items() if isinstance(part, dict) else ():
            if key.endswith("_url") and (address := value.get("url") if isinstance(value, dict) else value):
                yield address


def _is_allowed(address: object, domains: Collection[str]) -> bool:
    if not isinstance(address, str):
        return False
    if address[:5].lower() == "data:":
        return True
    if not _PLAIN.fullmatch(address):  # readers of addresses disagree on what the host is
        return False
    try:
        url = urlsplit(address)
        return url.scheme in ("http", "https") and "@" not in url.netloc and (url.hostname or "") in domains
    except ValueError:
        return False


def _refusal(error: ValidationError) -> APIError:
    first = error.errors(include_url=False)[0]
    name, where = str(first["loc"][0]), ".".join(map(str, first["loc"]))
    if first["type"] == "missing" and len(first["loc"]) == 1:
        hint = "name a policy (see /v1/models)" if name == "model" else "send at least one message"
        return APIError(400, f"`{name}` is missing: {hint}", param=name)
    problem = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if first["type"] == "too_short":
        problem = "should have a value"
    elif first["type"] == "too_long":
        most, count = first["ctx"]["max_length"], len(first["input"])
        return APIError(400, f"`{where}` has {count} entries, more than {most}: send fewer", param=name)
    elif first["type"] in ("model_type", "dict_type"):  # pydantic would name a class
        problem = "should be an object"
    return APIError(400, f"`{where}` {problem}, not {first['input']!r:.100}", param=name)
