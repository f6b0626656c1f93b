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
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.ledger.phases import look_up, record, retain, used_pages
from benchmarks.ledger.rows import Rows
from trainer_server.common import Home
from trainer_server.ledger.sqlite import SQLiteLedger


async def measure(home: Path, count: int, tokens: int, prompt: int) -> dict[str, Any]:
    """All figures of a ledger."""
    ledger = SQLiteLedger(Home(home).ledger)
    rows = Rows(count, tokens, prompt)
    try:
        recorded = await record(ledger, rows, count)
        pages, size = used_pages(ledger.path)
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
