"""Steps of a policy while clients roll out: each makes a version, and the policy's name changes to it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from benchmarks.stress.books import Receipt
from benchmarks.stress.clients import chat, client, received

ENDED = ("succeeded", "failed", "cancelled")


class Training:
    """Takes steps one after another, each on two answers of the newest version.

    Args:
        url: The server.
        policy: The policy; it is created.
        patience: Seconds for which a request that fails is sent again.

    Attributes:
        receipts: Of the answers that were asked for.
        steps: Ids of the jobs that succeeded.
        errors: Why others did not.
        seconds: How long each took until its version was in service.
    """

    def __init__(self, url: str, policy: str, *, patience: float = 0.0) -> None:
        self._url, self._policy, self._patience = url, policy, patience
        self._numbers = itertools.count()
        self.receipts: list[Receipt] = []
        self.steps: list[str] = []
        self.errors: list[str] = []
        self.seconds: list[float] = []

    async def create(self) -> None:
        """Creates the policy."""
        async with client(self._url) as http:
            (await http.post("/api/policies", json={"name": self._policy})).raise_for_status()

    async def step(self) -> None:
        """Takes one step, and waits until its version is in service.

        Raises:
            httpx.HTTPError: A request failed for longer than `patience`.
        """
        started = time.monotonic()
        async with client(self._url) as http:
            group = [await self._until(lambda reward=reward: self._trajectory(http, reward)) for reward in (0.0, 1.0)]
            body = {
                "groups": [{"scenario_id": "s", "trajectories": group}],
                "config": {"lr": 1e-3},
                "idempotency_key": group[0]["id"],
            }
            job = await self._until(lambda: _json(http.post(f"/api/policies/{self._policy}/steps", json=body)))
            while job["status"] not in ENDED:
                path = f"/api/jobs/{job['id']}"
                job = await self._until(lambda path=path: _json(http.get(path, params={"wait": 30})))
        if job["status"] == "succeeded":
            self.steps.append(job["id"])
            self.seconds.append(time.monotonic() - started)
        else:
            self.errors.append(f"{job['id']}: {job['error']}")

    async def every(self, seconds: float) -> None:
        """Takes a step every so many seconds, until it is cancelled. A step that takes longer delays the next one."""
        while True:
            await asyncio.gather(asyncio.sleep(seconds), self._try())

    async def _try(self) -> None:
        try:
            await self.step()
        except httpx.HTTPError as error:
            self.errors.append(repr(error))

    async def _until(self, ask: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """What is answered, by a request that is sent again while it fails."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return await ask()
            except httpx.HTTPError:
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(0.5)

    async def _trajectory(self, http: httpx.AsyncClient, reward: float) -> dict[str, Any]:
        receipt = Receipt(f"turn say {self._policy}-step-{next(self._numbers)}")
        self.receipts.append(receipt)
        messages = [{"role": "user", "content": receipt.asked}]
        body = chat(f"{self._policy}@latest", messages, stream=False)
        answer = (await http.post("/v1/chat/completions", json=body)).raise_for_status()
        received(answer.headers, answer.json(), receipt)
        return {"id": receipt.asked, "reward": reward, "completions": [receipt.id]}


async def _json(answer: Awaitable[httpx.Response]) -> dict[str, Any]:
    return dict((await answer).raise_for_status().json())
