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

from tests.support.home_files import files_with
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


async def test_a_file_that_cannot_be_opened_fails_the_answer_and_not_all_later_ones(tmp_path: Path) -> None:
    """As when this process has too many open files."""
    ledger = SQLiteLedger(tmp_path / "ledger.sqlite")
    aside = ledger.path.rename(tmp_path / "aside")
    ledger.path.mkdir()
    for _ in range(2):
        with pytest.raises(LedgerError, match="cannot be written"):
            await asyncio.wait_for(ledger.add(row("lost")), 10)
    ledger.path.rmdir()
    aside.rename(ledger.path)
    await asyncio.wait_for(ledger.add(row("after")), 10)
    assert set(ledger.read(["lost", "after"])) == {"after"}
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


async def test_a_message_with_half_a_surrogate_pair_does_not_end_the_list(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "ledger.sqlite")
    for one in ("half", "tail"):
        asked = {"messages": [{"role": "user", "content": "say \ud83d" if one == "half" else "say it"}]}
        await ledger.add(row(one).model_copy(update={"request": asked}))
    assert [one.text.rstrip("\ufffd") for one in ledger.recorded(0, 10)] == ["say ", "say it"]
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
    assert set(committed) - {5000, 0}  # no transaction holds all of it
    ledger.close()


async def test_the_oldest_go_first_where_the_ledger_is_too_large(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "ledger.sqlite")
    texts = {"content": "x" * 4000}
    rows = [row(f"c{number}", 1e9 + number).model_copy(update={"message": texts}) for number in range(3000)]
    await ledger.add(*rows)
    size = ledger.path.stat().st_size
    assert ledger.purge(keep=["c0"], days=1e5, most_bytes=size * 2) == 0
    deleted = ledger.purge(keep=["c0"], days=1e5, most_bytes=size // 2)
    assert 1500 <= deleted < 2500
    newest = {f"c{number}" for number in range(deleted + 1, 3000)}
    assert set(ledger.read([one.id for one in rows])) == {"c0", *newest}
    ledger.close()


@pytest.mark.parametrize("way", ["erase", "purge"])
async def test_the_place_of_a_deleted_completion_is_not_given_again(tmp_path: Path, way: str) -> None:
    """Whoever reads in the order of places would miss the completion that gets it."""
    ledger = SQLiteLedger(tmp_path / "ledger.sqlite")
    await ledger.add(row("a", 1.0), row("b", 1.0))
    last = ledger.recorded(0, 10)[-1].place
    if way == "erase":
        ledger.erase(["b", "a"])
    else:
        ledger.purge()
    await ledger.add(row("c"))
    assert [one.place > last for one in ledger.recorded(last, 10)] == [True]
    ledger.close()


async def test_what_is_erased_is_in_no_file_while_others_read_and_write(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "ledger.sqlite")
    marked = [row(f"m{number}").model_copy(update={"message": {"content": "zebrafinch"}}) for number in range(50)]
    for one in marked:
        await ledger.add(one, row(f"other {one.id}"))
    erased = asyncio.create_task(asyncio.to_thread(ledger.erase, [one.id for one in marked]))
    await asyncio.gather(*(ledger.add(row(f"later {number}")) for number in range(50)))
    assert await erased is True
    assert files_with(tmp_path, "zebrafinch", tokens=False) == []
    found = ledger.read([f"{kind}{number}" for number in range(50) for kind in ("other m", "later ", "m")])
    assert len(found) == 100
    assert ledger.matching(policy="agent").keys() == found.keys()
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
