"""What is timed: recording, looking up, and deletion while others record."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks.ledger.rows import DAYS, SMALL, Rows
from trainer_server.ledger.sqlite import SQLiteLedger

AT_ONCE = 256
"""Completions that are recorded at once."""
OF_A_STEP = 512
"""Completions that the trainer reads for a step."""
SAMPLES = 1000
"""Look-ups of each kind."""
WRITERS, PAUSE = 8, 0.05
"""Writers during retention, and seconds between two rows of a writer."""


async def record(ledger: SQLiteLedger, rows: Rows, count: int) -> dict[str, float]:
    """Adds all completions; rows a second, over all, of the first tenth and of the last one."""
    tenths: list[float] = []
    for tenth in track(range(10), "recording", console=Console(stderr=True)):
        numbers = iter(range(tenth * count // 10, (tenth + 1) * count // 10))

        async def add(numbers: Any = numbers) -> None:
            for number in numbers:
                await ledger.add(rows.row(number))

        started = time.monotonic()
        await asyncio.gather(*(add() for _ in range(AT_ONCE)))
        tenths.append(count / 10 / (time.monotonic() - started))
    return {
        "rows_per_second": 10 / sum(1 / rate for rate in tenths),
        "first_tenth": tenths[0],
        "last_tenth": tenths[-1],
    }


def look_up(ledger: SQLiteLedger) -> dict[str, Any]:
    """Milliseconds of look-ups."""
    with closing(sqlite3.connect(ledger.path)) as db:
        (last,) = db.execute("SELECT max(rowid) FROM completions").fetchone()
        rng = random.Random(1)
        places = [rng.randint(1, last) for _ in range(SAMPLES)]
        ids, rollouts = zip(
            *(db.execute("SELECT id, rollout FROM completions WHERE rowid = ?", (one,)).fetchone() for one in places),
            strict=True,
        )
        newest = "SELECT id FROM completions WHERE rowid BETWEEN ? AND ? AND policy = 'agent' LIMIT ?"
        steps = [
            [one for (one,) in db.execute(newest, (start, start + 2 * OF_A_STEP, OF_A_STEP))]
            for start in rng.sample(range(1, max(2, last - 2 * OF_A_STEP)), 50)
        ]
    started = time.monotonic()
    found = len(ledger.matching(policy=SMALL))
    policy = {"rows": found, "seconds": time.monotonic() - started}
    return {
        "id": _times(lambda one: ledger.read([one]), ids),
        "rollout": _times(ledger.rollout, rollouts),
        f"step_of_{OF_A_STEP}": _times(ledger.read, steps),
        f"versions_of_{OF_A_STEP}": _times(ledger.sampled_versions, steps),
        "list_of_500": _times(lambda place: ledger.recorded(place, 500), places[:50]),
        "policy": policy,
    }


@asynccontextmanager
async def writing(ledger: SQLiteLedger, rows: Rows) -> AsyncIterator[list[float]]:
    """Writers that go on until the end of the block. Milliseconds of each of their rows."""
    taken: list[float] = []
    stopped = asyncio.Event()

    async def write() -> None:
        while not stopped.is_set():
            one = rows.row(2**62)
            started = time.monotonic()
            await ledger.add(one)
            taken.append(1000 * (time.monotonic() - started))
            await asyncio.sleep(PAUSE)

    writers = [asyncio.create_task(write()) for _ in range(WRITERS)]
    try:
        yield taken
    finally:
        stopped.set()
        await asyncio.gather(*writers)


async def retain(ledger: SQLiteLedger, rows: Rows) -> dict[str, Any]:
    """Deletes a tenth by age and a tenth by size while others write."""
    async with writing(ledger, rows) as alone:
        await asyncio.sleep(10)
    result: dict[str, Any] = {"no_retention": _add_times(alone)}
    for kind in ("age", "size"):
        pages, size = used_pages(ledger.path)
        bounds = {"days": DAYS * 0.9} if kind == "age" else {"days": 1e4, "most_bytes": int(pages * size * 0.9)}
        async with writing(ledger, rows) as meanwhile:
            started = time.monotonic()
            deleted = await asyncio.to_thread(lambda bounds=bounds: ledger.purge(**bounds))
            seconds = time.monotonic() - started
        result[kind] = {
            "deleted": deleted,
            "seconds": seconds,
            "rows_per_second": deleted / seconds,
            **_add_times(meanwhile),
        }
    return result


def used_pages(path: Path) -> tuple[int, int]:
    """Pages of a database that hold something, and bytes of a page."""
    with closing(sqlite3.connect(path)) as db:
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = (int(db.execute(f"PRAGMA {name}").fetchone()[0]) for name in names)
    return pages - free, size


def _times(ask: Callable[[Any], object], values: Sequence[Any]) -> dict[str, float]:
    taken = []
    for value in values:
        started = time.monotonic()
        ask(value)
        taken.append(1000 * (time.monotonic() - started))
    return _percentiles(taken)


def _add_times(taken: Sequence[float]) -> dict[str, float]:
    return {f"add_{name}_ms": value for name, value in {**_percentiles(taken), "max": max(taken)}.items()}


def _percentiles(taken: Sequence[float]) -> dict[str, float]:
    return {"p50": statistics.median(taken), "p99": statistics.quantiles(taken, n=100)[98]}
