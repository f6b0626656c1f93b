"""What a rollout asked for is known for as long as its lease."""

from __future__ import annotations

from trainer_server.gateway.rollout_log import RolloutLog
from trainer_server.wire import RolloutCalls


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_versions_and_temperatures_of_a_rollout() -> None:
    log = RolloutLog(900)
    log.note("r", "agent", 3, 1.0)
    log.note("r", "agent", 0, 1.0)
    log.note("r", None, None, 0.5)
    log.note("other", "agent", 7, 0.0)
    assert log.calls("r") == RolloutCalls(calls=3, versions={"agent": [0, 3]}, temperatures=[0.5, 1.0])
    assert log.calls("unknown") == RolloutCalls()


def test_a_rollout_is_forgotten_after_its_last_call() -> None:
    clock = Clock()
    log = RolloutLog(900, clock)
    log.note("long", "agent", 1, 1.0)
    log.note("short", "agent", 1, 1.0)
    clock.now = 800
    log.note("long", "agent", 1, 1.0)
    clock.now = 1000
    assert (log.calls("long").calls, log.calls("short").calls) == (2, 0)
    clock.now = 2000
    assert log.calls("long").calls == 0
