"""Sessions with an MCP server: a single one for all rollouts, or one for each. Each session runs in its own task."""

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
"""Seconds to wait for a session to close. The SDK needs up to about half of it to end a process by TERM and KILL."""

Isolation = Literal["shared", "session"]
"""See `connect`."""


class Source(Protocol):
    """Answers requests: a live server, or a cassette. Every wait has a timeout."""

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        """Answers a request as `Channel.request` does. Raises MCPError."""
        ...

    async def close(self) -> None:
        """Ends what the source has opened."""
        ...


class Session:
    """A session with a server. Any task may open, use and close it.

    The SDK requires that the same task enters and leaves a session. Here this is a task that the session starts. The
    server's process ends with that task.

    Args:
        target: The server.
        timeouts: Seconds to wait for the start, and seconds to wait for each answer.
        on_change: Called when the server says that its tools have changed.
    """

    def __init__(self, target: Target, timeouts: tuple[float, float], on_change: Callable[[], None]) -> None:
        self._target = target
        self._start_timeout, self._timeout = timeouts
        self._leave = asyncio.Event()
        self._ready = asyncio.Event()
        self._channel: Channel | None = None
        self._stderr: Stderr | None = None
        # An empty context: a shared session lives longer than the rollout that opens it.
        self._task = asyncio.create_task(self._run(on_change), name=f"mcp {target}", context=Context())

    @property
    def ended(self) -> bool:
        """Whether the server has ended, or a request has failed because the connection was closed."""
        return self._leave.is_set() or self._task.done()

    async def _run(self, on_change: Callable[[], None]) -> None:
        """Keeps the session open until `close` is called. The body of the session's task."""
        target = _guarded(self._target) if isinstance(self._target, Stdio) else self._target
        async with read_stderr() as self._stderr, sdk.opened(target, self._stderr.file, on_change) as self._channel:
            self._ready.set()
            await self._leave.wait()

    async def open(self) -> None:
        """Waits until the server has answered `initialize`.

        Raises:
            MCPError: The server cannot be started or reached, or did not answer in time. Its process has ended.
        """
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
        """Sends a request, as `Channel.request` does.

        Raises:
            MCPError: As `Channel.request`; with the failure `timeout` after the session's timeout, and with the failure
                `closed` if the server has ended.
        """
        assert self._channel is not None
        call = asyncio.ensure_future(self._channel.request(method, params, progress))
        call.add_done_callback(lambda task: task.cancelled() or task.exception())  # else asyncio warns of it
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
        """Ends the session and its process, within 2 × CLOSING seconds. Errors of the session are logged, not raised.

        If the caller is cancelled, the session still ends by itself.
        """
        self._leave.set()
        for _ in range(2):
            await asyncio.wait({self._task}, timeout=CLOSING)
            if self._task.done():
                break
            self._task.cancel()
        if self._task.done() and not self._task.cancelled() and (error := self._task.exception()):
            log.debug("the session with %s ended with %r", self._target, error)

    def _reason(self) -> str:
        """Why the session's task has ended: of an exception group, the first exception."""
        error: BaseException | None = None if self._task.cancelled() else self._task.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return f"{type(error).__name__}: {error}" if error else "it ended"

    def _last_words(self) -> str:
        """The last line on the server's stderr, as the end of an error message."""
        line = self._stderr.last_line() if self._stderr else ""
        return f" (it wrote: {line})" if line else ""


@dataclass(slots=True)
class _Slot:
    """The session of a rollout, or the shared session.

    Args:
        session: The session. None: it was not opened yet.
        ended: Whether the rollout, or the whole connection, is over.
        lock: Held while the session is opened, so that only one caller opens it.
    """

    session: Session | None = None
    ended: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Live:
    """A live server with its sessions. If a session has ended, the next request opens a new one.

    Args:
        target: The server.
        timeouts: Seconds to wait for the start, and seconds to wait for each answer.
        isolation: See `connect`.
        on_change: Called when the server says that its tools have changed.
    """

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
        """Sends a request to the session of the current rollout, or to the shared one. Raises MCPError."""
        session = await self._session()
        return await session.request(method, params, progress)

    async def close(self) -> None:
        """Ends all sessions."""
        self._closed = True
        await asyncio.gather(*map(self._end, list(self._slots)))

    async def _session(self) -> Session:
        """The open session for the current rollout, or the shared one. Raises MCPError."""
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
                if slot.ended:  # the rollout ended while the session was opened
                    await session.close()
                    raise MCPError("the rollout that called it is over", failure="closed")
            return slot.session

    async def _end(self, key: str) -> None:
        if slot := self._slots.pop(key, None):
            slot.ended = True
            if slot.session:
                await slot.session.close()


def ending_rollout() -> Scope | None:
    """The current rollout, if it closes resources at its end. None: there is none, or it does not."""
    scope = current()
    return scope if scope and scope.exits else None


def _guarded(target: Stdio) -> Stdio:
    """Wraps the command in the guard, so that it and the processes that it starts end when this process ends.

    Raises:
        MCPError: The command is not in PATH.
    """
    program = target.command[0]
    if "/" not in program and shutil.which(program, path=target.env.get("PATH")) is None:
        raise MCPError(f"there is no command {program!r} in PATH: install it, or give its path", failure="closed")
    if sys.platform != "linux":  # the guard reads /proc
        return target
    return replace(target, command=tuple(guarded(target.command)))
