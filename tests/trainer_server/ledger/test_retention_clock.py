"""The time by which retention counts ages, where the system's clock is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.homes.ledger_rows import row
from trainer_server.ledger.books import Books
from trainer_server.ledger.retention_clock import RetentionClock
from trainer_server.ledger.sqlite import SQLiteLedger

DAY = 86400.0
NOW = 1.8e9


class Clocks:
    """The system's clock and the uptime. Time passes for both; somebody may set the clock."""

    def __init__(self, books: Books, ledger: SQLiteLedger) -> None:
        self.now, self.uptime = NOW, 50.0
        self._books, self._ledger = books, ledger

    def start(self) -> RetentionClock:
        return RetentionClock(self._books, self._ledger, lambda: self.now, lambda: self.uptime)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        self.uptime += seconds


@pytest.fixture
def clocks(books: Books, tmp_path: Path) -> Clocks:
    ledger = SQLiteLedger(tmp_path / "ledger.sqlite")
    asyncio.run(ledger.add(row("c", NOW - 3600)))
    return Clocks(books, ledger)


def test_ages_count_by_the_clock_where_records_agree(clocks: Clocks) -> None:
    clock = clocks.start()
    assert clock.lag() == 0
    for _ in range(3):
        clocks.pass_by(3600)
        assert clock.lag() == 0
    clocks.pass_by(0.9 * DAY)  # the server rests for a night
    assert clocks.start().lag() == 0


def test_a_start_with_a_clock_that_is_ahead_makes_nothing_older(clocks: Clocks) -> None:
    """Not at the first start after a release without this clock, and not at the next, when a row has the wrong time."""
    clocks.now += 40 * DAY
    assert clocks.start().lag() == pytest.approx(40 * DAY + 3600)
    asyncio.run(clocks._ledger.add(row("of the wrong time", clocks.now)))
    assert clocks.start().lag() == pytest.approx(40 * DAY + 3600)


def test_a_clock_that_jumps_while_the_server_runs_ages_little_in_a_round(clocks: Clocks) -> None:
    clock = clocks.start()
    assert clock.lag() == 0
    clocks.now += 40 * DAY
    clocks.pass_by(3600)
    assert clock.lag() == pytest.approx(40 * DAY - 5 * 3600)
    clocks.now -= 40 * DAY
    assert clock.lag() == 0, "it was set right"


def test_a_server_that_rested_for_weeks_catches_up(clocks: Clocks) -> None:
    assert clocks.start().lag() == 0
    clocks.now += 40 * DAY
    clock, rounds = clocks.start(), 0
    while clock.lag() and rounds < 10 * 24:
        clocks.pass_by(3600)
        rounds += 1
    assert 7 * 24 < rounds < 9 * 24


def test_a_clock_that_was_set_back_confirms_no_later_jump(clocks: Clocks) -> None:
    clock = clocks.start()
    assert clock.lag() == 0
    clocks.now -= 300 * DAY
    assert clock.lag() == 0
    clocks.now += 300 * DAY
    assert clock.lag() == 0, "that is what it was before"
    clocks.now += 40 * DAY
    assert clock.lag() == pytest.approx(40 * DAY)
