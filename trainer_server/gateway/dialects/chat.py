"""OpenAI's chat completions: what the gateway speaks by itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trainer_server.gateway.body import MOST_CHAT_VALUES
from trainer_server.gateway.dialects.base import DataStream, sse
from trainer_server.wire import Completion


class ChatExchange(DataStream):
    """See Exchange."""

    prompt: str | list[int] | None = None
    elastic = False
    names: Mapping[str, str] = MappingProxyType({})

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.chat = dict(body)
        self.dropped_names: list[str] = []
        self.note: dict[str, Any] = {}
        options = body.get("stream_options")
        self._wants_usage = isinstance(options, dict) and bool(options.get("include_usage"))

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """See Exchange.whole."""
        answer.pop("prompt_token_ids", None)
        return answer

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        """See Stream.chunk."""
        if not self._wants_usage:
            if not chunk.get("choices"):
                return b""
            chunk.pop("usage", None)
        chunk.pop("prompt_token_ids", None)
        return sse(chunk)


class ChatDialect:
    """`/v1/chat/completions`. See Dialect."""

    most_values = MOST_CHAT_VALUES

    def continues(self, body: Mapping[str, Any]) -> str | None:
        """See Dialect.continues."""
        return None

    def read(self, body: Mapping[str, Any], earlier: Completion | None) -> ChatExchange:
        """See Dialect.read."""
        return ChatExchange(body)


CHAT = ChatDialect()
