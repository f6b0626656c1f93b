"""Leases: a rollout keeps its version while it calls, and no longer."""

from __future__ import annotations

import tracemalloc

from tests.support.homes.versions import holders
from trainer_server.policies.leases import LocalLeases


def held(leases: LocalLeases) -> int:
    """How many rollouts hold something."""
    return len(holders(leases))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_rollout_keeps_its_version_while_newer_ones_come() -> None:
    leases = LocalLeases(900)
    assert await leases.pin("r", "agent", 1) == 1
    assert await leases.pin("r", "agent", 2) == 1
    assert await leases.pin("other", "agent", 2) == 2
    assert await leases.pin("r", "judge", 5) == 5


async def test_each_call_renews_the_lease() -> None:
    clock = Clock()
    leases = LocalLeases(900, clock)
    await leases.pin("r", "agent", 1)
    for _ in range(5):
        clock.now += 800
        assert await leases.pin("r", "agent", 9) == 1


async def test_an_expired_lease_gives_the_newest() -> None:
    clock = Clock()
    leases = LocalLeases(900, clock)
    await leases.pin("r", "agent", 1)
    clock.now = 900 * (1 + 1 / 16) + 1
    assert leases.versions() == set()
    assert await leases.pin("r", "agent", 4) == 4


async def test_a_released_rollout_holds_nothing() -> None:
    leases = LocalLeases(900)
    await leases.pin("r", "agent", 1)
    await leases.pin("s", "agent", 2)
    assert leases.versions() == {("agent", 1), ("agent", 2)}
    await leases.release({"r", "unknown"})
    assert leases.versions() == {("agent", 2)}


async def test_asking_for_versions_renews_no_lease() -> None:
    clock = Clock()
    leases = LocalLeases(10, clock)
    await leases.pin("r", "agent", 1)
    clock.now = 9
    assert leases.versions() == {("agent", 1)}
    clock.now = 11
    assert leases.versions() == set()


async def test_expired_leases_are_kept_no_longer_than_needed() -> None:
    clock = Clock()
    leases = LocalLeases(900, clock)
    for number in range(1000):
        await leases.pin(f"r{number}", "agent", 1)
    for _ in range(10):  # renewals add nothing
        await leases.pin("r1", "agent", 1)
    assert held(leases) == 1000
    clock.now = 900
    assert await leases.pin("r1", "agent", 2) == 1
    clock.now = 957
    await leases.release({"r5"})
    assert leases.versions() == {("agent", 1)}, "r1 keeps its version"
    assert held(leases) == 1
    await leases.release({"r1"})
    assert leases.versions() == set()
    assert held(leases) == 0


async def test_a_call_renews_all_leases_of_its_rollout() -> None:
    clock = Clock()
    leases = LocalLeases(900, clock)
    await leases.pin("r", "agent", 1)
    await leases.pin("r", "judge", 4)
    for _ in range(5):
        clock.now += 800
        await leases.pin("r", "agent", 2)
    assert (await leases.held_version("r", "agent"), await leases.held_version("r", "judge")) == (1, 4)
    assert await leases.held_version("r", "other") is None


async def test_a_rollout_that_comes_back_after_its_release_holds_one_lease() -> None:
    clock = Clock()
    leases = LocalLeases(900, clock)
    for newest in (1, 2, 3):
        assert await leases.pin("r", "agent", newest) == newest
        await leases.release({"r"})
    assert await leases.pin("r", "agent", 4) == 4
    clock.now = 900
    await leases.pin("r", "agent", 5)
    clock.now = 1000  # the entries of the released leases are gone
    assert leases.versions() == {("agent", 4)}
    assert held(leases) == 1


async def test_a_lease_takes_little_memory() -> None:
    """A third of the clients may go away and release nothing: their leases are what a long run adds to the memory."""
    clock = Clock()
    leases = LocalLeases(900, clock)
    rollouts = [f"{number:032x}" for number in range(5_000)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for rollout in rollouts:
            clock.now += 0.1
            await leases.pin(rollout, "agent", 1)
        assert (tracemalloc.get_traced_memory()[0] - before) / len(rollouts) < 120, "bytes, without the rollout's id"
    finally:
        tracemalloc.stop()
    assert held(leases) == len(rollouts)


async def test_as_many_spans_are_kept_as_a_lease_is_long() -> None:
    clock = Clock()
    leases = LocalLeases(900, clock)
    for number in range(20_000):
        clock.now += 1
        await leases.pin(f"r{number}", "agent", number)
        assert len(leases._spans) <= 18
    assert 900 <= held(leases) <= 957
    assert len(leases.versions()) == held(leases)


async def test_the_newest_version_has_a_lease_of_its_own() -> None:
    leases = LocalLeases(10.0)
    assert await leases.pin("r", "agent", 3) == 3
    assert await leases.pin("r", "agent", 7, requested_name="agent@latest") == 7
    assert (await leases.pin("r", "agent", 8), await leases.pin("r", "agent", 8, requested_name="agent@latest")) == (
        3,
        7,
    )
    assert set(leases.versions()) == {("agent", 3), ("agent", 7)}
    await leases.release(["r"])
    assert set(leases.versions()) == set()


async def test_released_leases_are_forgotten_long_before_they_would_expire() -> None:
    """A server that answers a hundred rollouts a second would keep ninety thousand that have ended."""
    leases = LocalLeases(900)
    for number in range(10_000):
        await leases.pin(f"r{number}", "agent", 1)
        await leases.release({f"r{number}"})
        assert held(leases) == 0
    for number in range(1_000):
        await leases.pin(f"r{number}", "agent", 1)
    await leases.release({f"r{number}" for number in range(0, 1_000, 2)})
    assert leases.versions() == {("agent", 1)}
    assert held(leases) == 500
    assert await leases.held_version("r1", "agent") == 1
