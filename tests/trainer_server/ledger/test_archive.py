"""The archive: a month moves to a Parquet file, each completion once, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.homes.ledger_rows import row
from tests.support.homes.ledger_tests import Place
from tests.support.servers.postgres import DATABASES
from trainer_server.ledger import archive as archive_module
from trainer_server.ledger.archive import Archive, archive_months
from trainer_server.ledger.base import LedgerError, beginning
from trainer_server.wire import Completion

NOW = beginning("2026-06")
MAY = datetime(2026, 5, 20, tzinfo=UTC).timestamp()
APRIL = datetime(2026, 4, 2, tzinfo=UTC).timestamp()
CHILD = """
import os, signal, sys
from pathlib import Path
from trainer_server.ledger import archive
from trainer_server.ledger.registry import open_ledger
from trainer_server.common import Home

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

home, stage, before, name = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), os.environ["ART_LEDGER"]
if name == "sqlite":
    from trainer_server.ledger.sqlite import OldMonth
else:
    from trainer_server.ledger.postgres.ledger import OldMonth
rows, delete, deleted = OldMonth.rows, OldMonth._delete, []

def some(self):
    for number, one in enumerate(rows(self)):
        yield one if number < 25 else die()

def once(self, most):
    die() if deleted else deleted.append(1)
    return delete(self, most)

archive._AT_ONCE = 10
if stage == "partly written":
    OldMonth.rows = some
if stage == "written":
    archive.os.replace = die
if stage == "renamed":
    archive._flush = die
if stage == "partly deleted":
    OldMonth._delete = once
list(archive.archive_months(open_ledger(name, Home(home)), archive.Archive(home / "archive"), before))
"""


def made(one: str, created: float) -> Completion:
    return row(one, created).model_copy(update={"rollout": f"ro-{one}", "hint": "half a pair: \ud83d", "version": None})


@pytest.fixture(params=DATABASES)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A ledger in SQLite, and in PostgreSQL."""
    name = "sqlite" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    made = Place(name, tmp_path)
    yield made
    made.close()


async def filled(kept: Place, *rows: Completion) -> Any:
    ledger = kept.open()
    await ledger.add(*rows)
    return ledger


def ids(archive: Archive) -> list[str]:
    return [one[0] for month in archive.months() for one in archive.rows(month)]


async def test_earlier_months_move_and_the_others_stay(kept: Place, tmp_path: Path) -> None:
    old, newer, new = made("a", APRIL), made("b", MAY), made("c", NOW)
    ledger, archive = await filled(kept, newer, new, old), Archive(tmp_path / "archive")
    assert list(archive_months(ledger, archive, NOW)) == [("2026-04", 1), ("2026-05", 1)]
    assert archive.months() == ["2026-04", "2026-05"]
    assert archive.read(["a", "b", "c"]) == {"a": old, "b": newer}
    assert ledger.read(["a", "b", "c"]) == {"c": new}
    assert stat.S_IMODE(archive.path("2026-04").stat().st_mode) == 0o600
    assert list(archive_months(ledger, archive, NOW)) == []
    await ledger.add(made("d", NOW + 1))
    assert [one.place for one in ledger.recorded(2, 9)] == [4], "places are not given again"
    ledger.close()


async def test_what_open_jobs_need_stays(kept: Place, tmp_path: Path) -> None:
    ledger, archive = await filled(kept, made("a", MAY), made("b", MAY)), Archive(tmp_path / "archive")
    assert list(archive_months(ledger, archive, NOW, keep=["a"])) == [("2026-05", 1)]
    assert set(ledger.read(["a", "b"])) == {"a"}
    assert list(archive_months(ledger, archive, NOW)) == [("2026-05", 1)], "the month's file gets what it lacks"
    assert sorted(ids(archive)) == ["a", "b"]
    ledger.close()


