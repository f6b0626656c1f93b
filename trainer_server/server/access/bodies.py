"""Bodies of requests: read whole before a route sees them, up to a limit, and only for holders of a token."""

from __future__ import annotations

import asyncio
import re
import time
from functools import partial

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainer_server.gateway.body import MOST_API_VALUES, MOST_NOTE_VALUES, check_size
from trainer_server.gateway.errors import APIError
from trainer_server.server.access.auth import authorized
from trainer_server.server.access.layers import Layer
from trainer_server.wire.json_size import MOST_VALUES, off_loop

BODY_TIMEOUT = 20.0
"""Seconds within which a client must send a further part of a body. A client that has vanished would hold its
connection for ever."""
_LEAST_RATE = 1024
"""Bytes of a body that must come in a second, after the first BODY_TIMEOUT seconds. A client that sends a byte now and
then would hold its connection for as long as it likes."""
_VALUES = (
    (re.compile(r"PUT /api/rollouts/[^/]*|POST /api/rollouts/.*/reward", re.DOTALL), MOST_NOTE_VALUES),
    (re.compile(r"POST /api/(completions|policies/[^/]*/(steps|sft))"), MOST_VALUES),
    (re.compile(r"PUT /api/rollouts/[^/]*/trace|POST /api/rollouts/traces"), 2 * MOST_API_VALUES),  # of 100 runs
    (re.compile(r"[A-Z]+ /api/.*", re.DOTALL), MOST_API_VALUES),
)
"""Values that bodies may have, by method and path. FastAPI reads bodies of the control API on the event loop."""


class Bodies(Layer):
    """Reads the bodies of requests, and answers 413 to those that are too large or have too many values, 400 to those
    that are not in UTF-8, and 408 to those that stop coming.

    Requests without a token come here for open routes only. Of these only the login reads a body, by itself.

    Args:
        app: The application behind it.
        most_mib: Largest body, MiB (`serve --max-body-mib`).
    """

    def __init__(self, app: ASGIApp, most_mib: int) -> None:
        super().__init__(app)
        self._most_mib = most_mib

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not authorized(scope):
            await self.app(scope, receive, send)
            return
        most, length = self._most_mib * 2**20, Headers(scope=scope).get("Content-Length", "")
        try:
            body = None if length.isdecimal() and int(length) > most else await read_body(receive, most)
        except ClientDisconnect:
            return
        if body is None:
            raise APIError(
                413,
                f"the body is larger than {self._most_mib} MiB: send less at once, or serve with a larger "
                "--max-body-mib",
                code="body_too_large",
            )
        await off_loop(len(body), partial(check_size, body, _most_values(scope)))
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def read_before() -> Message:
            return whole.pop() if whole else await receive()

        await self.app(scope, read_before, send)


def _most_values(scope: Scope) -> int:
    request = f"{scope['method']} {scope['path']}"
    return next((most for form, most in _VALUES if form.fullmatch(request)), MOST_VALUES)


async def read_body(receive: Receive, most: int) -> bytes | None:
    """The body of a request. None: it has more than `most` bytes; what follows them is not read.

    Raises:
        APIError: 408: nothing came for BODY_TIMEOUT seconds, or less than _LEAST_RATE.
        ClientDisconnect: The client went away.
    """
    body, start = bytearray(), time.monotonic()
    more = True
    while more:
        message = await _next_part(receive, len(body), start)
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > most:
            return None
        more = message.get("more_body", False)
    return bytes(body)


async def _next_part(receive: Receive, before: int, start: float) -> Message:
    """The next message of a request whose body is not whole yet.

    Args:
        receive: Of the request.
        before: Bytes of the body that have come.
        start: When the wait for the first part began, by the monotonic clock.

    Raises:
        APIError: 408: nothing came for BODY_TIMEOUT seconds, or less than _LEAST_RATE.
    """
    seconds = start + BODY_TIMEOUT + before / _LEAST_RATE - time.monotonic()
    try:
        return await asyncio.wait_for(receive(), min(BODY_TIMEOUT, seconds))
    except TimeoutError:
        problem = f"none for {BODY_TIMEOUT:g} s" if seconds > BODY_TIMEOUT else f"less than {_LEAST_RATE} a second"
        raise APIError(
            408,
            f"{before} bytes of the body have come, and {problem}: send the request again",
            code="body_timeout",
        ) from None
