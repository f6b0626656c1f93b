"""The batches that a warm start takes where its time is short."""

from __future__ import annotations

import itertools

import pytest

from trainer_server.training.sft.pace import Pace

COSTS = [1.0] * 60 + [2.0] * 40
"""The last batches are the largest ones."""
PASS = sum(COSTS)


def taken(limit: float, passes: int) -> list[int]:
    """The batches of a warm start in which a cost of 1 takes a second, as numbers over all passes."""
    pace, place, spent, batches = Pace(passes), 0.0, 0.0, []
    while place < passes * len(COSTS) and spent + COSTS[int(place) % len(COSTS)] <= limit:
        at = int(place)
        batches.append(at)
        place = pace.after(COSTS, place, spent / limit)
        spent += COSTS[at % len(COSTS)]
    return batches


@pytest.mark.parametrize("part", [0.2, 0.5, 0.8])
def test_a_pass_for_which_there_is_no_time_is_thinned_out_evenly(part: float) -> None:
    batches = taken(part * PASS, passes=6)
    assert 95 <= batches[-1] < 100, "its end is imitated"
    assert sum(COSTS[at] for at in batches) > 0.9 * part * PASS, "the time is used"
    steps = [later - before for before, later in itertools.pairwise(batches[3:])]
    assert max(steps) - min(steps) <= 1


def test_several_passes_are_thinned_out_where_one_would_leave_much_time() -> None:
    batches = taken(1.6 * PASS, passes=6)
    assert 195 <= batches[-1] < 200
    assert len({at % 100 for at in batches}) > 95, "nearly every batch is taken once at least"


def test_a_little_more_time_than_a_pass_takes_begins_no_other_one() -> None:
    assert taken(1.15 * PASS, passes=6) == list(range(100))


def test_where_there_is_time_for_all_nothing_is_left_out() -> None:
    assert taken(10 * PASS, passes=3) == list(range(300))
