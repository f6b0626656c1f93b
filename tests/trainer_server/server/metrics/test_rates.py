"""Rates of the last minute."""

from __future__ import annotations

from trainer_server.server.metrics.counters import Rate, Rates


def test_rates_are_those_of_the_last_seconds_by_policy() -> None:
    now = [1000.0]
    rates = Rates(clock=lambda: now[0])
    now[0] = 1050.0
    rates.add("agent", 10, 60)
    now[0] = 1100.0
    rates.add("agent", 20, 120)
    rates.add(None, 5, 30)
    assert rates.of() == {"agent": Rate(2 / 60, 0.5, 3.0), None: Rate(1 / 60, 5 / 60, 0.5)}
    assert rates.of(10) == {"agent": Rate(0.1, 2.0, 12.0), None: Rate(0.1, 0.5, 3.0)}
    now[0] = 1155.0
    assert set(rates.of(10)) == set()
    assert rates.of()["agent"].sampled_tokens == 2.0
    now[0] = 1200.0
    assert rates.of() == {}
    assert rates.completions == {"agent": 2, None: 1}


def test_a_server_that_was_just_started_has_no_minute_behind_it() -> None:
    now = [0.0]
    rates = Rates(clock=lambda: now[0])
    rates.add("agent", 0, 50)
    assert rates.of()["agent"].sampled_tokens == 50.0
    now[0] = 5.0
    assert rates.of()["agent"].sampled_tokens == 10.0
