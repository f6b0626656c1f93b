"""Resets a server before each rollout, for worlds that cannot be copied. One rollout uses the server at a time."""

from __future__ import annotations

import asyncio
import inspect
import logging
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx

from art_langgraph.client.proxies import AsyncProxyTransport
from art_mcp.client.connection.sdk import Progress, words_of
from art_mcp.client.live import Source
from trainer_server.wire import ConfigError, MCPError

log = logging.getLogger("art_mcp")

TIMEOUT = 60.0
"""Seconds that a reset may take."""

PATIENCE = 900.0
"""Seconds that a rollout waits while the same other one has the server."""

Reset = str | Callable[[], Awaitable[None] | None]
"""A command, a URL that is sent a POST, or a function, sync or async."""

_ACTS = ("tools/call", "resources/read")
"""Methods that wait for their turn. The others only list."""


class ResetQueue:
    """Gives the server to one rollout after another, and resets it before each.

    Args:
        how: Resets the server.

    Raises:
        ConfigError: The command is empty or has an open quotation.
    """

    def __init__(self, how: Reset) -> None:
        self._how = how
        self._lock = asyncio.Lock()
        self._holder = ""
        self._command: list[str] = []
        self.resets = 0
        if isinstance(how, str) and not _is_url(how):
            try:
                self._command = words_of(how)
            except ValueError as error:
                raise ConfigError(f"--reset {how!r} cannot be read as a shell does: {error}") from None
            if not self._command:
                raise ConfigError("--reset takes a command or a URL")

    async def begin(self, rollout: str = "a rollout") -> None:
        """Waits for the turn of a rollout, and resets the server.

        Args:
            rollout: Its id.

        Raises:
            MCPError: The reset failed, and the next rollout may begin. Or another rollout does not end.
        """
        await self._turn()
        self._holder = rollout
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._reset()
            self.resets += 1
        except BaseException as error:
            self._lock.release()
            if isinstance(error, Exception):
                late = isinstance(error, TimeoutError)
                reason = f"no end within {TIMEOUT:g} s" if late else str(error) or type(error).__name__
                what = self._how if isinstance(self._how, str) else getattr(self._how, "__name__", "its function")
                raise MCPError(f"the reset ({what}) failed: {reason}", failure="closed") from error
            raise

    def end(self) -> None:
        """The rollout is over: the next one may begin."""
        self._lock.release()

    async def _turn(self) -> None:
        """Waits for the turn. Raises MCPError if the same rollout has had the server for too long."""
        while True:
            holder = self._holder
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._lock.acquire()
                    return
            except TimeoutError:
                if holder == self._holder:
                    raise MCPError(
                        f"{holder} has had the server for {PATIENCE:g} s. Servers with reset= serve one rollout at a "
                        "time: a rollout inside of another one, or two that take two servers in different order, wait "
                        "for each other for ever",
                        failure="closed",
                    ) from None

    async def _reset(self) -> None:
        if inspect.iscoroutinefunction(self._how):
            await self._how()
        elif callable(self._how):
            outcome = await asyncio.to_thread(self._how)
            if inspect.isawaitable(outcome):
                await outcome
        elif self._command:
            await _run(self._command)
        else:
            async with httpx.AsyncClient(timeout=TIMEOUT, transport=AsyncProxyTransport()) as client:
                answer = await client.post(self._how)
            if answer.is_error:
                raise OSError(f"HTTP {answer.status_code} {answer.reason_phrase}")


class AfterReset:
    """The connection of one rollout to a server that is reset before it.

    Args:
        inner: The session of the rollout.
        queue: Gives the server to one rollout after another.
        rollout: Id of the rollout.
    """

    def __init__(self, inner: Source, queue: ResetQueue, rollout: str) -> None:
        self._inner = inner
        self._queue = queue
        self._rollout = rollout
        self._has_turn = self._closed = False
        self._lock = asyncio.Lock()

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        """Sends a request, when it is the rollout's turn. Raises MCPError, also if the reset failed."""
        if method in _ACTS:
            async with self._lock:
                if not (self._has_turn or self._closed):
                    await self._queue.begin(self._rollout)
                    self._has_turn = True
                if self._closed:  # also while it waited
                    self._end()
                    raise MCPError("the rollout that called it is over", failure="closed")
        return await self._inner.request(method, params, progress)

    async def changes(self) -> None:
        """Nobody sees what is behind the server."""
        return None

    async def rewind(self) -> bool:
        """Only a reset puts back what is behind the server."""
        return False

    async def close(self) -> None:
        """Ends the session, and then the turn."""
        self._closed = True
        try:
            await self._inner.close()
        finally:
            self._end()

    def _end(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._queue.end()


async def _run(command: list[str]) -> None:
    """Runs a command. Raises OSError if it fails; what it wrote last is the message."""
    with tempfile.TemporaryFile() as output:  # no pipe, which what it starts in the background would hold open
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=asyncio.subprocess.STDOUT
        )
        try:
            await process.wait()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        if not process.returncode:
            return
        output.seek(0)
        last = output.read().decode(errors="replace").strip().splitlines()[-1:]
        raise OSError(f"exit status {process.returncode}{': ' if last else ''}{''.join(last)}")


def _is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))
