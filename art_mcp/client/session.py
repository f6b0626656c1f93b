"""Sessions with a server: each in a task of its own, one for all rollouts or one for each."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from art_langgraph.capture.scope import Scope, current
from art_mcp.client import sdk
from art_mcp.client.sdk import Channel, Progress, Stdio, Target
from art_mcp.client.stderr import Stderr, read_stderr
from trainer_server.wire import MCPError
from trainer_server.wire.guard import guarded

log = logging.getLogger("art_mcp")

CLOSING = 12.0
"""Seconds for a server to end by itself, by TERM and by KILL; the SDK waits for about half of it."""

Isolation = Literal["shared", "session"]


class Source(Protocol):
    """What answers requests: a live server, or a cassette. Raises MCPError; every wait is bounded."""

    async def request(
        self, method: str, params: Mapping[str, Any], progress: Progress | None = None
    ) -> dict[str, Any]: ...

    async def close(self) -> None: ...


class Session:
    """One session with a server. Any task may open, use and close it: the SDK wants it entered and left in the same
    one, which is a task of its own here. The server's process never outlives that task. timeouts: seconds for the start
    and for each answer.
    """

    def __init__(self, target: Target, timeouts: tuple[float, float], on_change: Callable[[], None]) -> None:
        self._target = target
        self._start_timeout, self._timeout = timeouts
        self._leave = asyncio.Event()
        self._ready = asyncio.Event()
        self._channel: Channel | None = None
        self._stderr: Stderr | None = None
        # A context of its own: the session may live longer than the rollout that happened to open it.
        self._task = asyncio.create_task(self._run(on_change), name=f"mcp {target}", context=Context())

    @property
    def ended(self) -> bool:
        """The server is gone, or a request saw its connection closed."""
        return self._leave.is_set() or self._task.done()

    async def _run(self, on_change: Callable[[], None]) -> None:
        target = _guarded(self._target) if isinstance(self._target, Stdio) else self._target
        async with read_stderr() as self._stderr, sdk.opened(target, self._stderr.file, on_change) as self._channel:
            self._ready.set()
            await self._leave.wait()

    async def open(self) -> None:
        """Returns when the server has introduced itself. Raises MCPError, and leaves no process behind."""
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({ready, self._task}, timeout=self._start_timeout, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            await self.close()
            raise
        finally:
            ready.cancel()
        if self._channel is not None and not self._task.done():
            return
        if self._task.done():
            reason, failure = f"cannot be used: {self._reason()}", "closed"
        else:
            reason, failure = f"did not answer within {self._start_timeout:g} s", "timeout"
            self._task.cancel()
        await self.close()
        raise MCPError(f"the MCP server {str(self._target)!r} {reason}{self._last_words()}", failure=failure)

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None) -> dict[str, Any]:
        """One answer. Raises MCPError: `timeout` after the session's timeout, `closed` when the server is gone."""
        assert self._channel is not None
        call = asyncio.ensure_future(self._channel.request(method, params, progress))
        call.add_done_callback(lambda one: one.cancelled() or one.exception())  # seen, also when nobody waits any more
        try:
            await asyncio.wait({call, self._task}, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return call.result()
        except MCPError as error:
            if error.failure != "closed":
                raise
        finally:
            call.cancel()
        if not (call.done() or self._task.done()):
            raise MCPError(f"no answer within {self._timeout:g} s", failure="timeout")
        await self.close()
        raise MCPError(f"the server ended its connection{self._last_words()}", failure="closed")

    async def close(self) -> None:
        """Ends the session and its process. Never raises; bounded, and going on by itself when it is cancelled."""
        self._leave.set()
        for _ in range(2):
            await asyncio.wait({self._task}, timeout=CLOSING)
            if self._task.done():
                break
            self._task.cancel()
        if self._task.done() and not self._task.cancelled() and (error := self._task.exception()):
            log.debug("the session with %s ended with %r", self._target, error)

    def _reason(self) -> str:
        error: BaseException | None = None if self._task.cancelled() else self._task.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return f"{type(error).__name__}: {error}" if error else "it ended"

    def _last_words(self) -> str:
        line = self._stderr.last_line() if self._stderr else ""
        return f" (it wrote: {line})" if line else ""


@dataclass(slots=True)
class _Slot:
    """Place of one session. ended: its rollout, or the whole connection, is over."""

    session: Session | None = None
    ended: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Live:
    """A server and its sessions. One that ended is opened again by the next request."""

    def __init__(
        self, target: Target, timeouts: tuple[float, float], isolation: Isolation, on_change: Callable[[], None]
    ) -> None:
        self._target = target
        self._timeouts = timeouts
        self._isolation = isolation
        self._on_change = on_change
        self._slots: dict[str, _Slot] = {}
        self._closed = False

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        session = await self._session()
        return await session.request(method, params, progress)

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*map(self._end, list(self._slots)))

    async def _session(self) -> Session:
        if self._closed:
            raise MCPError("its connection has been left", failure="closed")
        rollout = ending_rollout() if self._isolation == "session" else None
        key = rollout.rollout_id if rollout else ""
        if key not in self._slots:
            self._slots[key] = _Slot()
            if rollout and rollout.exits:
                rollout.exits.push_async_callback(self._end, key)
        slot = self._slots[key]
        async with slot.lock:
            if slot.session is None or slot.session.ended:
                session = Session(self._target, self._timeouts, self._on_change)
                await session.open()
                slot.session = session
                if slot.ended:  # while it was opened
                    await session.close()
                    raise MCPError("the rollout that called it is over", failure="closed")
            return slot.session

    async def _end(self, key: str) -> None:
        if slot := self._slots.pop(key, None):
            slot.ended = True
            if slot.session:
                await slot.session.close()


def ending_rollout() -> Scope | None:
    """The rollout that runs here, if somebody waits for its end: what belongs to it can be closed then."""
    scope = current()
    return scope if scope and scope.exits else None


def _guarded(target: Stdio) -> Stdio:
    """Runs the command under the guard: what it started ends with it, and all of it ends with this process."""
    program = target.command[0]
    if "/" not in program and shutil.which(program, path=target.env.get("PATH")) is None:
        raise MCPError(f"there is no command {program!r} in PATH: install it, or give its path", failure="closed")
    if sys.platform != "linux":  # the guard reads /proc
        return target
    return replace(target, command=tuple(guarded(target.command)))
