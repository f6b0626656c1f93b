"""Advantages, in closed form."""

from __future__ import annotations

import pytest

from trainer_server.training.grpo.batch import EPSILON, advantages, zero_variance


def test_scaled_by_the_groups_own_deviation() -> None:
    assert advantages([[0.0, 1.0]], "group") == [
        pytest.approx([-0.5 / (0.5**0.5 + EPSILON), 0.5 / (0.5**0.5 + EPSILON)])
    ]


def test_unscaled_advantages_are_differences_from_the_mean() -> None:
    assert advantages([[1.0, 2.0, 6.0], [5.0, 5.0]], "none") == [[-2.0, -1.0, 3.0], [0.0, 0.0]]


def test_scaled_by_the_whole_batch() -> None:
    (first, _) = advantages([[0.0, 2.0], [4.0, 6.0]], "batch")
    deviation = (20 / 3) ** 0.5
    assert first == pytest.approx([-1 / (deviation + EPSILON), 1 / (deviation + EPSILON)])


def test_groups_that_teach_nothing() -> None:
    assert zero_variance([1.0])
    assert zero_variance([0.3, 0.3, 0.3])
    assert not zero_variance([0.3, 0.30001])


def test_a_baseline_takes_the_place_of_the_mean() -> None:
    assert advantages([[1.0], [0.0, 3.0]], "group", [0.25, None])[0] == [0.75]
    assert advantages([[1.0, 2.0]], "none", [1.0]) == [[0.0, 1.0]]
    assert not zero_variance([1.0], 0.25)
    assert zero_variance([0.25, 0.25], 0.25)


def test_a_reward_can_be_compared_with_the_mean_of_the_others() -> None:
    """As TRL's RLOOTrainer: r − (Σ r − r) / (n − 1)."""
    assert advantages([[1.0, 2.0, 6.0]], "none", group_baseline="leave_one_out") == [
        pytest.approx([1 - 8 / 2, 2 - 7 / 2, 6 - 3 / 2])
    ]
    (scaled,) = advantages([[0.0, 1.0]], "group", group_baseline="leave_one_out")
    assert scaled == pytest.approx([-1 / (0.5**0.5 + EPSILON), 1 / (0.5**0.5 + EPSILON)])
    assert advantages([[1.0]], "none", group_baseline="leave_one_out") == [[0.0]]
    assert advantages([[1.0, 3.0]], "none", [0.5], "leave_one_out") == [[0.5, 2.5]]
