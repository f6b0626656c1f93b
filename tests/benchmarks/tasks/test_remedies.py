"""benchmarks.tasks.remedies: what a remedy changes, and the row that is made of its steps."""

from __future__ import annotations

import io

from art_examples.learning.groups import GroupCounts
from art_examples.learning.learn import Learning
from rich.console import Console

from art_langgraph import Evaluation, Scenario, TrainerClient, Trajectory
from benchmarks.tasks.remedies import REMEDIES, spelled, summed_up, table
from benchmarks.tasks.reverse_text import RECIPE, reverse_text, scenario


def test_each_remedy_changes_the_recipe_but_for_none() -> None:
    made = {name: remedy(RECIPE) for name, remedy in REMEDIES.items()}
    assert made.pop("uniform") == RECIPE
    assert len({repr(recipe) for recipe in made.values()} - {repr(RECIPE)}) == 4
    assert {recipe.steps for recipe in made.values()} == {RECIPE.steps}


def test_the_hint_gives_away_half_of_the_answer() -> None:
    assert spelled(scenario("karon"), []) == "The answer begins with: n o r"


async def test_the_row_of_a_remedy_sums_its_steps() -> None:
    async with TrainerClient("http://127.0.0.1:9", "key") as client, reverse_text(0) as task:
        learning = Learning(task, 0, client, "policy")
        learning.learned.groups = [
            GroupCounts(drawn=8, dead_before=3, informative=6, dead=2, runs=80),
            GroupCounts(drawn=8, dead_before=1, informative=8, dead=0, runs=72),
        ]
        learning.learned.after = Evaluation([Trajectory(scenario=Scenario(input="x"), reward=1.0)], version=2)
        learning.learned.seconds["training"] = 12.34
        row = summed_up("explore", task, learning, 0.25)
    assert (row["drawn"], row["dead_before"], row["dead"], row["informative"], row["runs"]) == (16, 4, 2, 14, 152)
    assert (row["warm"], row["after"], row["seconds"]) == (0.25, 1.0, 12.3)
    Console(file=(shown := io.StringIO()), width=140).print(table([row]))
    assert "4 of 16" in shown.getvalue()
