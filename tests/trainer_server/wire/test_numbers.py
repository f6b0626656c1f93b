"""Bounds of the values that clients send."""

from __future__ import annotations

import pytest

from trainer_server.wire import RunTrace
from trainer_server.wire.numbers import ARRIVAL, MOST_REWARD, reward_problem


def test_a_trace_says_of_a_large_reward_what_all_say() -> None:
    """A trace may have a reward that is no number: a reward function gave it, and the dashboard shows it."""
    trace = {"id": "t", "scenario": {"id": "s"}, "started": 1.0}
    for reward in (MOST_REWARD, float("nan"), None):
        RunTrace.model_validate({**trace, "reward": reward}, context=ARRIVAL)
    problem = reward_problem(2 * MOST_REWARD)
    assert problem
    with pytest.raises(ValueError, match=problem.replace("+", r"\+")):
        RunTrace.model_validate({**trace, "reward": 2 * MOST_REWARD}, context=ARRIVAL)
    assert RunTrace.model_validate({**trace, "reward": 2 * MOST_REWARD}).reward == 2 * MOST_REWARD, "it was kept before"
