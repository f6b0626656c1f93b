"""A session with an MCP server. It runs in a task of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import replace
from typing import Any

from art_mcp.client.connection import sdk
from art_mcp.client.connection.sdk import Channel, Progress, Stdio, Target
from art_mcp.client.connection.server_log import SERVER_LOG, last_messages, says_nothing
from art_mcp.client.connection.stderr import Stderr, read_stderr
from art_mcp.client.masking import Mask, secrets_of
from trainer_server.common.jsonl import to_json
from trainer_server.wire import MCPError

log = logging.getLogger("art_mcp")

GRACE = 1.5
"""Seconds between TERM and KILL for what a server has started. The SDK kills the guard itself after 2."""

CLOSING = 12.0
"""Seconds to wait for a session to close. The SDK needs up to about half of it to end a process by TERM and KILL."""


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
        target = _guard_command(self._target) if isinstance(self._target, Stdio) else self._target
        async with (
            read_stderr() as self._stderr,
            sdk.open_channel(target, self._stderr.file, on_change) as self._channel,
        ):
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
            MCPError: As `Channel.request`; with the failure `limited` if the server refused it until the end, because
                there are too many; with the failure `timeout` after the session's timeout, and with the failure
                `closed` if the server has ended.
        """
        assert self._channel is not None
        size = self._stderr.size if self._stderr else 0
        call = asyncio.ensure_future(self._channel.request(method, params, progress))
        call.add_done_callback(lambda task: task.cancelled() or task.exception())  # else asyncio warns of it
        try:
            await asyncio.wait({call, self._task}, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return await self._with_log(call.result(), method, params, size)
        except MCPError as error:
            if self._channel.refused:
                raise MCPError(
                    f"the server refuses calls because there are too many: {error}", failure="limited"
                ) from None
            if error.failure != "closed":
                raise await self._with_reason(error, str(params.get("name", "")), size) from error
        finally:
            call.cancel()
        if not (call.done() or self._task.done()):
            failure = "limited" if self._channel.refused else "timeout"
            raise MCPError(f"no answer within {self._timeout:g} s", failure=failure)
        await self.close()
        failure = "limited" if self._channel.refused else "closed"  # SDK 1 ends a session over a refusal
        raise MCPError(f"the server ended its connection{self._last_words()}", failure=failure)

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

    async def _with_log(
        self, answer: dict[str, Any], method: str, params: Mapping[str, Any], size: int
    ) -> dict[str, Any]:
        """The answer to a request. An error of a tool that says nothing has what the server wrote to its stderr.

        Args:
            answer: The answer.
            method: The method of the request.
            params: Its parameters.
            size: Bytes of stderr that were written before.
        """
        if method != "tools/call" or not answer.get("isError"):
            return answer
        parts = [part for part in answer.get("content", ()) if isinstance(part, dict)]
        text = " ".join(
            [*(str(part.get("text", "")) for part in parts), to_json(answer.get("structuredContent") or "")]
        )
        if says_nothing(text, tool := str(params["name"])) and (log := await self._log_since(size, tool)):
            return {**answer, "_meta": {**(answer.get("_meta") or {}), SERVER_LOG: log}}
        return answer

    async def _with_reason(self, error: MCPError, tool: str, size: int) -> MCPError:
        """An error of the protocol, with what the server wrote to its stderr if the error says nothing."""
        if not says_nothing(error.message, tool):
            return error
        return MCPError(error.message, failure=error.failure, code=error.code, log=await self._log_since(size, tool))

    async def _log_since(self, size: int, tool: str) -> str:
        """The last messages on stderr since it had `size` bytes. Another call may have written them meanwhile."""
        if self._stderr is None or not (text := await self._stderr.since(size)):
            return ""
        return last_messages(text, tool, Mask(secrets_of(self._target)).log)

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


class Reopening:
    """A session that the first request opens, and that a later one opens again if it has ended.

    Args:
        target: The server.
        timeouts: Seconds to wait for the start, and seconds to wait for each answer.
        on_change: Called when the server says that its tools have changed.
    """

    def __init__(self, target: Target, timeouts: tuple[float, float], on_change: Callable[[], None]) -> None:
        self._target = target
        self._timeouts = timeouts
        self._on_change = on_change
        self._session: Session | None = None
        self._closed = False
        self._lock = asyncio.Lock()  # only one caller opens a session

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
        """Sends a request, as `Session.request` does. Raises MCPError, also if the session cannot be opened."""
        session = await self._ensure_session()
        return await session.request(method, params, progress)

    async def close(self) -> None:
        """Ends the session. A request that is just opening one fails."""
        self._closed = True
        if self._session:
            await self._session.close()

    async def changes(self) -> None:
        """Nobody knows what was changed."""
        return None

    async def rewind(self) -> bool:
        """Nor can it be put back."""
        return False

    async def _ensure_session(self) -> Session:
        async with self._lock:
            if self._session is None or self._session.ended:
                session = Session(self._target, self._timeouts, self._on_change)
                await session.open()
                self._session = session
            if self._closed:  # also while it was opened
                await self._session.close()
                raise MCPError("the rollout that called it is over", failure="closed")
            return self._session


def _guard_command(target: Stdio) -> Stdio:
    """Wraps the command in the guard, so that it and the processes that it starts end when this process ends.

    Raises:
        MCPError: The command is not in PATH.
    """
    program = target.command[0]
    if not os.path.dirname(program) and shutil.which(program, path=target.env.get("PATH")) is None:
        raise MCPError(f"there is no command {program!r} in PATH: install it, or give its path", failure="closed")
    if sys.platform == "linux":  # on Windows, the SDK ends what a server has started
        from trainer_server.common.guard import guard_command

        return replace(target, command=tuple(guard_command(target.command, grace=GRACE)))
    return target
