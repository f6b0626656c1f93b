"""An id for each request: in its answer, and in all lines of the log that are about it."""

from __future__ import annotations

import logging
import re
import time
import uuid
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainer_server.gateway.errors import APIError
from trainer_server.process.logs import about
from trainer_server.wire import ROLLOUT_PATTERN
from trainer_server.wire.headers import REQUEST, ROLLOUT

log = logging.getLogger("trainer_server.requests")

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
"""An id that a client may give. Others are replaced: an id stands in the log as it is."""
_MOST_PATH = 500
"""Characters of a path in the log."""
_PATH = re.compile(r"(?:/api)?/rollouts/([^/]+)")


class RequestIds:
    """Gives each request an id, that of the header `X-Request-Id` where the client named one, and answers it there.

    What a route raises by mistake is logged, and answered with status 500.

    Plain ASGI.

    Args:
        app: The application behind it.
        logged: Whether each request is a line of the log when it has been answered.
    """

    def __init__(self, app: ASGIApp, *, logged: bool = False) -> None:
        self.app = app
        self._logged = logged

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(REQUEST, "")
        request = given if _ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
        began, status = time.perf_counter(), 0

        async def pass_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST] = request
            await send(message)

        with about(request=request, rollout=_rollout(scope["path"], headers)):
            try:
                await self.app(scope, receive, pass_on)
            except Exception as error:  # at the edge of a request: it is logged with its id, and answered
                log.exception("the server failed on %s %s", scope["method"], scope["path"][:_MOST_PATH])
                if status:
                    raise  # in the middle of an answer: the connection is closed, which the client notices
                said = f"the server failed on this request: {type(error).__name__}. Its log has more, under {request}"
                await APIError(500, said, code="fault").response(scope["path"])(scope, receive, pass_on)
            finally:
                if self._logged:
                    facts = {"method": scope["method"], "path": scope["path"][:_MOST_PATH], "status": status}
                    seconds = round(time.perf_counter() - began, 4)
                    log.info("request", extra={**facts, "seconds": seconds})


def _rollout(path: str, headers: Headers) -> str | None:
    """The rollout of a request, by its path or its header; None: it has none, or one that is no id."""
    match = _PATH.match(path)
    name = unquote(match[1]) if match else headers.get(ROLLOUT, "")
    return name if re.fullmatch(ROLLOUT_PATTERN, name) else None
