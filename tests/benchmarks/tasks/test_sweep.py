"""The sweep: every setting is one that the trainer takes, and a finished cell is not run again."""

from __future__ import annotations

from pathlib import Path

import pytest
from art_examples.learning.task import Recipe
from art_examples.sql_agent import task as sql

from benchmarks.tasks import alphabet_sort, reverse_text
from benchmarks.tasks.sweep import SETTINGS, sweep
from trainer_server.wire.jsonl import append_jsonl


@pytest.mark.parametrize("recipe", [reverse_text.RECIPE, alphabet_sort.RECIPE, sql.RECIPE])
def test_a_setting_changes_what_it_says_and_leaves_the_number_of_runs(recipe: Recipe) -> None:
    made = {name: setting.of(recipe) for name, setting in SETTINGS.items()}
    assert made["base"] == recipe
    assert len({repr(one) for one in made.values()}) == len(made)
    assert {one.n * one.groups_per_step for one in made.values()} == {recipe.n * recipe.groups_per_step}
    assert made["lr_triple"].config.lr == pytest.approx(3 * recipe.config.lr)
    falling = made["lr_triple_falling"].config
    assert falling.lr == made["lr_triple"].config.lr
    assert (falling.lr_scheduler_type, falling.max_steps) == ("linear", recipe.steps)
    assert made["loss_cispo"].config.epsilon_high == 5.0


async def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    cells = [
        {"task": "sql", "seed": seed, "setting": "base", "warm": 0.2, "after": 0.5, "seconds": 9.0} for seed in (0, 1)
    ]
    append_jsonl(tmp_path / "cells.jsonl", cells)
    told: list[str] = []
    assert await sweep(["sql"], [0], ["base"], tmp_path / "cells.jsonl", told.append) == cells[:1]
    assert told == [f"1 of 1 cells are in {tmp_path / 'cells.jsonl'}"]
