"""Calls that a server refuses because there are too many: they are made again after a while."""

from __future__ import annotations

import asyncio
import email.utils
import logging
import re
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from art_mcp.client.result import CallResult

log = logging.getLogger("art_mcp")

WAITS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each further attempt, if the server does not say how long to wait."""

LONGEST = 20.0
"""Seconds that a server may ask to wait. One that asks for more is not waited for."""

_TOO_MANY = 429
_UNAVAILABLE = 503

_LIMIT_MESSAGE = re.compile(
    r"\b429\b.{0,40}(?:too many|rate|limit|quota)|too many requests|\brate[ -]?limit(?:ed|s)?\b.{0,40}"
    r"(?:exceeded|reached|hit|try again|retry|slow down)|\brate[ -]?limited\b",
    re.IGNORECASE | re.DOTALL,
)
"""What servers say when they, or a service behind them, refuse a call. Only results that are errors are looked at."""

_AFTER = re.compile(
    r"(?:retry|again|wait)\D{0,20}(\d+(?:\.\d+)?)\s*(ms|milliseconds|s\b|sec|seconds?\b)", re.IGNORECASE
)
"""How long they ask to wait."""


Send = Callable[..., Awaitable[Any]]
"""Takes a request and options, and returns the response."""


class Patience:
    """Tells how long to wait for each further attempt of calls, and says once that calls are refused.

    Args:
        server: Name of the server, for the message.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._told = False
        self.given_up = False
        """Whether the last thing that was refused is not tried again."""

    async def wait(self, attempt: int, seconds: float | None) -> bool:
        """Waits before a further attempt. False: there should be none.

        Args:
            attempt: How many attempts were refused, from 1.
            seconds: Seconds that the server asks for. None: it does not say.
        """
        self.given_up = attempt > len(WAITS) or (seconds is not None and seconds > LONGEST)
        if self.given_up:
            return False
        if not self._told:
            self._told = True
            log.warning(
                "%s refuses calls because there are too many (429). They are made again after a while. "
                "A lower max_concurrency avoids this",
                self._server,
            )
        await asyncio.sleep(WAITS[attempt - 1] if seconds is None else seconds)
        return True


def refused(result: CallResult) -> bool:
    """Whether a result is an error that says that there were too many calls."""
    return result.is_error and _LIMIT_MESSAGE.search(result.text[:2_000]) is not None


def asked_to_wait(result: CallResult) -> float | None:
    """Seconds that the text of a refusal asks to wait. None: it does not say."""
    match = _AFTER.search(result.text[:2_000])
    if match is None:
        return None
    return float(match[1]) / (1_000 if match[2].lower().startswith("m") else 1)


def patient(send: Send, patience: Patience) -> Send:
    """Wraps the function by which an HTTP client sends a request: what was refused with 429, or with 503 and a
    Retry-After, was not carried out, and is sent again.

    Args:
        send: The method `send` of a client of httpx, or of httpx2, which SDK 2 takes.
        patience: Waits, and knows afterwards whether it has given up.
    """

    async def send_with_patience(request: Any, **options: Any) -> Any:
        for attempt in count(1):
            response = await send(request, **options)
            seconds = _retry_after(response.headers.get("retry-after"))
            busy = response.status_code == _TOO_MANY or (response.status_code == _UNAVAILABLE and seconds is not None)
            if not busy:
                patience.given_up = False
                return response
            if not await patience.wait(attempt, seconds):
                return response
            await response.aclose()
        raise AssertionError("count() does not end")

    return send_with_patience


def _retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header: a number, or the date of a moment. None: there is none that can be read."""
    if value is None:
        return None
    if re.fullmatch(r"\d+(\.\d+)?", value.strip()):
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return None
