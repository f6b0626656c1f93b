"""Models that litellm knows by name: address, key, and how a request is sent."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import httpx
from pydantic import BaseModel

from art_langgraph.client.proxies import AsyncProxyTransport
from art_langgraph.llm.faults import CUT_OFF, Fault
from art_langgraph.llm.modes import Message, Mode, read_answer, request
from trainer_server.common import Connection
from trainer_server.common.proxies import exempt_loopback
from trainer_server.wire import ConfigError, LLMError, names_version


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer to a request."""

    text: str
    """The answer; JSON, unless the model did not comply."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    price: float | None = None
    """USD; None where it is unknown."""
    finish_reason: str | None = None
    """OpenAI's value: `stop`, `length`, `content_filter`, …"""
    refusal: str | None = None
    """Why the model refuses, if it does."""

    def check(self) -> str:
        """The text. Raises Fault where the model refused, or the answer was cut off."""
        if self.refusal or self.finish_reason == "content_filter":
            raise Fault("refused", self.refusal or "the provider's content filter ended the answer")
        if self.finish_reason == "length":
            raise Fault("malformed", CUT_OFF, again=True)
        return self.text


class Target(Protocol):
    """A model that can be asked."""

    @property
    def identity(self) -> Mapping[str, Any] | None:
        """Facts that tell this model from others, for the cache; None: its answers must not be kept."""

    @property
    def endpoint(self) -> str:
        """Name of the model and its address. `LLM` remembers the mode that works there by this name."""

    async def load(self) -> None:
        """Imports what a request needs, which takes seconds at first."""

    async def complete(self, mode: Mode, messages: Sequence[Message], answer: type[BaseModel], timeout: float) -> Reply:
        """Sends a request.

        Args:
            mode: How the model is asked for JSON.
            messages: The conversation.
            answer: Class of the answer.
            timeout: Seconds for the request.

        Raises:
            Exception: An error of the client package; `fault_of` translates it.
        """


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that litellm knows by name.

    A `base_url` of None is the provider's own address; an `api_key` of None, the provider's environment variable.
    """

    model: str
    base_url: str | None
    api_key: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Sampling options: temperature, max_tokens."""
    own: bool = False
    """Our own trainer server answers, which costs nothing."""
    fixed: bool = True
    """The model never changes under this name."""

    @property
    def identity(self) -> Mapping[str, Any] | None:
        return {"model": self.model, "url": self.base_url, **self.options} if self.fixed else None

    @property
    def endpoint(self) -> str:
        return f"{self.model} at {self.base_url}"

    async def load(self) -> None:
        await load_litellm()

    async def complete(self, mode: Mode, messages: Sequence[Message], answer: type[BaseModel], timeout: float) -> Reply:
        litellm = await load_litellm()
        response = await litellm.acompletion(
            model=self.model,
            base_url=self.base_url,
            api_key=self.api_key,
            timeout=timeout,
            max_retries=0,
            num_retries=0,
            **request(mode, messages, answer),
            **{name: value for name, value in self.options.items() if value is not None},
        )
        choice = response.choices[0]
        message, usage = choice.message, getattr(response, "usage", None)
        refusal = getattr(message, "refusal", None)
        refusal = refusal or (getattr(message, "provider_specific_fields", None) or {}).get("refusal")
        price = 0.0 if self.own else response._hidden_params.get("response_cost")
        return Reply(
            text=read_answer(message),
            prompt_tokens=getattr(usage, "prompt_tokens", None) or 0,
            completion_tokens=getattr(usage, "completion_tokens", None) or 0,
            price=None if price is None else float(price),
            finish_reason=choice.finish_reason,
            refusal=str(refusal) if refusal else None,
        )


async def find_target(model: str, base_url: str | None, api_key: str | None, options: Mapping[str, Any]) -> NamedModel:
    """The model that the arguments of `LLM` name.

    Args:
        model: Name of the model: "provider/name" as litellm has it, any name with `base_url`, or "art/name" for a model
            of our own server.
        base_url: Address of an OpenAI-compatible endpoint, or of our own server for an "art/name"; None: the default
            address.
        api_key: Key for this address; None: the key in the environment, but none for an endpoint that `base_url` names.
        options: Sampling options: temperature, max_tokens.

    Raises:
        ConfigError: No provider is known for the name.
        LLMError: The trainer server does not answer with the name of its base model.
    """
    provider, _, name = model.partition("/")
    if provider == "art":
        server = Connection.find(base_url, api_key)
        fixed = name == "base" or names_version(name) or "/" in name  # a policy's name has neither
        if name == "base":
            name = await base_model_name(server)
        return NamedModel(f"openai/{name}", f"{server.url}/v1", server.api_key, options, own=True, fixed=fixed)
    litellm = await load_litellm()
    if base_url:
        is_provider = provider in litellm.provider_list
        return NamedModel(model if is_provider else f"openai/{model}", base_url, api_key or "none", options)
    try:
        litellm.get_llm_provider(model)
    except litellm.BadRequestError:
        raise ConfigError(
            f"no provider is known for the model {model!r}: write it as provider/name, such as "
            "openai/gpt-4o-mini, or name an OpenAI-compatible endpoint with base_url=…"
        ) from None
    return NamedModel(model, None, api_key, options)


def has_litellm() -> bool:
    """Whether litellm is installed. Does not import it."""
    try:
        return find_spec("litellm") is not None
    except ValueError:  # its import is blocked
        return False


def check_litellm(model: str) -> None:
    """Raises ConfigError where litellm is not installed. model: what needs it."""
    if not has_litellm():
        raise ConfigError(
            f"the model {model!r} is asked through litellm, which is not installed: pip install "
            "'art-langgraph[judge]'. A LangChain chat model as judge needs no litellm"
        )


async def load_litellm() -> Any:
    """Imports litellm on first use, which takes seconds. Turns off its price list download and its log messages.

    litellm takes proxies from the environment alone, so that NO_PROXY is given loopback: the trainer server may judge.
    """
    exempt_loopback()
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_LOG", "ERROR")

    def load() -> Any:
        import litellm

        import_module("openai.resources.chat")  # else the first call imports it, on the event loop
        with warnings.catch_warnings():
            # Pydantic warns once about litellm's types; where warnings are errors, litellm reports a lost connection.
            warnings.simplefilter("ignore")
            litellm.ModelResponse()
        litellm.suppress_debug_info = True
        return litellm

    return await asyncio.to_thread(load)


async def base_model_name(server: Connection) -> str:
    """The name of the base model of a trainer server: the first model that it lists. Raises LLMError."""
    headers = {"Authorization": f"Bearer {server.api_key}"}
    try:
        transport = AsyncProxyTransport()
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=10.0, transport=transport) as http:
            answer = (await http.get("/v1/models")).raise_for_status()
    except httpx.HTTPError as error:
        raise LLMError(f"art/base: {error!r}. Is the trainer server up at {server.url}?", kind="unreachable") from None
    return str(answer.json()["data"][0]["id"])
