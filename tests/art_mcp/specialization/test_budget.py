"""What each stage may take of the time."""

from __future__ import annotations

import pytest

from art_mcp.specialization.stage_runner import REPORT, Budget
from tests.support.clock import Clock

WEIGHTS = {"scenarios": 6.0, "before": 1.5, "prompted": 2.0, "warm start": 46.0, "after_sft": 6.0, "difficulty": 0.0,
           "rl": 22.0, "selection": 4.0, "after": 6.0}  # fmt: skip
"""Those of the stages, where nobody asked for a difficulty."""


def divided(seconds: float | None, clock: Clock) -> Budget:
    budget = Budget(seconds, clock=clock.monotonic)
    budget.divide(WEIGHTS)
    return budget


def test_every_stage_gets_its_share_and_passes_on_what_it_left() -> None:
    clock = Clock()
    budget = divided(1_210.0, clock)
    shares = sum(WEIGHTS.values())
    first = budget.allows("scenarios")
    assert first == pytest.approx(1_200 * WEIGHTS["scenarios"] / shares)
    assert first is not None
    clock.now += first
    even = budget.allows("before")
    assert even == pytest.approx(1_200 * WEIGHTS["before"] / shares), "a stage that took its share changes nothing"
    assert even is not None
    more = budget.allows("prompted")
    assert more is not None
    assert more > even, "what was left by a stage goes to those after it"


def test_the_last_measurement_and_the_report_keep_their_time() -> None:
    clock = Clock()
    budget = divided(600.0, clock)
    budget.reserve("after", 100.0)
    clock.now += 350
    training = budget.allows("rl")
    selecting = WEIGHTS["selection"] / (WEIGHTS["rl"] + WEIGHTS["selection"])
    assert training == pytest.approx((250 - REPORT - 100) * (1 - selecting))
    clock.now += 200
    assert budget.allows("rl") == 0.0
    assert budget.allows("after") == pytest.approx(40.0), "it gets whatever there is"
    assert budget.text() == "0:50 min of 10:00 min left"


def test_without_a_limit_every_stage_takes_what_it_needs() -> None:
    budget = divided(None, Clock())
    assert [budget.allows(stage) for stage in WEIGHTS] == [None] * len(WEIGHTS)
    assert budget.seconds_left is None
    assert budget.text() == ""


def test_what_earlier_processes_spent_counts() -> None:
    clock = Clock()
    clock.now = 5.0
    budget = Budget(100.0, earlier_seconds=70.0, clock=clock.monotonic)
    clock.now += 10
    assert (budget.seconds_spent, budget.seconds_left) == (80.0, 20.0)


def test_to_ask_changes_nothing() -> None:
    clock = Clock()
    budget = divided(1_010.0, clock)
    budget.reserve("after", 100.0)
    early = budget.allows("before")
    assert budget.allows("after") is not None
    assert budget.foresees("rl", now="rl") is not None
    assert budget.allows("before") == early


def test_what_is_left_out_goes_to_the_others() -> None:
    clock = Clock()
    budget = divided(1_010.0, clock)
    later = {"warm start", "after_sft", "rl", "selection", "after"}
    assert budget.foresees("rl", now="warm start") == pytest.approx(
        1_000 * WEIGHTS["rl"] / sum(WEIGHTS[name] for name in later)
    )
    budget.leave_out("rl", "selection", "after")
    budget.reserve("after", 100.0)  # nobody waits for it
    both = WEIGHTS["warm start"] + WEIGHTS["after_sft"]
    assert budget.allows("warm start") == pytest.approx(1_000 * WEIGHTS["warm start"] / both)
    assert divided(None, clock).foresees("rl", now="warm start") is None
