"""Resets a server before each rollout, for worlds that cannot be copied. One rollout uses the server at a time."""

from __future__ import annotations

import asyncio
import inspect
import logging
import shlex
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx

from art_mcp.client.live import Source
from art_mcp.client.sdk import Progress
from trainer_server.wire import ConfigError, MCPError

log = logging.getLogger("art_mcp")

TIMEOUT = 60.0
"""Seconds that a reset may take."""

Reset = str | Callable[[], Awaitable[None] | None]
"""A command, a URL that is sent a POST, or a function, sync or async."""

_ACTS = ("tools/call", "resources/read")
"""Methods that wait for their turn. The others only list."""


class Turns:
    """Gives the server to one rollout after another, and resets it before each.

    Args:
        how: Resets the server.

    Raises:
        ConfigError: The command is empty or has an open quotation.
    """

    def __init__(self, how: Reset) -> None:
        self._how = how
        self._lock = asyncio.Lock()
        self._command: list[str] = []
        self.resets = 0
        if isinstance(how, str) and not _is_url(how):
            try:
                self._command = shlex.split(how)
            except ValueError as error:
                raise ConfigError(f"--reset {how!r} cannot be read as a shell does: {error}") from None
            if not self._command:
                raise ConfigError("--reset takes a command or a URL")

    async def begin(self) -> None:
        """Waits for the turn of a rollout, and resets the server.

        Raises:
            MCPError: The reset failed. The next rollout may begin.
        """
        await self._lock.acquire()
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._reset()
            self.resets += 1
        except BaseException as error:
            self._lock.release()
            if isinstance(error, Exception):
                reason = f"no end within {TIMEOUT:g} s" if isinstance(error, TimeoutError) else str(error)
                what = self._how if isinstance(self._how, str) else getattr(self._how, "__name__", "its function")
                raise MCPError(f"the reset ({what}) failed: {reason}", failure="closed") from error
            raise

    def end(self) -> None:
        """The rollout is over: the next one may begin."""
        self._lock.release()

    async def _reset(self) -> None:
        if callable(self._how):
            done = self._how()
            if inspect.isawaitable(done):
                await done
        elif self._command:
            await _run(self._command)
        else:
            async with httpx.AsyncClient(timeout=TIMEOUT) as client:
                answer = await client.post(self._how)
            if answer.is_error:
                raise OSError(f"HTTP {answer.status_code} {answer.reason_phrase}")


class AfterReset:
    """The connection of one rollout to a server that is reset before it.

    Args:
        inner: The session of the rollout.
        turns: Gives the server to one rollout after another.
    """

    def __init__(self, inner: Source, turns: Turns) -> None:
        self._inner = inner
        self._turns = turns
        self._has_turn = False
        self._lock = asyncio.Lock()

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        """Sends a request, when it is the rollout's turn. Raises MCPError, also if the reset failed."""
        if method in _ACTS:
            async with self._lock:
                if not self._has_turn:
                    await self._turns.begin()
                    self._has_turn = True
        return await self._inner.request(method, params, progress)

    async def changes(self) -> None:
        """Nobody sees what is behind the server."""
        return None

    async def close(self) -> None:
        """Ends the session, and then the turn."""
        try:
            await self._inner.close()
        finally:
            if self._has_turn:
                self._turns.end()


async def _run(command: list[str]) -> None:
    """Runs a command. Raises OSError if it fails; what it wrote last is the message."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        last = output.decode(errors="replace").strip().splitlines()[-1:]
        raise OSError(f"exit status {process.returncode}{': ' if last else ''}{''.join(last)}")


def _is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))
