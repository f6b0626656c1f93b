"""Leases: a rollout keeps its version while it calls, and no longer."""

from __future__ import annotations

from trainer_server.policies.leases import Leases


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_rollout_keeps_its_version_while_newer_ones_come() -> None:
    leases = Leases(900)
    assert leases.pin("r", "agent", 1) == 1
    assert leases.pin("r", "agent", 2) == 1
    assert leases.pin("other", "agent", 2) == 2
    assert leases.pin("r", "judge", 5) == 5


def test_each_call_renews_the_lease() -> None:
    clock = Clock()
    leases = Leases(900, clock)
    leases.pin("r", "agent", 1)
    for _ in range(5):
        clock.now += 800
        assert leases.pin("r", "agent", 9) == 1


def test_an_expired_lease_gives_the_newest() -> None:
    clock = Clock()
    leases = Leases(900, clock)
    leases.pin("r", "agent", 1)
    clock.now = 901
    assert leases.versions() == set()
    assert leases.pin("r", "agent", 4) == 4


def test_a_released_rollout_holds_nothing() -> None:
    leases = Leases(900)
    leases.pin("r", "agent", 1)
    leases.pin("s", "agent", 2)
    assert leases.versions() == {("agent", 1), ("agent", 2)}
    leases.release({"r", "unknown"})
    assert leases.versions() == {("agent", 2)}
