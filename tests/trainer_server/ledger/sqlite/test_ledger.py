"""The ledger: what `add` returned for is on disk, whatever happens next."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.homes.files import files_with
from tests.support.homes.ledger_rows import row
from tests.support.homes.ledger_tests import LedgerTests, Place
from tests.support.patience import PATIENCE
from trainer_server.ledger.base import LedgerError
from trainer_server.ledger.sqlite import SQLiteLedger


class TestSQLiteLedger(LedgerTests):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Place]:
        made = Place("sqlite", tmp_path)
        yield made
        made.close()


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
            await asyncio.wait_for(ledger.add(row("lost")), PATIENCE)
    ledger.path.rmdir()
    aside.rename(ledger.path)
    await asyncio.wait_for(ledger.add(row("after")), PATIENCE)
    assert set(ledger.read(["lost", "after"])) == {"after"}
    ledger.close()


async def test_a_message_with_half_a_surrogate_pair_does_not_end_the_list(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "ledger.sqlite")
    for one in ("half", "tail"):
        asked = {"messages": [{"role": "user", "content": "say \ud83d" if one == "half" else "say it"}]}
        await ledger.add(row(one).model_copy(update={"request": asked}))
    assert [one.text.rstrip("\ufffd") for one in ledger.recorded(0, 10)] == ["say ", "say it"]
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
