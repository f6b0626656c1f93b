"""The sweep: every setting is one that the trainer takes, and a finished cell is not run again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from art_examples.learning.task import Recipe
from art_examples.sql_agent import task as sql

from benchmarks.tasks import alphabet_sort, cities, reverse_text
from benchmarks.tasks.registry import TASKS
from benchmarks.tasks.sweep import SETTINGS, Cell, finished, sweep
from trainer_server.common.jsonl import append_jsonl


@pytest.mark.parametrize("recipe", [reverse_text.RECIPE, alphabet_sort.RECIPE, sql.RECIPE])
def test_a_setting_changes_what_it_says_and_leaves_the_number_of_runs(recipe: Recipe) -> None:
    made = {name: setting.of(recipe) for name, setting in SETTINGS.items()}
    assert made["base"] == recipe
    assert len({repr(one) for one in made.values()}) == len(made)
    assert {one.n * one.groups_per_step for one in made.values()} == {recipe.n * recipe.groups_per_step}
    assert made["lr_triple"].config.lr == pytest.approx(3 * recipe.config.lr)
    assert made["loss_cispo"].config.epsilon_high == 5.0


@pytest.mark.parametrize("recipe", [reverse_text.RECIPE, sql.RECIPE, cities.RECIPE])
def test_the_learning_rate_falls_once_or_not_at_all_whatever_the_recipe_has(recipe: Recipe) -> None:
    for name, factor in (("lr_triple_falling", 3), ("lr_six_falling", 6), ("lr_third", 1 / 3), ("lr_triple", 3)):
        made = SETTINGS[name].of(recipe)
        configs = [made.config_of(step) for step in range(1, recipe.steps + 1)]
        assert {config.lr_scheduler_type for config in configs} == {"constant"}
        left = [1 - at / recipe.steps if "falling" in name else 1.0 for at in range(recipe.steps)]
        assert [config.lr for config in configs] == pytest.approx([factor * recipe.config.lr * part for part in left])


def cell_of(task: str, seed: int, **more: object) -> Cell:
    return {"task": task, "seed": seed, "setting": "base", "warm": 0.2, "after": 0.5, "seconds": 9.0, **more}


async def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    cells, told = [cell_of("reverse_text", seed, held_out=120) for seed in (0, 1)], list[str]()
    append_jsonl(tmp_path / "cells.jsonl", cells)
    assert await sweep(["reverse_text"], [0], ["base"], tmp_path / "cells.jsonl", told.append) == cells[:1]
    assert told == [f"1 of 1 cells are in {tmp_path / 'cells.jsonl'}"]


async def test_a_cell_counts_as_that_of_the_recipe_which_it_was_made_by(tmp_path: Path) -> None:
    """Cells of the old form count where the learning rate is steady: elsewhere settings of it meant something else."""
    async with TASKS["reverse_text"](0) as steady, TASKS["sql"](0) as falling:
        marks = steady.fingerprint, replace(steady, recipe=SETTINGS["n_4"].of(steady.recipe)).fingerprint
        cells = [
            cell_of("reverse_text", 0, held_out=120),
            cell_of("reverse_text", 1, held_out=24),
            cell_of("reverse_text", 2, fingerprint=marks[0]),
            cell_of("reverse_text", 3, fingerprint=marks[1]),
            cell_of("reverse_text", 4, fingerprint=marks[1]) | {"setting": "n_4"},
            cell_of("sql", 0, held_out=96),
            cell_of("sql", 1, fingerprint=falling.fingerprint),
        ]
    append_jsonl(tmp_path / "cells.jsonl", cells)
    done = await finished(tmp_path / "cells.jsonl", ["reverse_text", "sql"], ["base", "n_4"])
    assert [key[:2] for key in done] == [("reverse_text", 0), ("reverse_text", 2), ("reverse_text", 4), ("sql", 1)]
