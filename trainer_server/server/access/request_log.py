"""Writes what requests did into the audit log, before their answer begins: nothing that was answered is missing."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainer_server.server.access.audit import AuditLog
from trainer_server.server.access.layer import Layer
from trainer_server.server.access.scopes import LOGIN, rule_of, token_of
from trainer_server.server.access.tokens import Token

log = logging.getLogger("trainer_server")

_NOTE = "audit"
"""Key of a request's state."""
_WINDOW = 60.0
"""Seconds for which refused requests of a kind, or logins, are counted together."""
_FIRST = 10
"""Such requests of a token and an action that have a line each. Others have one, with their number."""
_FOLDED = {"login", "version.fetch"}
"""Actions that change nothing: their repetitions are counted as refused requests are, though they were done."""
_FIRST_OF_NOBODY = 1
"""The same of requests without a token that counts, all together."""
_MOST_ADDRESSES = 1000
"""Addresses of refused requests that are told apart."""

_Key = tuple[str, str, bool]


def note(scope: Scope, *, target: str | None = None, token: Token | None = None) -> None:
    """Tells the audit log more of a request than its path says.

    Args:
        scope: Of the request.
        target: What is done, and to what; no text of anybody.
        token: One that the request brings in another way than its headers.
    """
    known = scope.setdefault("state", {}).setdefault(_NOTE, {})
    known |= {name: value for name, value in (("target", target), ("token", token)) if value is not None}


@dataclass(eq=False, slots=True)
class _Kind:
    """Requests of one token and one action that are counted together, in one window."""

    end: float
    lines: int = 0
    more: int = 0
    """Requests without a line."""
    last: dict[str, Any] = field(default_factory=dict)
    """What a line would have said of the last of them."""
    addresses: set[str | None] = field(default_factory=set)


class RequestLog:
    """Adds lines about requests to the audit log.

    Each request that changed something has a line. Of those that were refused or failed, and of logins and fetched
    files, the first of a token and an action in a minute have one; the others have one together, with their number. So
    nobody can fill the log by repeating them, until its older lines are deleted.

    Args:
        audit: The log.
    """

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._kinds: dict[_Key, _Kind] = {}
        """By name of the token, action, and whether it was done."""
        self._writing: set[asyncio.Task[None]] = set()

    async def add(self, scope: Scope, token: Token | None, action: str, target: str, status: int | None) -> None:
        """Adds a request. A log that cannot be written is an error in the server's own log.

        Args:
            scope: Of the request.
            token: With which it came; None: it had none that counts.
            action: What was asked for.
            target: What it was done to.
            status: Of its answer; None: its client left before.
        """
        line = _line(scope, token, action, target, status)
        done = line["result"] == "ok"
        if done and action not in _FOLDED:
            await self._write(line)
            return
        key = line["who"], action, done
        kind = self._kinds.get(key)
        if kind is None or time.monotonic() >= kind.end:
            await self._end(key)
            kind = self._kinds[key] = _Kind(time.monotonic() + _WINDOW)
            asyncio.get_running_loop().call_later(_WINDOW, self._end_window, key, kind)
        if kind.lines < (_FIRST if token else _FIRST_OF_NOBODY):
            kind.lines += 1
            await self._write(line)
            return
        kind.more += 1
        kind.last = line
        if len(kind.addresses) < _MOST_ADDRESSES:
            kind.addresses.add(line["address"])

    async def close(self) -> None:
        """Writes what has been counted, and is not written yet."""
        for key in list(self._kinds):
            await self._end(key)
        await asyncio.gather(*self._writing)

    def _end_window(self, key: _Key, kind: _Kind) -> None:
        if self._kinds.get(key) is kind:
            task = asyncio.get_running_loop().create_task(self._end(key))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def _end(self, key: _Key) -> None:
        """Ends a window, and writes how many requests in it have no line."""
        kind = self._kinds.pop(key, None)
        if kind is not None and kind.more:
            addresses = f"{len(kind.addresses)} addresses" if len(kind.addresses) > 1 else "the same address"
            await self._write({**kind.last, "target": f"{kind.more} more in the same minute, from {addresses}"})

    async def _write(self, line: dict[str, Any]) -> None:
        try:
            await asyncio.to_thread(self._audit.add, **line)
        except OSError as error:
            log.error(
                "the audit log could not be written (%s): %s %s by %s: %s",
                error,
                *(line[name] for name in ("action", "target", "who", "result")),
            )


def _line(scope: Scope, token: Token | None, action: str, target: str, status: int | None) -> dict[str, Any]:
    """What `AuditLog.add` takes."""
    who, owner = (token.name, token.owner) if token else ("-", None)
    result: Literal["ok", "refused", "failed"] = "ok" if status is not None and status < 400 else "refused"
    if status is None or status >= 500:
        result = "failed"
    client = scope.get("client")
    return {
        "who": who,
        "action": action,
        "target": target,
        "result": result,
        "owner": owner,
        "status": status,
        "address": str(client[0]) if client else None,
    }


class AuditLayer(Layer):
    """Adds a line for each request to a route that has an action (scopes.py), however it ends; see `RequestLog`.

    Args:
        app: The application behind it.
        requests: The log.
    """

    def __init__(self, app: ASGIApp, requests: RequestLog) -> None:
        super().__init__(app)
        self._requests = requests

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        written = False

        async def pass_on(message: Message) -> None:
            nonlocal written
            if message["type"] == "http.response.start" and not written:
                written = True
                await self._write(scope, message["status"])
            await send(message)

        try:
            await self.app(scope, receive, pass_on)
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
        await self._requests.add(scope, told.get("token") or token_of(scope), rule.action, target, status)


class Refusals(Layer):
    """Adds requests without a token that counts, but for logins, which `AuditLayer` adds.

    Args:
        app: The application behind it.
        requests: The log.
    """

    def __init__(self, app: ASGIApp, requests: RequestLog) -> None:
        super().__init__(app)
        self._requests = requests

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def pass_on(message: Message) -> None:
            refused = message["type"] == "http.response.start" and message["status"] == 401
            if refused and token_of(scope) is None and scope["path"] != LOGIN:
                await self._requests.add(scope, None, "access", "a request without a token that counts", 401)
            await send(message)

        await self.app(scope, receive, pass_on)


def _target(parameters: dict[str, Any]) -> str:
    """What the parameters of a path name: `agent@3`, a job, a rollout."""
    if "number" in parameters:
        return f"{parameters.get('name')}@{parameters['number']}"
    return " ".join(str(value) for value in parameters.values())
