"""`art-langgraph ledger archive` on the home of a server."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from tests.support.cli import art
from tests.support.homes.ledger_rows import row
from trainer_server.common import Home
from trainer_server.ledger.archive import Archive
from trainer_server.ledger.sqlite import SQLiteLedger

DAY = 86400


def test_it_archives_says_so_and_is_audited(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.make_private()
    ledger, now = SQLiteLedger(home.ledger), time.time()
    asyncio.run(ledger.add(row("old", now - 70 * DAY), row("new", now)))
    ledger.close()
    done = art("ledger", "archive", "--months", "1", "--home", str(home.root))
    assert done.exit_code == 0, done.output
    (month,) = Archive(home.archive).months()
    assert f"{month}: 1 completions in {home.archive}/{month}.parquet" in done.output.replace("\n", "")
    assert set(ledger.read(["old", "new"])) == {"new"}
    again = art("ledger", "archive", "--months", "1", "--home", str(home.root))
    assert "the ledger has no completions from before" in again.output
    told = [json.loads(line) for line in art("audit", "--json", "--home", str(home.root)).output.splitlines()]
    assert [(one["action"], one["result"]) for one in told] == [("ledger.archive", "ok")] * 2


def test_a_directory_without_a_ledger_is_refused(tmp_path: Path) -> None:
    done = art("ledger", "archive", "--home", str(tmp_path / "nowhere"))
    assert done.exit_code != 0
    assert not (tmp_path / "nowhere").exists()
