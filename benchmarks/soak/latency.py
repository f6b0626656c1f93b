"""What the gateway adds to the engine's answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

import aiohttp

from benchmarks.stress.books import Receipt
from benchmarks.stress.clients import HEADERS, chat, received

CLOSED_LOOP = 32
"""Requests at once while the highest rate is measured."""
TURNS = 7
"""Turns of each side while latencies are measured. The first one only warms up."""


class Side:
    """The gateway or the engine itself, asked for short answers. aiohttp asks: the less of the processor its own client
    takes, the less the two sides wait for it.

    Args:
        name: Begins the requests' texts.
        url: Its address.
        model: What it calls the model.

    Attributes:
        receipts: Of the answers.
    """

    def __init__(self, name: str, url: str, model: str) -> None:
        self._name, self._url, self._model = name, url, model
        self._numbers = itertools.count()
        self._http = aiohttp.ClientSession(
            url, headers=HEADERS, connector=aiohttp.TCPConnector(limit=0), raise_for_status=True
        )
        self.receipts: list[Receipt] = []

    async def ask(self) -> float:
        """Asks for one answer; the seconds that it took."""
        receipt = Receipt(f"turn say {self._name}-{next(self._numbers)}")
        body = {**chat(self._model, [{"role": "user", "content": receipt.asked}], stream=False), "logprobs": True}
        started = time.monotonic()
        async with self._http.post("/v1/chat/completions", json=body) as answer:
            said = await answer.read()
        seconds = time.monotonic() - started
        received(answer.headers, json.loads(said), receipt)
        self.receipts.append(receipt)
        return seconds

    async def saturation(self, seconds: float) -> float:
        """Answers a second while CLOSED_LOOP clients ask one question after another."""
        end, before = time.monotonic() + seconds, len(self.receipts)

        async def ask() -> None:
            while time.monotonic() < end:
                await self.ask()

        await asyncio.gather(*(ask() for _ in range(CLOSED_LOOP)))
        return (len(self.receipts) - before) / seconds

    async def load(self, rate: float, seconds: float, rng: random.Random) -> list[float]:
        """Asks at a rate, at random times, whatever was answered; the seconds of each answer."""
        asked: list[asyncio.Task[float]] = []
        due, end = time.monotonic(), time.monotonic() + seconds
        while (due := due + rng.expovariate(rate)) < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            asked.append(asyncio.create_task(self.ask()))
        return await asyncio.gather(*asked)

    async def close(self) -> None:
        """Closes its connections."""
        await self._http.close()


async def latencies(
    gateway: Side, engine: Side, seconds: float, forget: Callable[[], Awaitable[None]]
) -> dict[str, float]:
    """What the gateway adds to an answer at half of its highest rate: the median of the turns, so that other work on
    the machine during one of them does not decide.

    Args:
        gateway: The gateway.
        engine: The engine that it asks.
        seconds: Of each turn of a side.
        forget: Empties the engine's lists. Its garbage collector would stop it for 0.3 s now and then, and with it the
            side whose turn it is.
    """
    rng = random.Random(0)
    saturation = await gateway.saturation(seconds)
    figures: dict[str, list[float]] = defaultdict(list)
    timed = 0
    for turn in range(TURNS):
        await forget()
        direct = _percentiles(await engine.load(saturation / 2, seconds, rng))
        await forget()
        taken = await gateway.load(saturation / 2, seconds, rng)
        added = _percentiles(taken)
        if turn == 0:
            continue
        timed += len(taken)
        for name in direct:
            figures[f"{name}_direct_ms"].append(direct[name])
            figures[f"{name}_gateway_ms"].append(added[name])
            figures[f"{name}_added_ms"].append(added[name] - direct[name])
    medians = {name: statistics.median(values) for name, values in figures.items()}
    return {"saturation_rps": saturation, "timed": timed, **medians, "p99_added_turns_ms": figures["p99_added_ms"]}


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """In milliseconds."""
    return {"p50": 1000 * statistics.median(seconds), "p99": 1000 * statistics.quantiles(seconds, n=100)[98]}