async def test_a_file_that_is_not_as_it_was_written_deletes_nothing(
    kept: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, archive = await filled(kept, made("a", MAY)), Archive(tmp_path / "archive")
    list(archive_months(ledger, archive, NOW))
    await ledger.add(made("b", MAY))
    write = archive_module._write

    def lossy(path: Path, rows: object) -> tuple[int, str]:
        count, _ = write(path, rows)  # type: ignore[arg-type]
        return count, "the digest of what should be there"

    with monkeypatch.context() as patched:
        patched.setattr(archive_module, "_write", lossy)
        with pytest.raises(LedgerError, match="was not written as it should"):
            list(archive_months(ledger, archive, NOW))
    assert set(ledger.read(["a", "b"])) == {"b"}
    assert ids(archive) == ["a"]
    archive.path("2026-05").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(LedgerError, match=r"2026-05.parquet cannot be read.*Move it away"):
        list(archive_months(ledger, archive, NOW))
    assert set(ledger.read(["b"])) == {"b"}
    ledger.close()


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["partly written", "written", "renamed", "partly deleted"])
async def test_a_kill_in_the_middle_loses_and_doubles_nothing(kept: Place, tmp_path: Path, stage: str) -> None:
    wanted = {f"c{number}" for number in range(200)}
    ledger = await filled(kept, *(made(one, MAY) for one in wanted))
    line = [sys.executable, "-c", CHILD, str(tmp_path), stage, str(NOW)]
    variables = {**os.environ, "ART_LEDGER": kept.name}
    done = subprocess.run(line, capture_output=True, text=True, env=variables)
    assert done.returncode == -signal.SIGKILL, done.stderr
    archive = Archive(tmp_path / "archive")
    assert set(ledger.read(sorted(wanted))) | set(ids(archive)) == wanted
    left = len(ledger.read(sorted(wanted)))
    assert 0 < left < 200 if stage == "partly deleted" else left == 200
    assert [month for month, _ in archive_months(ledger, archive, NOW)] == ["2026-05"]
    assert sorted(ids(archive)) == sorted(wanted)
    assert ledger.read(sorted(wanted)) == {}
    assert [path.name for path in archive.directory.iterdir() if "partial" in path.name] == []
    ledger.close()


async def test_the_server_writes_on_meanwhile(kept: Place, tmp_path: Path) -> None:
    ledger = await filled(kept, *(made(f"old{number}", MAY) for number in range(2_000)))
    archive, stopped, added = Archive(tmp_path / "archive"), threading.Event(), [0]

    def move() -> None:
        try:
            list(archive_months(kept.open(), archive, NOW))
        finally:
            stopped.set()

    mover = threading.Thread(target=move)
    mover.start()
    while not stopped.is_set():
        await ledger.add(made(f"new{added[0]}", NOW))
        added[0] += 1
        await asyncio.sleep(0)
    mover.join()
    assert added[0] > 0
    assert len(ledger.read([f"new{number}" for number in range(added[0])])) == added[0]
    assert len(set(ids(archive))) == len(ids(archive)) == 2_000
    ledger.close()


async def test_erased_completions_are_in_no_file(kept: Place, tmp_path: Path) -> None:
    ledger = await filled(kept, made("a", APRIL), made("b", MAY), made("c", MAY))
    archive = Archive(tmp_path / "archive")
    list(archive_months(ledger, archive, NOW))
    assert archive.matching(rollouts=["ro-a"], completions=["c", "unknown"]) == {"a": "ro-a", "c": "ro-c"}
    assert set(archive.matching(policy="agent")) == {"a", "b", "c"}
    assert archive.matching(policy="other") == {}
    before = archive.path("2026-05").stat().st_ino
    archive.erase(["a", "unknown"])
    assert archive.months() == ["2026-05"], "a file without rows is deleted"
    assert archive.path("2026-05").stat().st_ino == before, "a file that has none of them stays as it is"
    archive.erase(["c"])
    assert ids(archive) == ["b"]
    assert b"ro-c" not in archive.path("2026-05").read_bytes()
    ledger.close()


async def test_one_at_a_time(kept: Place, tmp_path: Path) -> None:
    ledger, archive = await filled(kept, made("a", MAY)), Archive(tmp_path / "archive")
    with archive.hold_lock():
        (archive.directory / ".2026-04.parquet.partial").write_bytes(b"left by nobody")
        with pytest.raises(LedgerError, match="ask again when that has ended"):
            list(archive_months(ledger, Archive(tmp_path / "archive"), NOW))
    with archive.hold_lock():
        assert [path.name for path in archive.directory.iterdir()] == [".lock"], "what a killed process left is gone"
    ledger.close()


def test_without_pyarrow_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(tmp_path / "archive")
    assert archive.matching(rollouts=["r"]) == {}, "nothing is archived: nothing is needed"
    archive.directory.mkdir()
    archive.path("2026-05").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(LedgerError, match=r"pip install 'art-langgraph\[parquet\]'"):
        archive.matching(rollouts=["r"])


@pytest.mark.parametrize(
    ("month", "later", "wanted"),
    [("2026-01", 0, "2026-01"), ("2026-01", -1, "2025-12"), ("2025-12", 1, "2026-01"), ("2026-03", -14, "2025-01")],
)
def test_months_follow_one_another(month: str, later: int, wanted: str) -> None:
    found = datetime.fromtimestamp(beginning(month, later=later), UTC)
    assert f"{found:%Y-%m-%d %H:%M:%S}" == f"{wanted}-01 00:00:00"
