"""OpenAI's chat completions: what the gateway speaks by itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trainer_server.gateway.dialects.base import DataStream, Dialect, sse


class ChatExchange(DataStream):
    """A chat request as it is. Its answer has no more than the client asked for.

    Args:
        body: The request.
    """

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
        """The answer without the tokens of the prompt."""
        answer.pop("prompt_token_ids", None)
        return answer

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        """The event of a chunk; empty for one of usage that the client did not ask for."""
        if not self._wants_usage:
            if not chunk.get("choices"):
                return b""
            chunk.pop("usage", None)
        chunk.pop("prompt_token_ids", None)
        return sse(chunk)


CHAT = Dialect(lambda body, earlier: ChatExchange(body))
"""`/v1/chat/completions`."""
