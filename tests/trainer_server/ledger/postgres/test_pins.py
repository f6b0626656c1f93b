"""Leases that servers share: one version for a rollout, for as long as the database's clock says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from trainer_server.ledger.fleet import SharedPins
from trainer_server.ledger.postgres import postgres_fleet

Two = tuple[SharedPins, SharedPins]


@pytest.fixture
async def two(postgres_url: str) -> AsyncIterator[Two]:
    """What two servers have of one database."""
    made = [postgres_fleet(postgres_url) for _ in range(2)]
    yield made[0].pins, made[1].pins
    for fleet in made:
        await fleet.gateways.leave()


async def test_servers_that_are_asked_at_once_give_a_rollout_one_version(two: Two) -> None:
    asked = [two[n % 2].pin(f"r-{n // 8}", "agent", ("agent", n % 2), 60) for n in range(80)]
    given = await asyncio.gather(*asked)
    assert all(len(set(given[n : n + 8])) == 1 for n in range(0, 80, 8))


async def test_a_lease_ends_by_the_clock_of_the_database(two: Two, postgres_url: str) -> None:
    one, other = two
    assert await one.pin("r", "agent", ("agent", 1), 60) == 1
    assert await other.pin("r", "agent", ("agent", 2), 60) == 1
    assert await other.pin("r", "agent@latest", ("agent", 2), 60) == 2, "another name, another lease"
    with psycopg.connect(postgres_url, autocommit=True) as db:
        later = "UPDATE art_langgraph.leases SET expires = clock_timestamp() + %s * interval '1 second'"
        db.execute(later, (20,))
        assert await other.held_version("r", "agent") == 1
        await other.pin("r", "agent", ("agent", 2), 60)  # renews it, as a quarter of its time has passed
        left = "SELECT extract(epoch FROM expires - clock_timestamp()) FROM art_langgraph.leases WHERE name = 'agent'"
        assert float((db.execute(left).fetchone() or (0,))[0]) > 50
        db.execute(later, (-1,))
        assert await other.held_version("r", "agent") is None
        assert await one.pin("r", "agent", ("agent", 3), 60) == 3
        await one.purge()
        assert db.execute("SELECT name FROM art_langgraph.leases").fetchall() == [("agent",)]


async def test_what_one_server_releases_the_other_one_gives_anew(two: Two) -> None:
    one, other = two
    odd = "r \0 \ud83d"
    await one.pin(odd, "agent", ("agent", 1), 60)
    await other.release([odd, "unknown"])
    assert await one.pin(odd, "agent", ("agent", 2), 60) == 2


async def test_meanings_are_what_was_published_last(two: Two) -> None:
    one, other = two
    await one.publish({"a": "1", "b": "2"})
    await one.publish({"a": "3", "b": None})
    assert (await other.meaning("a"), await other.meaning("b"), await other.meanings()) == ("3", None, {"a": "3"})
