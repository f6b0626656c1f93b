"""Advantages, in closed form."""

from __future__ import annotations

import pytest

from trainer_server.training.advantage import EPSILON, advantages, zero_variance


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
