"""The ledger in PostgreSQL: what every ledger does, and what happens when the database restarts or is away."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.homes.ledger_rows import row
from tests.support.homes.ledger_tests import LedgerTests, Place, Writing, changed
from tests.support.servers.postgres import PostgresServer, postgres_server
from trainer_server.common import postgres_files as rewriting
from trainer_server.ledger.base import LedgerError
from trainer_server.ledger.postgres import PostgresLedger
from trainer_server.ledger.postgres import ledger as module


class TestPostgresLedger(LedgerTests):
    @pytest.fixture
    def place(self, postgres_url: str, tmp_path: Path) -> Iterator[Place]:
        made = Place(postgres_url, tmp_path)
        yield made
        made.close()


@pytest.fixture
def own() -> Iterator[PostgresServer]:
    """A server that a test stops and kills."""
    with postgres_server() as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
async def test_answers_wait_while_the_database_restarts(own: PostgresServer, how: signal.Signals) -> None:
    ledger = PostgresLedger(own.new_database())
    reader, ended, added = PostgresLedger(own.new_database()), asyncio.Event(), list[str]()

    async def write(writer: int) -> None:
        while not ended.is_set():
            name = f"w{writer} {len(added)}"
            await ledger.add(row(name))
            added.append(name)

    writing = [asyncio.create_task(write(number)) for number in range(8)]
    for _ in range(2):
        await asyncio.sleep(0.3)
        await asyncio.to_thread(own.stop, how)
        before = len(added)
        await asyncio.to_thread(own.start)
        while len(added) == before:
            await asyncio.sleep(0.05)
    ended.set()
    await asyncio.gather(*writing)
    assert len(ledger.read(added)) == len(set(added))
    assert len(ledger.recorded(0, 10**6)) == len(set(added))  # no row was written twice
    assert reader.read(["x"]) == {}
    for one in (ledger, reader):
        one.close()


@pytest.mark.slow
def test_a_killed_writer_and_a_killed_database_lose_nothing_that_was_acknowledged(
    own: PostgresServer, tmp_path: Path
) -> None:
    place = Place(own.new_database(), tmp_path)
    with Writing(place) as kill:
        acknowledged = kill(700)
    own.stop(signal.SIGKILL)
    own.start()
    assert len(place.open().read([f"c{number}" for number in range(acknowledged)])) == acknowledged
    place.close()


@pytest.mark.slow
async def test_a_database_that_is_away_for_long_withholds_the_answer_and_passes(
    own: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 1.0)
    ledger = PostgresLedger(own.new_database())
    await ledger.add(row("before"))
    own.stop()
    with pytest.raises(
        LedgerError, match=r"the PostgreSQL database test_\d+ on 127.0.0.1:\d+ cannot be written: "
    ) as told:
        await ledger.add(row("lost"))
    with pytest.raises(LedgerError, match="cannot be read"):
        await asyncio.to_thread(ledger.read, ["before"])
    assert "hush" not in str(told.value)
    own.start()
    await ledger.add(row("after"))
    assert set(ledger.read(["before", "lost", "after"])) == {"before", "after"}
    ledger.close()


async def test_a_full_disk_withholds_the_answer_and_passes(postgres_url: str) -> None:
    ledger = PostgresLedger(postgres_url)
    await ledger.add(row("before"))
    with psycopg.connect(postgres_url, autocommit=True) as blocker:
        blocker.execute("ALTER TABLE art_langgraph.completions RENAME TO elsewhere")
        with pytest.raises(LedgerError, match="cannot be written"):
            await ledger.add(row("lost"))
        blocker.execute("ALTER TABLE art_langgraph.elsewhere RENAME TO completions")
    await ledger.add(row("after"))
    assert set(ledger.read(["before", "lost", "after"])) == {"before", "after"}
    ledger.close()


async def test_a_commit_is_on_disk_whatever_the_role_says(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(f"ALTER DATABASE {db.info.dbname} SET synchronous_commit TO off")
    ledger = PostgresLedger(postgres_url)
    await ledger.add(row("c"))
    assert ledger._writer is not None
    assert ledger._writer.execute("SHOW synchronous_commit").fetchone() == ("on",)
    ledger.close()


async def test_a_completion_that_is_written_again_keeps_its_place(postgres_url: str) -> None:
    """As when the answer of the database to a commit was lost."""
    ledger = PostgresLedger(postgres_url)
    await ledger.add(row("a", 1.0))
    await ledger.add(row("a", 1.0))
    assert len(ledger.recorded(0, 10)) == 1
    (first,) = ledger.recorded(0, 10)
    assert ledger.recorded(first.place, 10) == []
    ledger.close()


async def test_what_is_erased_is_in_no_file_but_the_log_of_writes(postgres: PostgresServer, postgres_url: str) -> None:
    ledger = PostgresLedger(postgres_url)
    for number in range(200):
        text = {"content": "zebrafinch " * (1 + number % 3)}
        asked = {"messages": [{"role": "user", "content": "zebrafinch"}]}
        await ledger.add(changed(f"m{number}", message=text, request=asked), row(f"other {number}"))
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("ANALYZE")
        db.execute("CHECKPOINT")
        assert _files_with(postgres, "zebrafinch")
        assert ledger.erase([f"m{number}" for number in range(200)])
        db.execute("CHECKPOINT")
    assert [path for path in _files_with(postgres, "zebrafinch") if "/pg_wal/" not in path] == []
    ledger.close()


async def test_what_another_transaction_still_sees_is_not_said_to_be_gone(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriting, "_PATIENCE", 0.0)
    ledger = PostgresLedger(postgres_url)
    await ledger.add(row("a"))
    with psycopg.connect(postgres_url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        with pytest.raises(
            LedgerError,
            match=r"not yet gone from all files of .* completions: another transaction still sees 1 deleted rows",
        ):
            ledger.erase(["a"])
    assert ledger.erase(["a"])
    ledger.close()


def _files_with(postgres: PostgresServer, mark: str) -> list[str]:
    return subprocess.run(["grep", "-rl", mark, postgres.data], capture_output=True, text=True).stdout.splitlines()
