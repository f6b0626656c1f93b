"""The ledger: what `add` returned for is on disk, whatever happens next."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.ledger_rows import row
from trainer_server.ledger.base import LedgerError
from trainer_server.ledger.sqlite import SQLiteLedger


async def test_what_is_read_is_what_was_added(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "ledger.sqlite")
    rows = [row(f"c{number}") for number in range(1200)]
    await asyncio.gather(*(ledger.add(one) for one in rows))
    ids = [one.id for one in rows]
    assert ledger.read([*ids, "unknown"]) == dict(zip(ids, rows, strict=True))
    ledger.close()


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%41b", "a b", "ä&x=y"])
async def test_a_home_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """SQLite reads the file's name from a URI."""
    for path in (tmp_path / name / "ledger.sqlite", Path(name) / "ledger.sqlite"):
        monkeypatch.chdir(tmp_path)
        ledger = SQLiteLedger(path)
        await ledger.add(row("c"))
        assert set(ledger.read(["c"])) == {"c"}
        assert ledger.sampled_versions(["c"]) == {("agent", 1)}
        ledger.close()
    assert [one.name for one in tmp_path.iterdir()] == [name]


async def test_a_full_disk_withholds_the_answer_and_passes(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "ledger.sqlite")
    await ledger.add(row("before"))
    blocker = sqlite3.connect(ledger.path)
    blocker.execute("ALTER TABLE completions RENAME TO elsewhere")
    with pytest.raises(LedgerError, match="cannot be written"):
        await ledger.add(row("lost"))
    blocker.execute("ALTER TABLE elsewhere RENAME TO completions")
    blocker.close()
    await ledger.add(row("after"))
    assert set(ledger.read(["before", "lost", "after"])) == {"before", "after"}
    ledger.close()


async def test_a_cancelled_request_is_recorded_all_the_same(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "ledger.sqlite")
    task = asyncio.create_task(ledger.add(row("cancelled")))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    ledger.close()
    assert "cancelled" in ledger.read(["cancelled"])


async def test_half_a_surrogate_pair_is_kept_and_read(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "ledger.sqlite")
    half = row("half").model_copy(update={"request": {"messages": [{"role": "user", "content": "\ud83d"}]}})
    await asyncio.wait_for(ledger.add(half), 10)
    assert ledger.read(["half"]) == {"half": half}
    ledger.close()


async def test_a_row_that_cannot_be_written_fails_alone(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "ledger.sqlite")
    bad = row("bad").model_copy(update={"request": {"messages": object()}})
    adding = (ledger.add(one) for one in (row("before"), bad, row("after")))
    before, failed, after = await asyncio.wait_for(asyncio.gather(*adding, return_exceptions=True), 10)
    assert before is after is None
    assert isinstance(failed, LedgerError)
    assert "bad cannot be written" in str(failed)
    await asyncio.wait_for(ledger.add(row("later")), 10)
    assert set(ledger.read(["before", "bad", "after", "later"])) == {"before", "after", "later"}
    ledger.close()


async def test_retention_spares_what_open_jobs_name(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "ledger.sqlite")
    old = time.time() - 40 * 86400
    await ledger.add(row("old", old), row("old but named", old), row("new"))
    assert ledger.purge(keep=["old but named"]) == 1
    assert set(ledger.read(["old", "old but named", "new"])) == {"old but named", "new"}
    ledger.close()


async def test_answers_get_in_between_while_much_is_deleted(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "ledger.sqlite")
    old = time.time() - 40 * 86400
    await ledger.add(*(row(f"old {number}", old) for number in range(5000)))
    committed: list[int] = []
    with closing(sqlite3.connect(ledger.path)) as reader:
        purge = asyncio.create_task(asyncio.to_thread(ledger.purge))
        while not purge.done():
            committed.append(reader.execute("SELECT count(*) FROM completions").fetchone()[0])
            await asyncio.sleep(0)
    assert await purge == 5000
    assert set(committed) & {4000, 3000, 2000, 1000}  # no transaction holds all of it
    ledger.close()


_WRITER = """
import asyncio, sys, pathlib
from tests.support.ledger_rows import row
from trainer_server.ledger.sqlite import SQLiteLedger

async def main():
    ledger = SQLiteLedger(pathlib.Path(sys.argv[1]))
    number = 0
    while True:
        await asyncio.gather(*(ledger.add(row(f"c{number + i}")) for i in range(7)))
        number += 7
        print(number, flush=True)

asyncio.run(main())
"""


def test_a_kill_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    acknowledged = 0
    for line in writer.stdout:
        acknowledged = int(line)
        if acknowledged >= 70:
            break
    os.kill(writer.pid, signal.SIGKILL)
    rest = [int(line) for line in writer.communicate()[0].split()]
    acknowledged = max([acknowledged, *rest])
    found = SQLiteLedger(path).read([f"c{number}" for number in range(acknowledged)])
    assert len(found) == acknowledged
