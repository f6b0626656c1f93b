"""The ledger with millions of completions: how fast it records, finds and deletes, and how much room it takes.

    python -m benchmarks.ledger [--json] [--completions 200000] [--tokens 200] [--prompt 300] [--home DIR]

Records COMPLETIONS answers of TOKENS sampled tokens, 256 at once, as the gateway does. Their times are spread over 60
days, five of them make a rollout, and each hundredth is of a small policy. Then it looks completions up, and deletes
the oldest tenth by age and another tenth by size, while eight writers go on to record. `add` is the time from a
completion to its place on the disk, which an answer waits for. The file is deleted at the end, unless DIR names its
home. Where that has a ledger, COMPLETIONS more are recorded. The last line under --json is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.wire import Completion, CompletionStatus, Home, Sampling

DAYS = 60
AT_ONCE = 256
"""Completions that are recorded at once."""
OF_A_ROLLOUT = 5
OF_A_STEP = 512
"""Completions that the trainer reads for a step."""
SAMPLES = 1000
"""Look-ups of each kind."""
WRITERS, PAUSE = 8, 0.05
"""Writers during retention, and seconds between two rows of a writer."""
SMALL = "small"
"""A policy with a hundredth of the completions."""


class Rows:
    """Completions as the gateway records them: the same texts, and other tokens.

    Args:
        count: How many there will be.
        tokens: Sampled tokens of each.
        prompt: Tokens of the prompt of each.
    """

    def __init__(self, count: int, tokens: int, prompt: int) -> None:
        self._rng = random.Random(0)
        self._began, self._apart = time.time() - DAYS * 86400, DAYS * 86400 / count
        self._count = count
        self._rollout = ""
        self._sampled = [
            {
                "prompt_token_ids": self._tokens(prompt),
                "token_ids": self._tokens(tokens),
                "logprobs": [-self._rng.expovariate(2.0) for _ in range(tokens)],
            }
            for _ in range(64)
        ]
        words = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]
        self._like = Completion(
            id="", created=0.0, server_id=uuid.uuid4().hex, base_model="HuggingFaceTB/SmolLM2-135M-Instruct",
            tokenizer=uuid.uuid4().hex * 2, policy="agent", version=0, model="agent", status=CompletionStatus.complete,
            finish_reason="stop", sampling=Sampling(max_tokens=1024),
            request={"messages": [{"role": "user", "content": " ".join(self._rng.choices(words, k=prompt * 3 // 4))}]},
            message={"role": "assistant", "content": " ".join(self._rng.choices(words, k=tokens * 3 // 4))},
        )  # fmt: skip

    def row(self, number: int) -> Completion:
        """The completion of a number. Five that follow one another have one rollout; each thousandth row is of another
        version. Rows beyond the count are of now."""
        if number % OF_A_ROLLOUT == 0 or not self._rollout:
            self._rollout = f"ro-{self._rng.getrandbits(64):016x}"
        update = {
            "id": f"chatcmpl-{self._rng.getrandbits(128):032x}",
            "created": time.time() if number >= self._count else self._began + number * self._apart,
            "policy": SMALL if number % 100 == 0 else "agent",
            "version": number // 1000,
            "rollout": self._rollout,
            **self._rng.choice(self._sampled),
        }
        return self._like.model_copy(update=update)

    def _tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(49152) for _ in range(count)]


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
        pages, size = _pages(ledger.path)
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


async def measure(home: Path, count: int, tokens: int, prompt: int) -> dict[str, Any]:
    """All figures of a ledger."""
    ledger = SQLiteLedger(Home(home).ledger)
    rows = Rows(count, tokens, prompt)
    try:
        recorded = await record(ledger, rows, count)
        pages, size = _pages(ledger.path)
        with closing(sqlite3.connect(ledger.path)) as db:
            (there,) = db.execute("SELECT count(*) FROM completions").fetchone()
        return {
            "completions": there,
            "tokens": tokens,
            "prompt": prompt,
            "insert": recorded,
            "bytes_per_row": pages * size / there,
            "gib": pages * size / 2**30,
            "look_up_ms": await asyncio.to_thread(look_up, ledger),
            "retention": await retain(ledger, rows),
            "gib_after": ledger.path.stat().st_size / 2**30,
        }
    finally:
        await asyncio.to_thread(ledger.close)


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


def _pages(path: Path) -> tuple[int, int]:
    """Pages of a database that hold something, and bytes of a page."""
    with closing(sqlite3.connect(path)) as db:
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = (int(db.execute(f"PRAGMA {name}").fetchone()[0]) for name in names)
    return pages - free, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--completions", type=int, default=200_000, help="completions to record (200000)")
    parser.add_argument("--tokens", type=int, default=200, help="sampled tokens of a completion (200)")
    parser.add_argument("--prompt", type=int, default=300, help="tokens of a prompt (300)")
    parser.add_argument("--home", type=Path, help="home whose ledger is measured, and kept; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = options.home or Path(scratch)
        result = asyncio.run(measure(home, options.completions, options.tokens, options.prompt))
    if options.json:
        print(json.dumps(result))
        return
    table = Table("figure", "value", title=f"{result['completions']:,} completions of {options.tokens} tokens")
    for name, value in _flat(result):
        table.add_row(name, f"{value:,.2f}")
    Console().print(table)


def _flat(values: dict[str, Any], before: str = "") -> list[tuple[str, float]]:
    """Figures with their names, in one list."""
    found: list[tuple[str, float]] = []
    for name, value in values.items():
        found += _flat(value, f"{before}{name} ") if isinstance(value, dict) else [(f"{before}{name}", value)]
    return found


if __name__ == "__main__":
    main()
