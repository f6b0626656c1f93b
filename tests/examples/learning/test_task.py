"""Recipes of tasks."""

from __future__ import annotations

import pytest
from art_examples.learning.task import Recipe

from art_langgraph import GRPOConfig


def test_a_falling_learning_rate_ends_at_zero_after_the_last_step_however_many_there_are() -> None:
    recipe = Recipe(warm_start=None, config=GRPOConfig(lr=1e-3, beta=0.1), steps=4, falling=True)
    assert [recipe.config_of(step).lr for step in (1, 2, 3, 4)] == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])
    assert recipe.config_of(3).beta == 0.1
    steady = Recipe(warm_start=None, config=GRPOConfig(lr=1e-3), steps=4)
    assert {steady.config_of(step).lr for step in (1, 4)} == {1e-3}
