"""ChatART: the drop-in chat model. A ChatOpenAI that talks to the trainer server and keeps completion ids."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import httpx
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableSerializable
from langchain_core.runnables.utils import AnyConfigurableField
from langchain_openai import ChatOpenAI
from pydantic import SecretStr, model_validator

from art_langgraph.capture.answer import keep_reasoning
from art_langgraph.capture.requests import attach
from art_langgraph.client.outages import retry_seconds
from art_langgraph.client.proxies import ProxyTransport
from art_langgraph.client.servers import register_server
from art_langgraph.client.transport import LoopTransport, PatientAsyncClient, PatientClient
from trainer_server.common import Connection
from trainer_server.wire import ConfigError


@lru_cache
def _clients(retry_for: float) -> tuple[PatientClient, PatientAsyncClient]:
    """The HTTP clients that all models share: timeouts, addresses and keys come with each request."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=128)
    transport = ProxyTransport(limits=limits)
    return PatientClient(retry_for, transport=transport), PatientAsyncClient(retry_for, transport=LoopTransport())


class ChatART(ChatOpenAI):
    """A policy of the trainer server as a LangChain chat model.

    Inside a rollout, all its completions come from the same version of the policy. While the server is gone, as during
    a restart, a call is sent again for `retry_for` seconds, and a warning says so. An HTTP client of your own
    (`http_client`, `http_async_client`) does not do that.

    Args:
        policy: Name of a policy or of the base model. "agent" is the promoted version, or else the newest;
            "agent@latest" is the newest, "agent@3" a fixed version.
        model: ChatOpenAI's name for the same: `ChatART(model="agent")` is `ChatART(policy="agent")`.
        base_url: Address of the trainer server; None: ART_BASE_URL, else the local server's.
        api_key: Its key, or a function that gives it; None: ART_API_KEY, else the local server's where `base_url` is
            its address.
        retry_for: Seconds for which calls are repeated while no server answers; 0: not at all. None: ART_RETRY_FOR,
            else 120.

    All other arguments are ChatOpenAI's.

    Raises:
        ValueError: No policy is named, or `policy` and `model` differ.
        ConfigError: There is no key for the address, or `retry_for` is negative.
    """

    policy: str
    retry_for: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _find_server(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        attach()
        values = dict(values)
        policy, model, model_name = values.get("policy"), values.pop("model", None), values.pop("model_name", None)
        if policy is not None and model is not None and policy != model:
            raise ValueError(f"ChatART got policy={policy!r} and model={model!r}, two names of one thing: give policy")
        # `model_name` is the field that LangChain copies with all others: see `configurable_fields`.
        values["policy"] = policy or model or model_name
        if not values["policy"]:
            raise ValueError("ChatART needs policy=…: the name of a policy on the trainer server")
        base_url = values.pop("base_url", None) or values.pop("openai_api_base", None)
        api_key = values.pop("api_key", None) or values.pop("openai_api_key", None)
        secret = api_key.get_secret_value() if isinstance(api_key, SecretStr) else api_key
        if callable(secret):
            url = Connection.find_url(base_url)
        else:
            connection = Connection.find(base_url, secret)
            register_server(connection)
            url, api_key = connection.url, connection.api_key
        base_url = f"{url}/v1"
        values.update(base_url=base_url, api_key=api_key, model=values["policy"])
        http_client, http_async_client = _clients(retry_seconds(values.get("retry_for")))
        values.setdefault("http_client", http_client)
        values.setdefault("http_async_client", http_async_client)
        if "http_socket_options" in cls.model_fields:  # those of clients that LangChain makes
            values.setdefault("http_socket_options", ())  # else it warns that its clients, which are none, use no proxy
        values.setdefault("stream_usage", True)
        return values

    def configurable_fields(
        self, **kwargs: AnyConfigurableField
    ) -> RunnableSerializable[LanguageModelInput, AIMessage]:
        """As LangChain's. `model_name`, ChatOpenAI's field, stands for `policy`.

        Args:
            kwargs: What may be configured, by the name of the field.

        Raises:
            ConfigError: Both are given.
        """
        if (field := kwargs.pop("model_name", None)) is not None:
            if "policy" in kwargs:
                raise ConfigError("policy and model_name are two names of one field: make policy configurable alone")
            kwargs["policy"] = field
        return super().configurable_fields(**kwargs)

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return False  # LangChain's loader refuses classes from outside its own packages

    @property
    def _llm_type(self) -> str:
        return "art-chat"

    def _create_chat_result(self, response: Any, generation_info: dict[str, Any] | None = None) -> ChatResult:
        result: ChatResult = super()._create_chat_result(response, generation_info)
        choices = response.get("choices") if isinstance(response, dict) else response.choices
        for generation, choice in zip(result.generations, choices or (), strict=True):
            message = choice["message"] if isinstance(choice, dict) else choice.message.model_extra or {}
            keep_reasoning(generation.message, message)
        return result

    def _convert_chunk_to_generation_chunk(
        self, chunk: dict[str, Any], default_chunk_class: type, base_generation_info: dict[str, Any] | None
    ) -> ChatGenerationChunk | None:
        generation: ChatGenerationChunk | None = super()._convert_chunk_to_generation_chunk(
            chunk, default_chunk_class, base_generation_info
        )
        if generation is None or not chunk.get("choices"):
            return generation
        keep_reasoning(generation.message, chunk["choices"][0].get("delta") or {})
        # Once, on the chunk that ends the text: merged chunks concatenate strings.
        if (generation.generation_info or {}).get("finish_reason"):
            generation.generation_info = {**(generation.generation_info or {}), "id": chunk.get("id")}
        return generation
