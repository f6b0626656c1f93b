"""The gateway processes of a server: started, started again when one dies, and stopped with it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from trainer_server.engines.base import Reachable
from trainer_server.server.access.connections import DrainingServer
from trainer_server.server.gateways.calls import GatewayCalls
from trainer_server.server.gateways.channel import Channel
from trainer_server.server.gateways.setup import Setup
from trainer_server.server.server import Server
from trainer_server.wire import ConfigError

log = logging.getLogger("trainer_server")

_YOUNG = 10.0
"""Seconds within which a process that ends is started again only after a pause."""
_PAUSE = 1.0
_LATE = 10.0
"""Seconds that processes have to end after the time in which requests could finish."""


class GatewayProcesses:
    """The gateway processes of a server.

    Args:
        server: The server.
        app: Its application, which answers all that is no completion.
        key: The server's own key.
        listeners: A socket for each process. All are bound to the same port.

    Raises:
        ConfigError: An engine cannot be reached from other processes.
    """

    def __init__(self, server: Server, app: ASGIApp, key: str, listeners: Sequence[socket.socket]) -> None:
        engines: list[tuple[str, str | None]] = []
        for engine in server.engines:
            if not isinstance(engine, Reachable):
                raise ConfigError(
                    f"--gateways {len(listeners)} with --engine {server.config.engine}: other processes cannot send "
                    f"requests to {type(engine).__name__}, which has no key and note_request (engines.base.Reachable). "
                    "Serve with --gateways 1"
                )
            engines.append((engine.url, engine.key))
        self._setup = Setup(server.config, server.identity, key, engines)
        self._calls, self._listeners = GatewayCalls(server, app), listeners
        self._channels: dict[asyncio.subprocess.Process, Channel] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False

    def start(self) -> None:
        """Starts all processes, and keeps them running."""
        self._tasks = [asyncio.create_task(self._supervise(listener)) for listener in self._listeners]

    async def stop(self, seconds: float, hurry: Callable[[], bool]) -> None:
        """Stops all processes, and returns when they have ended. Those that do not end are killed.

        Args:
            seconds: Time that they have.
            hurry: Whether they are killed now.
        """
        self._is_stopping = True
        for listener in self._listeners:
            listener.close()
        for channel in self._channels.values():
            channel.note("stop")
        deadline = time.monotonic() + seconds
        while not all(task.done() for task in self._tasks) and time.monotonic() < deadline and not hurry():
            await asyncio.sleep(0.05)
        for process in self._channels:
            with suppress(ProcessLookupError):
                process.kill()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _supervise(self, listener: socket.socket) -> None:
        while not self._is_stopping:
            begin = time.monotonic()
            status = await self._run(listener)
            if not self._is_stopping:
                log.error("a gateway process has ended (status %s) and is started again", status)
                await asyncio.sleep(_PAUSE if time.monotonic() - begin < _YOUNG else 0.0)

    async def _run(self, listener: socket.socket) -> int:
        """Runs one process to its end. Returns its status, -n if signal n ended it."""
        own_end, other_end = socket.socketpair()
        with other_end:
            descriptors = listener.fileno(), other_end.fileno()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                __package__,
                *map(str, descriptors),
                pass_fds=descriptors,
                stdin=asyncio.subprocess.DEVNULL,
                env=dict(os.environ),
                start_new_session=True,
            )
        channel = self._channels[process] = self._calls.channel()
        try:
            await channel.open(own_end)
            channel.note("setup", self._setup)
            if self._is_stopping:
                channel.note("stop")
            return await process.wait()
        finally:
            channel.close()
            del self._channels[process]


class GatewaysServer(DrainingServer):
    """The parent of gateway processes: uvicorn without a socket. It runs the application, and takes the signals.

    Args:
        processes: The gateway processes.
        config: uvicorn's.
        grace: Seconds for which requests are waited for.
        end: Is called after that, and `begin` before; see `DrainingServer`.
        begin: As above.
    """

    def __init__(
        self,
        processes: GatewayProcesses,
        config: uvicorn.Config,
        *,
        grace: float,
        end: Callable[[], None],
        begin: Callable[[], None],
    ) -> None:
        super().__init__(config, grace=grace, end=end, begin=begin)
        self._processes, self._seconds, self._begin_stop = processes, grace + _LATE, begin

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        self._processes.start()

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        self._begin_stop()
        await self._processes.stop(self._seconds, lambda: self.force_exit)
        await super().shutdown(sockets)
