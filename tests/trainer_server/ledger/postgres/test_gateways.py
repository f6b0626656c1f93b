"""Slots that servers share: who may hold one, who gives it back, and what is left of a server that was killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import psycopg
import pytest

from tests.support.patience import PATIENCE
from tests.support.servers.postgres import PostgresServer, postgres_server
from trainer_server.ledger.base import LedgerError
from trainer_server.ledger.fleet import Claim, Fleet
from trainer_server.ledger.postgres import database as transactions
from trainer_server.ledger.postgres import fleet as module
from trainer_server.ledger.postgres import postgres_fleet

A, B, C = ("a", 0), ("b", 0), ("c", 0)
GRANTED = Claim(granted=True)
Join = Callable[[], Fleet]


@pytest.fixture
async def join(postgres_url: str) -> AsyncIterator[Join]:
    """Makes another server of the fleet."""
    made: list[Fleet] = []

    def another() -> Fleet:
        made.append(postgres_fleet(postgres_url))
        return made[-1]

    yield another
    for fleet in made:
        await fleet.gateways.leave()


async def test_a_slot_is_cleared_once_nobody_holds_it(join: Join) -> None:
    one, two = join().gateways, join().gateways
    for server in (one, two):
        await server.beat([])
        assert await server.claim(A, 1, clear=False) == GRANTED
    assert await one.claim(B, 1, clear=False) == Claim()
    assert await one.claim(B, 1, clear=True) == Claim()
    assert await two.claim(A, 1, clear=False) == Claim(), "nobody begins to hold it again"
    for server in (two, one):
        assert await one.claim(B, 1, clear=False) == Claim()
        beat = await server.beat([])
        assert list(beat.wanted_back) == [A]
        await server.give_back(A, beat.wanted_back[A])
    assert await one.claim(B, 1, clear=False) == Claim(empty_slots=(A,))
    await one.delete_slot(A)
    assert await one.claim(B, 1, clear=False) == GRANTED
    assert (await two.beat([])).slots == {B}


async def test_a_slot_that_was_claimed_again_is_not_given_back(join: Join) -> None:
    one, two = join().gateways, join().gateways
    for server in (one, two):
        await server.beat([])
    await one.claim(A, 1, clear=False)
    await two.claim(B, 1, clear=True)
    number = (await one.beat([])).wanted_back[A]
    await two.settle([])
    assert await one.claim(A, 1, clear=False) == GRANTED
    await one.give_back(A, number)
    assert await two.holders(A) == 1


async def test_idle_slots_go_first_then_those_without_leases_then_those_that_are_not_named(join: Join) -> None:
    fleet = join()
    server, keys = fleet.gateways, [("p", version) for version in range(4)]
    await server.beat([])
    for key in keys:
        assert await server.claim(key, 4, clear=False) == GRANTED
    await fleet.pins.pin("r", "p", ("p", 1), 60)
    await fleet.pins.publish({"p": '{"newest": 2, "promoted": null, "candidate": null}'})
    await server.beat([("p", 0)])
    order = []
    for _ in keys:
        await server.claim(("q", 0), 4, clear=True)
        order += [version for _, version in (await server.beat([("p", 0)])).wanted_back if version not in order]
    assert order == [3, 2, 1, 0]


async def test_a_dead_server_holds_nothing_and_finds_out_when_it_lives(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TERM", 1.0)
    monkeypatch.setattr(module, "_GAP", 0.7)
    dead, alive = join().gateways, join().gateways
    await dead.beat([])
    await dead.claim(A, 2, clear=False)
    await dead.claim(B, 1, clear=True)
    await dead.claim(C, 2, clear=False)
    async with asyncio.timeout(PATIENCE):
        while await alive.holders(C):
            await alive.beat([])
            await asyncio.sleep(0.1)
    assert await alive.claim(A, 2, clear=False) == GRANTED, "it is cleared for nobody any more"
    assert await dead.claim(C, 2, clear=False) == Claim(expelled=True)
    assert (await dead.beat([])).expelled
    assert not (await dead.beat([])).expelled
    assert await dead.claim(C, 2, clear=False) == GRANTED


async def test_after_a_pause_of_its_own_a_server_takes_nobody_for_dead(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TERM", 0.5)
    monkeypatch.setattr(module, "_GAP", 0.3)
    one, two = join().gateways, join().gateways
    await one.beat([])
    await two.beat([])
    await two.claim(A, 1, clear=False)
    await asyncio.sleep(0.7)  # the database was away for both
    await one.beat([])
    assert await one.holders(A) == 1
    assert not (await two.beat([])).expelled


async def test_a_version_that_is_deleted_is_held_by_nobody_else(join: Join) -> None:
    one, two = join(), join()
    for fleet in (one, two):
        await fleet.gateways.beat([])
    await two.pins.pin("r", "a", A, 60)
    assert "in use by a rollout" in str(await one.gateways.close(A))
    await two.pins.release(["r"])
    assert await one.gateways.close(A) is None
    assert await two.gateways.claim(A, 2, clear=True) == Claim()
    assert "another server" in str(await two.gateways.close(A))
    await one.gateways.delete_slot(A)
    assert await two.gateways.claim(A, 2, clear=False) == GRANTED


async def test_a_restart_of_the_database_is_waited_for_and_takes_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_WAIT", 1.0)
    with postgres_server() as database:
        fleet = postgres_fleet(database.new_database())
        await fleet.gateways.beat([])
        await fleet.gateways.claim(A, 1, clear=False)
        await asyncio.to_thread(_restart, database)
        assert await fleet.gateways.holders(A) == 1
        assert await fleet.pins.pin("r", "a", A, 60) == 0
        database.stop()
        monkeypatch.setattr(transactions, "_PATIENCE", 0.1)
        with pytest.raises(LedgerError, match="cannot be asked"):
            await fleet.pins.held_version("r", "a")
        await fleet.gateways.leave()


async def test_all_is_gone_with_engines_that_are_new(join: Join, postgres_url: str) -> None:
    one, two = join().gateways, join().gateways
    await one.beat([])
    await one.claim(A, 1, clear=False)
    await two.clear()
    assert (await one.beat([])).expelled
    with psycopg.connect(postgres_url) as db:
        assert db.execute("SELECT count(*) FROM art_langgraph.slots").fetchone() == (0,)


def _restart(database: PostgresServer) -> None:
    database.stop()
    database.start()
