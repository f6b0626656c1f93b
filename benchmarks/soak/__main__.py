"""Hours of work in minutes: whether the server loses, doubles or keeps anything, and what it adds to an answer.

    python -m benchmarks.soak [--json] [--minutes 5] [--rollouts 256] [--swap-every 10] [--leaving 0.333]
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

The last line under --json is one JSON object: `requests` that clients sent, `errors_ours` that were not answered for
another reason than that their client left, `lost`, `differing`, `doubled`, `unasked`, `unrecorded` and `mixed` as in
`benchmarks.stress.books.Balance`, `rss_growth` of the server from the end of the warm-up to the end, as a share, and
`p99_added_ms`: the 99th percentile of the gateway's answers less that of the engine's, the median of six turns. The
program ends with status 1 if the books do not balance.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.soak.latency import Side, latencies
from benchmarks.soak.memory import Memory
from benchmarks.stress.books import balance, rows_of
from benchmarks.stress.clients import Clients
from benchmarks.stress.ledgers import ChosenLedger, add_option, chosen_ledger
from benchmarks.stress.training import Training
from testbed.server_process import EngineProcess, ServerProcess
from testbed.tiny_model import tiny_base
from trainer_server.wire import Home

POLICY = "agent"
TURNS_MIB = 8
"""Memory of the server for the tokens of earlier turns. It is full before the warm-up ends: at 100 requests a second,
those whose client leaves bring 30 turns a second that nobody releases, of 4 KB each. With the 128 MiB of the default, a
soak would have to warm up for a quarter of an hour."""


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--minutes", type=float, default=5.0, help="minutes of the soak (5)")
    parser.add_argument("--rollouts", type=int, default=256, help="rollouts at once (256)")
    parser.add_argument("--swap-every", type=float, default=10.0, help="seconds from one version to the next (10)")
    parser.add_argument("--leaving", type=float, default=1 / 3, help="share of the rollouts whose client leaves (1/3)")
    add_option(parser)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes end with this program
    result = measure(options)
    table = Table("figure", "value", title=f"{options.rollouts} rollouts at once, {options.minutes:g} minutes")
    for name, value in result.items():
        table.add_row(name, f"{value:,.3f}" if isinstance(value, float) else str(value))
    Console(stderr=options.json).print(table)
    if options.json:
        print(json.dumps({"benchmark": "soak", **result}))
    if not result["even"] or result["errors_ours"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
