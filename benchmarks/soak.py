"""Hours of work in minutes: whether the server loses, doubles or keeps anything, and what it adds to an answer.

    python -m benchmarks.soak [--json] [--minutes 5] [--rollouts 256] [--swap-every 10] [--leaving 0.333] [--otel]
                             [--ledger sqlite|postgres|postgresql://…]

Starts the trainer server, with its trainer process, over a small engine that answers with tokens at once, each a
process of its own. ROLLOUTS clients roll out for MINUTES, one to three turns each, half of the answers streamed; of
LEAVING of the rollouts the client closes its connection in the middle of an answer. Every SWAP-EVERY seconds a training
step makes a version, and the policy's name changes to it. Then the answers of the gateway are timed beside those of the
engine itself, in turns, at half of the rate that the gateway reaches; and when the server has stopped, its ledger is
compared with what the clients saw.

The server keeps some things in memories of limited size, which fill before they forget. The largest, the tokens of
earlier turns, has 8 MiB here instead of 128, so that it is full at the end of the warm-up, and what grows afterwards
grows for ever. Leases of rollouts whose client left stay for 15 minutes, some hundred bytes each.

With --otel it only compares latencies: of the engine itself, of a server without traces, and of one that sends its
spans to a collector, in turns at half of the rate that the server without traces reaches. `p50_…_ms` and `p99_…_ms` are
of `direct`, `plain` and `traced`, medians of six turns each; `processor_…_ms` is the processor
time of the server for an answer, and `span_bytes` what the collector got.

Else, the last line under --json is one JSON object: `requests` that clients sent, `errors_ours` that were not answered
for another reason than that their client left, `lost`, `differing`, `doubled`, `unasked`, `unrecorded` and `mixed` as
in `benchmarks.stress.books.Balance`, `rss_growth` of the server from the end of the warm-up to the end, as a share, and
`p99_added_ms`: the 99th percentile of the gateway's answers less that of the engine's, the median of six turns. The
program ends with status 1 if the books do not balance.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.stress.books import Receipt, balance, rows_of
from benchmarks.stress.clients import HEADERS, Clients, chat, received
from benchmarks.stress.ledgers import ChosenLedger, add_option, chosen_ledger
from benchmarks.stress.training import Training
from testbed.server_process import CollectorProcess, EngineProcess, ServerProcess
from testbed.tiny_model import tiny_base
from trainer_server.common import Home

POLICY = "agent"
WARM_UP = 60.0
"""Seconds after which the memory should not grow any more; a fifth of a shorter run."""
TURNS_MIB = 8
"""Memory of the server for the tokens of earlier turns. It is full before the warm-up ends: at 100 requests a second,
those whose client leaves bring 30 turns a second that nobody releases, of 4 KB each. With the 128 MiB of the default, a
soak would have to warm up for a quarter of an hour."""
CLOSED_LOOP = 32
"""Requests at once while the highest rate is measured."""
TURNS = 7
"""Turns of each side while latencies are measured. The first one only warms up."""


@contextmanager
def processes(scratch: Path, ledger: ChosenLedger) -> Iterator[tuple[EngineProcess, ServerProcess]]:
    """A server over a small engine, once it is ready."""
    base = tiny_base(scratch)
    engine = EngineProcess(scratch / "engine.log", base.name)
    server = ServerProcess(
        scratch / "home",
        base,
        options=("--engine-url", engine.url, "--no-trainer-low-priority", "--turns-mib", str(TURNS_MIB)),
        environment=ledger.environment,
    )
    try:
        engine.start()
        engine.until_ready()
        server.start()
        server.until_ready()
        yield engine, server
    finally:
        server.stop()
        engine.stop()


class Memory:
    """Resident memory of a process, looked at once a second.

    Args:
        pid: The process.
        seconds: How long the run takes.
    """

    def __init__(self, pid: int, seconds: float) -> None:
        self._process, self._seconds = psutil.Process(pid), seconds
        self._samples: list[tuple[float, float]] = []

    async def watch(self) -> None:
        """Looks until it is cancelled."""
        started = time.monotonic()
        while True:
            self._samples.append((time.monotonic() - started, self._process.memory_info().rss / 2**20))
            await asyncio.sleep(min(1.0, self._seconds / 100))

    def growth(self) -> dict[str, float]:
        """MiB after the warm-up and at the end, medians of a tenth of the run each, and the growth between them."""
        warm, tenth = min(WARM_UP, self._seconds / 5), self._seconds / 10
        first = statistics.median(mib for at, mib in self._samples if warm <= at <= warm + tenth)
        last = statistics.median(mib for at, mib in self._samples if at >= self._seconds - tenth)
        return {"rss_warm_mib": first, "rss_end_mib": last, "rss_growth": last / first - 1}


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
    gc.collect()
    gc.freeze()  # else this program would stop for 0.4 s now and then, to look at the receipts of the whole soak
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


async def soak(engine: EngineProcess, server: ServerProcess, options: argparse.Namespace) -> dict[str, Any]:
    """All that is measured while the server runs. The receipts are under `receipts`."""
    seconds = options.minutes * 60
    training = Training(server.url, POLICY)
    await training.create()
    clients = Clients(server.url, POLICY, leaving=options.leaving)
    memory = Memory(server.pid, seconds)

    async def forget() -> None:
        await asyncio.to_thread(engine.forget)

    async def forget_often() -> None:
        while True:
            await asyncio.sleep(5)
            await forget()

    works = (memory.watch(), training.every(options.swap_every), forget_often())
    beside = [asyncio.create_task(work) for work in works]
    rolling = asyncio.create_task(clients.run(options.rollouts))
    await asyncio.wait([*beside, rolling], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    grown = memory.growth()
    clients.stop()
    await rolling
    for task in beside:
        task.cancel()
    for ended in await asyncio.gather(*beside, return_exceptions=True):
        if not isinstance(ended, asyncio.CancelledError):
            raise ended
    gateway, direct = Side("gateway", server.url, POLICY), Side("direct", engine.url, "base")
    timed = await latencies(gateway, direct, min(5.0, seconds / 10), forget)
    await asyncio.gather(gateway.close(), direct.close())
    return {
        "requests": clients.sent,
        "begun": clients.rollouts,
        "left": clients.left,
        "refused": clients.refused,
        "errors_ours": clients.errors.total() + len(training.errors),
        "errors": [*(f"{count} x {why}" for why, count in clients.errors.most_common(3)), *training.errors[:3]],
        "rps": clients.sent / seconds,
        "swaps": len(training.steps),
        "swap_seconds": statistics.median(training.seconds) if training.seconds else None,
        **grown,
        **timed,
        "receipts": clients.receipts + training.receipts + gateway.receipts,
    }


async def compared(
    sides: dict[str, Side], pids: dict[str, int], seconds: float, forget: Callable[[], Awaitable[None]]
) -> dict[str, float]:
    """Answers of several sides at one rate, in turns: half of the highest rate of the side `plain`.

    Args:
        sides: By name.
        pids: Processes whose processor time is measured, by the name of their side.
        seconds: Of each turn of a side.
        forget: Empties the engine's lists, as for `latencies`.
    """
    rng = random.Random(0)
    saturation = await sides["plain"].saturation(seconds)
    figures: dict[str, list[float]] = defaultdict(list)
    for turn in range(TURNS):
        for name, side in sides.items():
            await forget()
            before = _processor(pids[name]) if name in pids else 0.0
            taken = await side.load(saturation / 2, seconds, rng)
            if turn == 0:
                continue
            for share, value in _percentiles(taken).items():
                figures[f"{share}_{name}_ms"].append(value)
            if name in pids:
                figures[f"processor_{name}_ms"].append(1000 * (_processor(pids[name]) - before) / len(taken))
    await asyncio.gather(*(side.close() for side in sides.values()))
    return {"saturation_rps": saturation, **{name: statistics.median(values) for name, values in figures.items()}}


def _processor(pid: int) -> float:
    """Seconds that a process has computed."""
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


def measure_traces(options: argparse.Namespace) -> dict[str, Any]:
    """What traces cost an answer."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        chosen_ledger("sqlite") as ledger,
        processes(Path(scratch), ledger) as (engine, plain),
    ):
        collector = CollectorProcess(Path(scratch) / "collector.log")
        traced = ServerProcess(
            Path(scratch) / "traced",
            Path(scratch) / engine.base,
            options=("--engine-url", engine.url, "--no-trainer-low-priority"),
            environment={"ART_OTEL": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url},
        )
        try:
            collector.start()
            collector.until_ready()
            traced.start()
            traced.until_ready()

            async def run() -> dict[str, float]:
                for server in (plain, traced):
                    await Training(server.url, POLICY).create()
                sides = {"direct": Side("direct", engine.url, "base")}
                sides |= {name: Side(name, one.url, POLICY) for name, one in (("plain", plain), ("traced", traced))}
                pids = {"plain": plain.pid, "traced": traced.pid}
                seconds = min(5.0, options.minutes * 6)
                return await compared(sides, pids, seconds, lambda: asyncio.to_thread(engine.forget))

            return {**asyncio.run(run()), "span_bytes": collector.taken()}
        finally:
            traced.stop()
            collector.stop()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory() as scratch, chosen_ledger(options.ledger) as ledger:
        with processes(Path(scratch), ledger) as (engine, server):
            result = asyncio.run(soak(engine, server, options))
        books = balance(result.pop("receipts"), rows_of(ledger.place(Home(server.home))))
    kind = "sqlite" if ledger.url is None else "postgres"
    return {
        "ledger": kind,
        "minutes": options.minutes,
        "rollouts": options.rollouts,
        **result,
        **asdict(books),
        "even": books.even,
    }


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """In milliseconds."""
    return {"p50": 1000 * statistics.median(seconds), "p99": 1000 * statistics.quantiles(seconds, n=100)[98]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--minutes", type=float, default=5.0, help="minutes of the soak (5)")
    parser.add_argument("--rollouts", type=int, default=256, help="rollouts at once (256)")
    parser.add_argument("--swap-every", type=float, default=10.0, help="seconds from one version to the next (10)")
    parser.add_argument("--leaving", type=float, default=1 / 3, help="share of the rollouts whose client leaves (1/3)")
    add_option(parser)
    parser.add_argument("--otel", action="store_true", help="only compare latencies with and without traces")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes end with this program
    result = measure_traces(options) if options.otel else measure(options)
    title = "with and without traces" if options.otel else f"{options.rollouts} rollouts, {options.minutes:g} minutes"
    table = Table("figure", "value", title=title)
    for name, value in result.items():
        table.add_row(name, f"{value:,.3f}" if isinstance(value, float) else str(value))
    Console(stderr=options.json).print(table)
    if options.json:
        print(json.dumps({"benchmark": "soak", **result}))
    if options.otel:
        return
    if not result["even"] or result["errors_ours"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
