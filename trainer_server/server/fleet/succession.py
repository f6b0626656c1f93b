"""Who leads next: a server that answers requests stands for election meanwhile, and trains once it is elected."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
from io import TextIOWrapper

from trainer_server.ledger.base import Election, LedgerError
from trainer_server.process.files import write_atomic
from trainer_server.process.tasks import PeriodicTask
from trainer_server.server.server import Server

log = logging.getLogger("trainer_server")

_POLL_INTERVAL = 1.0
"""Seconds between two looks whether this server is elected, or the home is free."""
_AWAY = 4.0
"""Seconds more after a database that was away: the server that was elected looks every second."""


def watch(election: Election) -> None:
    """Has this server stop when it is elected no longer, as if it were told to."""

    def stop_server(why: str) -> None:
        log.error("stopping: %s", why)
        os.kill(os.getpid(), signal.SIGTERM)

    election.watch(stop_server)


class Succession:
    """Waits until this server is elected, and has it lead.

    Args:
        election: The election.
        server: This server, which answers already.
        url: Where programs on this machine reach it.
        address: Where other servers reach it.
    """

    def __init__(self, election: Election, server: Server, *, url: str, address: str) -> None:
        self._election, self._server, self._url, self._address = election, server, url, address
        self._elected = self._leads = False
        """Whether this server is elected; and whether it has begun to lead, which may fail at first."""
        self._lock: TextIOWrapper | None = None
        self._rounds = PeriodicTask("the election", self._next)

    def start(self) -> None:
        """Begins to stand for election."""
        self._rounds.start()

    async def stop(self) -> None:
        """Ends it. A server that leads goes on to do so."""
        await self._rounds.stop()

    async def _next(self) -> None:
        if not self._elected:
            try:
                self._elected = await asyncio.to_thread(self._election.stand, patient=True)
            except LedgerError as error:
                log.warning("%s", error)
                await asyncio.sleep(_AWAY)
            if not self._elected:
                await asyncio.sleep(_POLL_INTERVAL)
                return
            log.info("taking over: this server trains from now on")
            watch(self._election)
        while not self._claimed():  # the server that was elected before is ending
            await asyncio.sleep(_POLL_INTERVAL / 2)
        if not self._leads:
            await self._server.lead()
            self._leads = True
        await asyncio.to_thread(self._election.announce, self._address)
        home = self._server.config.home
        await asyncio.to_thread(write_atomic, home.server, json.dumps({"url": self._url, "pid": os.getpid()}))
        log.info("this server leads")
        await asyncio.Future()

    def _claimed(self) -> bool:
        """Whether this server has the lock of the home. It keeps it until its process ends."""
        if self._lock is None:
            lock = (self._server.config.home.root / "lock").open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                return False
            self._lock = lock
        return True
