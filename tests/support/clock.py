"""A clock that stands still, and that sleeping advances: what waits for minutes takes no time. And time limits of runs
that end when a test says so, however fast the machine is."""

from __future__ import annotations

import asyncio

import pytest

from art_langgraph.client import outages, transport
from art_langgraph.loop import graphs


class Clock:
    """The time of `outages`, and what sleeps in `transport`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class _Sleeping:
    """asyncio, with a `sleep` that advances the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def sleep(self, seconds: float) -> None:
        self._clock.now += seconds
        await asyncio.sleep(0)

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)


class TimeLimits:
    """asyncio, with time limits that end by `run_out`."""

    def __init__(self) -> None:
        self._limits: list[asyncio.Timeout] = []

    def timeout(self, _seconds: float | None) -> asyncio.Timeout:
        self._limits.append(asyncio.timeout(None))
        return self._limits[-1]

    def run_out(self) -> None:
        """Ends what runs under a limit, as if its time were over."""
        ended, self._limits = self._limits, []
        for limit in ended:
            limit.reschedule(0.0)

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)


def run_limits(monkeypatch: pytest.MonkeyPatch) -> TimeLimits:
    """Puts such limits in the place of `timeout=` of the rollouts of this test."""
    limits = TimeLimits()
    monkeypatch.setattr(graphs, "asyncio", limits)
    return limits


def still_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Puts a clock in the place of time, for the requests of this test; outages of other tests are forgotten."""
    clock = Clock()
    monkeypatch.setattr(outages, "time", clock)
    monkeypatch.setattr(transport, "time", clock)
    monkeypatch.setattr(transport, "asyncio", _Sleeping(clock))
    monkeypatch.setattr(outages.outages, "_outages", {})
    monkeypatch.setattr(outages.outages, "_ended", {})
    return clock
