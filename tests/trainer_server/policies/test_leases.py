"""Leases: a rollout keeps its version while it calls, and no longer."""

from __future__ import annotations

from trainer_server.policies.leases import LocalLeases


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
    clock.now = 901
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
    assert len(leases._held) == len(leases._expiries) == 1000
    clock.now = 900
    await leases.pin("r1", "agent", 2)
    clock.now = 901
    await leases.release({"r5"})
    assert leases.versions() == {("agent", 1)}, "r1 keeps its version"
    assert len(leases._held) == len(leases._expiries) == 1
    await leases.release({"r1"})
    assert leases.versions() == set()
    assert leases._held == {}


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
    assert len(leases._expiries) == 1


class Counted(dict):  # type: ignore[type-arg]
    """Counts how often it is looked through."""

    looks = 0

    def items(self):  # type: ignore[no-untyped-def]
        Counted.looks += 1
        return super().items()


async def test_a_release_looks_at_no_other_lease() -> None:
    leases = LocalLeases(900)
    for number in range(100):
        await leases.pin(f"r{number}", "agent", 1)
    leases._held = Counted(leases._held)
    for number in range(100):
        await leases.release({f"r{number}"})
        leases.versions()
    assert Counted.looks == 0


async def test_leases_that_expire_together_are_taken_bit_by_bit() -> None:
    clock = Clock()
    leases = LocalLeases(900, clock)
    for number in range(2500):
        await leases.pin(f"r{number}", "agent", 1)
    clock.now = 901
    assert await leases.pin("r2499", "agent", 2) == 2, "its own lease has expired"
    assert len(leases._held) == 1500
    await leases.release({"r2498"})
    leases.versions()
    assert leases.versions() == {("agent", 2)}
    assert len(leases._held) == len(leases._expiries) == 1


async def test_the_newest_version_has_a_lease_of_its_own() -> None:
    leases = LocalLeases(10.0)
    assert await leases.pin("r", "agent", 3) == 3
    assert await leases.pin("r", "agent", 7, asked="agent@latest") == 7
    assert (await leases.pin("r", "agent", 8), await leases.pin("r", "agent", 8, asked="agent@latest")) == (3, 7)
    assert set(leases.versions()) == {("agent", 3), ("agent", 7)}
    await leases.release(["r"])
    assert set(leases.versions()) == set()


async def test_released_leases_are_forgotten_long_before_they_would_expire() -> None:
    """A server that answers a hundred rollouts a second would keep ninety thousand that have ended."""
    leases = LocalLeases(900)
    for number in range(10_000):
        await leases.pin(f"r{number}", "agent", 1)
        await leases.release({f"r{number}"})
        assert len(leases._expiries) < 200
    for number in range(1_000):
        await leases.pin(f"r{number}", "agent", 1)
    await leases.release({f"r{number}" for number in range(0, 1_000, 2)})
    assert leases.versions() == {("agent", 1)}
    assert len(leases._held) == 500
    assert await leases.held("r1", "agent") == 1
