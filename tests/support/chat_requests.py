"""Chat requests, as the gateway reads them."""

from __future__ import annotations

import json
from collections.abc import Collection

from trainer_server.gateway.body import read_object
from trainer_server.gateway.client_api import CHAT
from trainer_server.gateway.parser import ChatRequest, chat_request


def parse(body: object, *, max_tokens: int = 5, media_domains: Collection[str] = ()) -> ChatRequest:
    """Reads a body as that of `/v1/chat/completions`. Raises APIError."""
    exchange = CHAT.read(read_object(json.dumps(body).encode()), None)
    return chat_request(exchange, max_tokens=max_tokens, media_domains=media_domains)
