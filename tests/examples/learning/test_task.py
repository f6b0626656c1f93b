"""Recipes of tasks, and what is told apart by them; whether a text has a value."""

from __future__ import annotations

from dataclasses import replace

import pytest
from art_examples.learning.task import IMITATION, Recipe, Task, says, solved

from art_langgraph import Exploration, GRPOConfig, Hints, Scenario, hint_errors


def test_a_falling_learning_rate_ends_at_zero_after_the_last_step_however_many_there_are() -> None:
    recipe = Recipe(warm_start=None, config=GRPOConfig(lr=1e-3, beta=0.1), steps=4, falling=True)
    assert [recipe.config_of(step).lr for step in (1, 2, 3, 4)] == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])
    assert recipe.config_of(3).beta == 0.1
    steady = Recipe(warm_start=None, config=GRPOConfig(lr=1e-3), steps=4)
    assert {steady.config_of(step).lr for step in (1, 4)} == {1e-3}


@pytest.fixture
def task() -> Task:
    recipe = Recipe(warm_start=IMITATION, config=GRPOConfig(lr=1e-3), steps=4, hints=Hints(hint_errors))
    scenarios = [Scenario(input=text) for text in "abc"]
    return Task(name="a", graph=lambda model: model, training=scenarios, held_out=scenarios, demonstrations=[],
                reward=lambda run: 0.0, success=solved, max_tokens=8, recipe=recipe)  # fmt: skip


def test_validation_scenarios_with_several_policies_are_refused(task: Task) -> None:
    task = replace(task, validation=task.held_out)
    for change in ({"roles": {"guesser": "Guess."}}, {"self_play": lambda model, other: model}):
        with pytest.raises(ValueError, match="'a' has validation scenarios, and several policies or self-play"):
            replace(task, **change)  # type: ignore[arg-type]


def test_runs_are_told_apart_by_recipe_steps_and_numbers_of_measured_scenarios(task: Task) -> None:
    recipe, scenarios = task.recipe, task.held_out
    assert task.fingerprint == task.short().fingerprint == task.short(steps=4, held_out=3).fingerprint
    assert replace(task, training=[], recipe=replace(recipe)).fingerprint == task.fingerprint
    others = [
        task.short(steps=2),
        task.short(held_out=2),
        replace(task, validation=scenarios),
        *(
            replace(task, recipe=replace(recipe, **change))
            for change in (
                {"falling": True},
                {"config": GRPOConfig(lr=2e-3)},
                {"warm_start": None},
                {"n": 4},
                {"explore": Exploration()},
                {"hints": None},
            )
        ),
    ]
    assert len({one.fingerprint for one in (task, *others)}) == 1 + len(others)


@pytest.mark.parametrize(
    ("text", "value", "has"),
    [
        ("7 euros", "7 euros", True),
        ("It costs 7 euros.", "7 euros", True),
        ("A bus:7 euros, a taxi: 27 euros", "7 euros", True),
        ("It costs 27 euros.", "7 euros", False),
        ("It costs 1.7 euros.", "7 euros", False),
        ("It is 5 C in Oslo.", "5 C", True),
        ("It is +5 C.", "5 C", True),
        ("It is -5 C.", "5 C", False),
        ("It is −5 C.", "5 C", False),
        ("It is -5 C.", "-5 C", True),
        ("It is 5 C.", "-5 C", False),
        ("It is 12:30.", "12:30", True),
        ("12:30, or 12:30:00", "12:30", True),
        ("It is 12:305.", "12:30", False),
        ("It is 1,101 thousand.", "101 thousand", False),
        ("It is on shelf A27, I think.", "shelf A27", True),
        ("shelf A271", "shelf A27", False),
        ("101 m", "101 m", True),
        ("101 metres", "101 m", False),
    ],
)
def test_a_value_is_said_if_it_is_no_part_of_another_one(text: str, value: str, has: bool) -> None:
    assert says(text, value) is has
