"""Writes what requests did into the audit log, before their answer begins: nothing that was answered is missing."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainer_server.server.access.audit import AuditLog
from trainer_server.server.access.layer import Layer
from trainer_server.server.access.scopes import rule_of, token_of
from trainer_server.server.access.tokens import Token

log = logging.getLogger("trainer_server")

_NOTE = "audit"
"""Key of a request's state."""
_OFTEN = 60.0
"""Seconds between two lines about requests without a token that counts."""


def note(scope: Scope, *, target: str | None = None, token: Token | None = None) -> None:
    """Tells the audit log more of a request than its path says.

    Args:
        scope: Of the request.
        target: What is done, and to what; no text of anybody.
        token: One that the request brings in another way than its headers.
    """
    known = scope.setdefault("state", {}).setdefault(_NOTE, {})
    known |= {name: value for name, value in (("target", target), ("token", token)) if value is not None}


class Audited(Layer):
    """Adds a line for each request to a route that has an action (scopes.py), however it ends.

    Args:
        app: The application behind it.
        audit: The log.
    """

    def __init__(self, app: ASGIApp, audit: AuditLog) -> None:
        super().__init__(app)
        self._audit = audit

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        written = False

        async def noted(message: Message) -> None:
            nonlocal written
            if message["type"] == "http.response.start" and not written:
                written = True
                await self._write(scope, message["status"])
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except Exception:
            if not written:
                written = True
                await self._write(scope, 500)
            raise
        finally:
            if not written:  # its client left
                await asyncio.shield(self._write(scope, None))

    async def _write(self, scope: Scope, status: int | None) -> None:
        rule = rule_of(scope)
        if rule is None or rule.action is None:
            return
        told = scope.get("state", {}).get(_NOTE, {})
        target = told.get("target") or _target(scope.get("path_params", {}))
        await add(self._audit, scope, told.get("token") or token_of(scope), rule.action, target, status)


class Refusals(Layer):
    """Adds a line for requests without a token that counts, a minute at most for all of them, with their number.

    Args:
        app: The application behind it.
        audit: The log.
    """

    def __init__(self, app: ASGIApp, audit: AuditLog) -> None:
        super().__init__(app)
        self._audit = audit
        self._count, self._last = 0, -_OFTEN

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401 and token_of(scope) is None:
                self._count += 1
                if time.monotonic() - self._last >= _OFTEN:
                    count, self._count, self._last = self._count, 0, time.monotonic()
                    await add(self._audit, scope, None, "access", f"{count} requests without a token that counts", 401)
            await send(message)

        await self.app(scope, receive, noted)


async def add(audit: AuditLog, scope: Scope, token: Token | None, action: str, target: str, status: int | None) -> None:
    """Adds a line about a request. A log that cannot be written is an error in the server's own log."""
    who, owner = (token.name, token.owner) if token else ("-", None)
    result: Literal["ok", "refused", "failed"] = "ok" if status is not None and status < 400 else "refused"
    if status is None or status >= 500:
        result = "failed"
    client = scope.get("client")
    address = str(client[0]) if client else None
    try:
        await asyncio.to_thread(audit.add, who, action, target, result, owner=owner, status=status, address=address)
    except OSError as error:
        log.error("the audit log could not be written (%s): %s %s by %s: %s", error, action, target, who, result)


def _target(parameters: dict[str, Any]) -> str:
    """What the parameters of a path name: `agent@3`, a job, a rollout."""
    if "number" in parameters:
        return f"{parameters.get('name')}@{parameters['number']}"
    return " ".join(str(value) for value in parameters.values())
