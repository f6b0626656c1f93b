"""A SQLite home that moves to PostgreSQL: all of it, once, also when the move is killed in between."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.support.cli import art
from tests.support.homes.ledger_rows import row
from trainer_server.common import Home
from trainer_server.ledger.postgres import PostgresBooks, PostgresLedger, move, put_away
from trainer_server.ledger.rollouts import RolloutRepository
from trainer_server.ledger.run_list import RunFilter, RunList
from trainer_server.ledger.run_repository import RunRepository
from trainer_server.ledger.sqlite import SQLiteBooks, SQLiteLedger
from trainer_server.wire import ConfigError, Reward, RolloutSpec
from trainer_server.wire.rollouts import RolloutScenario

ROWS = 1200


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with completions, registered and rewarded rollouts, and a list of runs."""
    home = Home(tmp_path / "home")
    home.make_private()
    ledger = SQLiteLedger(home.ledger)
    completions = [row(f"c-{n}").model_copy(update={"rollout": f"ro-{n % 7}"}) for n in range(ROWS)]
    odd = completions[5].model_copy(update={"request": {"messages": [{"role": "user", "content": "a\0b ü \ud83d x"}]}})
    asyncio.run(ledger.add(*completions[:5], odd, *completions[6:]))
    ledger.close()
    books = SQLiteBooks(home.rollouts)
    rollouts = RolloutRepository(books)
    for n in range(7):
        rollouts.register(f"ro-{n}", RolloutSpec(scenario=RolloutScenario(id=f"s-{n}", input=f"Frage {n}\0 höflich")))
        rollouts.reward(f"ro-{n}", Reward(reward=n / 3), ["agent"])
    return home


def test_all_is_there_and_the_next_rows_go_on(home: Home, postgres_url: str) -> None:
    before = SQLiteLedger(home.ledger).recorded(0, 10_000)
    runs = RunList(RunRepository(SQLiteBooks(home.rollouts)))
    listed = [(one.id, one.reward) for one in runs.page(RunFilter()).runs]
    told: list[str] = []
    moved = move(home, "srv", postgres_url, lambda table, done, count: told.append(f"{table} {done}/{count}"))
    assert moved["completions"].rows == ROWS
    assert (moved["rollouts"].rows, moved["rewards"].rows) == (7, 7)
    assert {"completions 500/1200", "completions 1200/1200", "rollouts 7/7"} <= set(told)
    ledger, books = PostgresLedger(postgres_url), PostgresBooks(postgres_url)
    after = ledger.recorded(0, 10_000)
    assert [(one.place, one.created, one.tokens) for one in after] == [(o.place, o.created, o.tokens) for o in before]
    assert [len(ledger.rollout(f"ro-{n}")) for n in range(7)] == [172, 172, 172, 171, 171, 171, 171]
    rollouts = RolloutRepository(books)
    assert rollouts.rewards("ro-3")[0].reward == 1.0
    assert [(one.id, one.reward) for one in RunList(RunRepository(books)).page(RunFilter()).runs] == listed
    rollouts.register("ro-new", RolloutSpec())
    asyncio.run(ledger.add(row("c-new")))
    assert ledger.recorded(0, 10_000)[-1].place == before[-1].place + 1
    ledger.close()
    books.close()
    put_away(home)
    assert not home.ledger.exists()
    assert home.ledger.with_name("ledger.sqlite.moved").exists()
    with pytest.raises(ConfigError, match=r"the home has 1200 rows of digest .*, and the database 1201"):
        move(home, "srv", postgres_url)


def test_a_database_of_another_server_is_refused(home: Home, postgres_url: str) -> None:
    ledger = PostgresLedger(postgres_url)
    asyncio.run(ledger.add(row("other")))
    ledger.close()
    with pytest.raises(ConfigError, match="has completions of another server already"):
        move(home, "srv", postgres_url)
    assert home.ledger.exists()


@pytest.mark.slow
def test_a_move_that_is_killed_goes_on(home: Home, postgres_url: str, tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    line = [
        sys.executable,
        "-c",
        "from art_langgraph.cli.main import main; main()",
        "ledger",
        "move",
        "--from",
        str(home.root),
        "--json",
    ]
    variables = {**os.environ, "ART_LEDGER": postgres_url, "ART_FAULT": str(fault)}
    for point in ("moved", "moved", "moved", "moved", "compared"):
        fault.write_text(point)
        killed = subprocess.run(line, env=variables, capture_output=True, text=True, timeout=120)
        assert killed.returncode != 0, (point, killed.stdout)
        assert home.ledger.exists()
    fault.unlink(missing_ok=True)
    done = subprocess.run(line, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["tables"]["completions"]["rows"] == ROWS
    with psycopg.connect(postgres_url) as db:
        assert db.execute("SELECT count(DISTINCT place), count(*) FROM art_langgraph.completions").fetchone() == (
            ROWS,
            ROWS,
        )


def test_a_home_in_use_stays(home: Home, postgres_url: str, tmp_path: Path) -> None:
    done = art("ledger", "move", "--from", str(tmp_path / "nowhere"), "--to", postgres_url)
    assert done.exit_code != 0
    done = art("ledger", "move", "--from", str(home.root), "--to", "sqlite")
    assert "name a database by its address" in str(done.exception)
    with (home.root / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = art("ledger", "move", "--from", str(home.root), "--to", postgres_url)
    assert "a server is using" in str(done.exception)
    assert home.ledger.exists()
