"""Requests of chat models carry the rollout that they are made in, with its temperature and its version.

LangChain's OpenAI models make all their requests in one method, which takes no hook, and so do its Anthropic models.
`attach` wraps it. A model with the key of a trainer server then sends the rollout's id, its temperature and its
version, whether it is a ChatART, a ChatOpenAI, a ChatAnthropic, or what `init_chat_model` made of one.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_openai.chat_models.base import BaseChatOpenAI
from pydantic import SecretStr

from art_langgraph.background.release import Server
from art_langgraph.capture.scope import Scope, current
from art_langgraph.client.proxies import exempt_clients
from art_langgraph.client.servers import server_of, server_url
from art_langgraph.client.transport import keep_loops_apart

REPORTED_HEADER = "X-ART-Recorded"
"""Header of requests that LangChain's callbacks report. `tie_clients` takes it off, and counts all others."""

_lock = threading.Lock()


def attach() -> None:
    """Has the requests of LangChain's OpenAI and Anthropic models carry their rollout, and not go by a proxy to this
    machine.

    Each class is wrapped once per process; that for Anthropic's API when it has been imported.
    """
    exempt_clients()
    anthropic = sys.modules.get("langchain_anthropic.chat_models")
    with _lock:
        _wrap_payloads(BaseChatOpenAI)
        if anthropic is not None and _wrap_payloads(anthropic.ChatAnthropic):
            _keep_ids(anthropic.ChatAnthropic)


def _wrap_payloads(kind: Any) -> bool:
    """Wraps a class of chat models. Returns whether it was not wrapped yet."""
    plain = kind._get_request_payload
    if getattr(plain, "_carries_rollout", False):
        return False

    @functools.wraps(plain)
    def payload_in_rollout(
        self: Any, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        payload: dict[str, Any] = plain(self, input_, stop=stop, **kwargs)
        if (scope := current() or _outer()) is not None and (server := _server_of(self)) is not None:
            _mark(payload, scope, server)
            # langchain-openai has one HTTP client for all models of an address, and a connection belongs to the event
            # loop that opened it. A client that the user gave to the model is left alone.
            if isinstance(self, BaseChatOpenAI) and self.http_async_client is None:
                keep_loops_apart(self.root_async_client._client)
        return payload

    payload_in_rollout._carries_rollout = True  # type: ignore[attr-defined]
    kind._get_request_payload = payload_in_rollout
    return True


def _outer() -> Scope | None:
    """The rollout of another process that this process belongs to, by its environment."""
    rollout = os.environ.get("ART_ROLLOUT")
    return Scope(rollout_id=rollout) if rollout else None


def _keep_ids(kind: Any) -> None:
    """Has LangChain's Anthropic model keep the id of a streamed answer, as it does of a whole one."""
    plain = kind._make_message_chunk_from_anthropic_event

    @functools.wraps(plain)
    def chunk_with_id(self: Any, event: Any, **kwargs: Any) -> Any:
        chunk, block = plain(self, event, **kwargs)
        if chunk is not None and event.type == "message_start":
            chunk.response_metadata["id"] = event.message.id
        return chunk, block

    kind._make_message_chunk_from_anthropic_event = chunk_with_id


def _server_of(model: Any) -> Server | None:
    """The trainer server that a model's requests go to; None for other servers."""
    is_openai = isinstance(model, BaseChatOpenAI)
    url, key = (
        (model.openai_api_base, model.openai_api_key)
        if is_openai
        else (model.anthropic_api_url, model.anthropic_api_key)
    )
    if isinstance(key, SecretStr):
        server = server_of(url, key.get_secret_value())
        return None if server is None else (server.url, server.api_key)
    if key is None or model._llm_type != "art-chat" or not url:
        return None
    return server_url(url), key  # a ChatART, whose key a function gives


def _mark(payload: dict[str, Any], scope: Scope, server: Server) -> None:
    """Adds what the gateway has to know of the rollout to a request."""
    payload["extra_headers"] = {**(payload.get("extra_headers") or {}), **scope.headers, REPORTED_HEADER: "1"}
    scope.servers.add(server)
    scope.mark_count += 1
