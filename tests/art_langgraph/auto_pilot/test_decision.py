"""Decisions of the autopilot: they hold whenever they are asked for."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from art_langgraph.auto_pilot.decision import (
    CanaryRules,
    Outcomes,
    Verdict,
    decide,
    evidence,
    gate,
)
from art_langgraph.loop.evaluate import SuccessGain
from trainer_server.wire import ConfigError

RULES = CanaryRules(least=5, most=300)


def trial(rng: random.Random, candidate: float, champion: float, per_run: int = 3) -> tuple[Verdict, int]:
    """A candidate that is looked at after each of its runs, until it is decided: the verdict, and after how many."""
    won = beaten = others = 0
    for runs in range(1, RULES.most + 1):
        won += rng.random() < candidate
        beaten += sum(rng.random() < champion for _ in range(per_run))
        others += per_run
        found = decide(Outcomes(won, runs), Outcomes(beaten, others), RULES).verdict
        if found != Verdict.wait:
            return found, runs
    raise AssertionError("after `most` runs it is decided")


@pytest.mark.slow
def test_a_candidate_that_is_no_better_is_promoted_no_more_often_than_alpha() -> None:
    rng = random.Random(0)
    for rate in (0.1, 0.5):
        promoted = sum(trial(rng, rate, rate)[0] == Verdict.promote for _ in range(150))
        assert promoted <= 150 * 0.05, f"{promoted} of 150, at a rate of {rate}"


def test_a_better_one_takes_over_and_a_worse_one_goes() -> None:
    rng = random.Random(1)
    better = [trial(rng, 0.9, 0.6) for _ in range(40)]
    worse = [trial(rng, 0.3, 0.6) for _ in range(40)]
    assert sum(verdict == Verdict.promote for verdict, _ in better) >= 38
    assert all(verdict == Verdict.roll_back for verdict, _ in worse)
    assert sum(runs for _, runs in worse) / 40 < 60, "long before the limit"


def test_the_evidence_is_the_likelihood_ratio_in_closed_form() -> None:
    """For one success and one failure, the mixture gives 1/2 each, and the likeliest equal rate is 1/2."""
    assert evidence(Outcomes(1, 1), Outcomes(0, 1)) == pytest.approx(math.log(0.25 / 0.25))
    assert evidence(Outcomes(0, 1), Outcomes(1, 1)) == pytest.approx(math.log(0.25 / 1.0))
    assert evidence(Outcomes(0, 0), Outcomes(0, 0)) == 0.0
    assert evidence(Outcomes(50, 50), Outcomes(0, 50)) > 50
    assert evidence(Outcomes(0, 50), Outcomes(50, 50)) < 0


def test_reasons_have_the_numbers() -> None:
    few = decide(Outcomes(4, 4), Outcomes(0, 40), RULES)
    assert (few.verdict, "5 runs of the candidate are the least" in few.reason) == (Verdict.wait, True)
    won = decide(Outcomes(40, 40), Outcomes(20, 100), RULES)
    assert won.verdict == Verdict.promote
    assert "candidate 40 of 40 (1.000), promoted 20 of 100 (0.200): it is better (e-value" in won.reason
    equal = decide(Outcomes(150, 300), Outcomes(450, 900), RULES)
    assert (equal.verdict, "after 300 runs" in equal.reason) == (Verdict.roll_back, True)


def test_what_was_promoted_by_hand_stays() -> None:
    best: dict[str, Any] = {"candidate": Outcomes(99, 99), "champion": Outcomes(0, 99)}
    assert decide(**best, expected_version=3, promoted_version=3).verdict == Verdict.promote
    for promoted in (5, None):
        found = decide(**best, expected_version=3, promoted_version=promoted)
        assert (found.verdict, "by hand" in found.reason) == (Verdict.abandon, True)


def test_the_gate_keeps_out_what_is_worse_there() -> None:
    assert gate(SuccessGain(0.05, (-0.02, 0.12))).verdict == Verdict.wait
    assert gate(SuccessGain(0.0, (-0.1, 0.1))).verdict == Verdict.wait
    assert gate(SuccessGain(-0.01, (-0.1, 0.1))).verdict == Verdict.roll_back
    assert gate(SuccessGain(-0.01, (-0.1, 0.1)), CanaryRules(tolerance=0.02)).verdict == Verdict.wait
    assert gate(None).verdict == Verdict.roll_back


@pytest.mark.parametrize(
    "make",
    [
        lambda: CanaryRules(alpha=0.0),
        lambda: CanaryRules(least=10, most=9),
        lambda: Outcomes(2, 1),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()
