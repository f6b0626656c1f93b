"""A server with clients and a training, which is started again whenever it has ended, as a service manager would."""

from __future__ import annotations

import asyncio
import itertools
import random
import time

import httpx
import psutil

from benchmarks.stress.books import Receipt
from benchmarks.stress.clients import Clients, chat, client, received
from benchmarks.stress.training import Training
from testbed.server_process import ServerProcess
from trainer_server.common import Home

POLICY = "agent"
ROLES = ("server", "engine", "trainer")
BACK = 300.0
"""Seconds within which everything must be back."""


class World:
    """What happens to a server happens here.

    Args:
        server: The server. It runs.
        clients: They roll out all the time.
        training: It takes steps all the time.

    Attributes:
        started: How often the server was started again.
        receipts: Of the answers that were asked for to see whether everything is back.
    """

    def __init__(self, server: ServerProcess, clients: Clients, training: Training) -> None:
        self.server, self.clients, self.training = server, clients, training
        self.home = Home(server.home)
        self.started = 0
        self.receipts: list[Receipt] = []
        self._numbers = itertools.count()

    async def keep_running(self) -> None:
        """Starts the server again whenever it has ended, until it is cancelled."""
        while True:
            await asyncio.sleep(0.2)
            if not self.server.running:
                self.started += 1
                self.server.start()

    def processes(self, role: str) -> list[psutil.Process]:
        """The processes of the server, the engine or the trainer; the first one of the latter two is their guard."""
        try:
            if role == "server":
                return [psutil.Process(self.server.pid)] if self.server.running else []
            guard = psutil.Process(int((self.home.logs / f"{role}.pid").read_text().split()[0]))
            return [guard, *guard.children(recursive=True)]
        except (OSError, ValueError, IndexError, psutil.Error):  # it is being started
            return []

    def kill(self, rng: random.Random) -> str | None:
        """Kills a process at random, by SIGKILL; returns its role, or None if there was none."""
        role = rng.choice(ROLES)
        if not (found := self.processes(role)):
            return None
        try:
            rng.choice(found).kill()
        except psutil.Error:
            return None
        return role

    async def comes_back(self) -> float:
        """Waits until an answer is given and a step has made its version; the seconds until then.

        Raises:
            TimeoutError: They were not in time.
        """
        started, steps = time.monotonic(), len(self.training.steps)
        async with asyncio.timeout(BACK), client(self.server.url, timeout=60) as http:
            while not await self._answered(http) or len(self.training.steps) == steps:
                await asyncio.sleep(0.2)
        return time.monotonic() - started

    async def restarts(self) -> tuple[int, int]:
        """How often the server was started, and how often it has started its engine since then."""
        async with client(self.server.url) as http:
            engines = (await http.get("/api/engines")).raise_for_status().json()["engines"]
        return self.started, sum(engine["restarts"] for engine in engines)

    async def _answered(self, http: httpx.AsyncClient) -> bool:
        receipt = Receipt(f"turn say probe-{next(self._numbers)}")
        self.receipts.append(receipt)
        try:
            answer = await http.post(
                "/v1/chat/completions", json=chat(POLICY, [{"role": "user", "content": receipt.asked}], stream=False)
            )
            answer.raise_for_status()
            received(answer.headers, answer.json(), receipt)
        except httpx.HTTPError:
            return False
        return True
