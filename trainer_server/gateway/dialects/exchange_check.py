"""The chat request of an exchange, checked."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from trainer_server.gateway.chat_request import ChatRequest, parse
from trainer_server.gateway.dialects.base import Exchange
from trainer_server.gateway.errors import APIError


def check_exchange(
    exchange: Exchange, *, default_max_tokens: int, temperature: float | None, media_domains: Collection[str] = ()
) -> ChatRequest:
    """Checks a translated request; see `parse`.

    Raises:
        APIError: 400; it names the field that is wrong as the client calls it.
    """
    try:
        chat = parse(
            exchange.chat,
            default_max_tokens=default_max_tokens,
            temperature=temperature,
            media_domains=media_domains,
            prompt=exchange.prompt,
        )
    except APIError as error:
        if (ours := error.param) is None or (theirs := exchange.names.get(ours)) is None:
            raise
        message = error.message.replace(f"`{ours}", f"`{theirs}", 1)
        raise APIError(error.status, message, code=error.code, param=theirs) from None
    dropped = sorted({*chat.dropped_names, *exchange.dropped_names})
    return replace(chat, dropped_names=dropped, note=exchange.note, elastic=exchange.elastic)
