"""What helps where all runs of a scenario get the same reward? Remedies, each on a fork of one warm start.

    python -m benchmarks.tasks.remedies [--remedy NAME …] [--seeds 1] [--steps N] [--json]

    uniform            no remedy: scenarios are drawn equally often
    learnable          scenarios are drawn whose runs will most likely get unequal rewards
    explore            scenarios of dead groups run again at a higher temperature
    hints              scenarios that no run solves run again with a hint, from which the policy learns
    dynamic_sampling   other scenarios run in place of dead groups, twice at most

The task is reverse_text. Of all steps together: `dead before` counts the groups that were dead when they were drawn,
`dead after` what the steps still lacked with the remedy, and `runs` what it took. The last line under --json is one
JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from art_examples.learning.learn import Learning
from art_examples.learning.program import positive
from art_examples.learning.runs import own_server, tell
from art_examples.learning.task import Recipe, Task
from rich.console import Console
from rich.table import Table

from art_langgraph import Exploration, Hints, Scenario, TrainerClient, Trajectory
from benchmarks.tasks.reverse_text import reverse_text
from trainer_server.common import Connection

Row = dict[str, Any]


def spelled(scenario: Scenario, failed: list[Trajectory]) -> str:
    """A hint for reverse_text: the first half of the answer."""
    answer = scenario.metadata["answer"]
    return f"The answer begins with: {' '.join(answer[: (len(answer) + 1) // 2])}"


REMEDIES: dict[str, Callable[[Recipe], Recipe]] = {
    "uniform": lambda recipe: recipe,
    "learnable": lambda recipe: replace(recipe, sampler="learnable"),
    "explore": lambda recipe: replace(recipe, explore=Exploration()),
    "hints": lambda recipe: replace(recipe, hints=Hints(spelled, success=0.999)),
    "dynamic_sampling": lambda recipe: replace(recipe, dynamic_sampling=2),
}
"""A recipe with each remedy."""


async def compare(remedies: Sequence[str], seeds: Sequence[int], steps: int | None, server: Connection) -> list[Row]:
    """Trains with each remedy from the same warm start, for each seed.

    Args:
        remedies: Names of REMEDIES.
        seeds: The seeds.
        steps: Number of training steps. None: those of the recipe.
        server: The trainer server.

    Returns:
        A row for each seed and remedy.
    """
    rows = []
    async with TrainerClient(server.url, server.api_key) as client:
        for seed in seeds:
            async with reverse_text(seed) as whole:
                task = whole.short(steps=steps or whole.recipe.steps)
                shared = Learning(task, seed, client, f"remedies-{seed}", tell)
                await shared.create()
                await shared.warm_start()
                warm = await shared.measure("warm")
                for name in remedies:
                    learning = Learning(task, seed, client, f"remedies-{seed}-{name}".replace("_", "-"), tell)
                    await learning.fork(warm)
                    await learning.train(REMEDIES[name](task.recipe))
                    await learning.measure("after")
                    rows.append(summed_up(name, task, learning, warm.success_rate))
    return rows


def summed_up(name: str, task: Task, learning: Learning, warm: float | None) -> Row:
    """The row of a remedy."""
    learned = learning.learned
    assert learned.after is not None
    sums = {
        what: sum(getattr(counts, what) for counts in learned.groups)
        for what in ("drawn", "dead_before", "informative", "dead", "runs")
    }
    return {
        "remedy": name,
        "task": task.name,
        "seed": learned.seed,
        **sums,
        "warm": warm,
        "after": learned.after.success_rate,
        "interval": list(learned.after.success_interval),
        "held_out": learned.after.n,
        "seconds": round(learned.seconds["training"], 1),
    }


def table(rows: Sequence[Row]) -> Table:
    """A line for each seed and remedy."""
    made = Table("remedy", "seed", "dead before", "dead after", "informative", "runs", "success", "seconds")
    for row in rows:
        low, high = row["interval"]
        made.add_row(
            row["remedy"],
            str(row["seed"]),
            f"{row['dead_before']} of {row['drawn']}",
            str(row["dead"]),
            str(row["informative"]),
            str(row["runs"]),
            f"{row['warm']:.3f} → {row['after']:.3f} ({low:.3f} - {high:.3f})",
            f"{row['seconds']:.0f}",
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--remedy", action="append", choices=list(REMEDIES), help="only this one; repeatable (all)")
    parser.add_argument("--seeds", type=positive, default=1, help="the seeds from 0 (1)")
    parser.add_argument("--steps", type=positive, help="training steps in place of those of the recipe")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args()
    with own_server() as server:
        rows = asyncio.run(compare(options.remedy or list(REMEDIES), range(options.seeds), options.steps, server))
    Console(width=140, stderr=options.json).print(table(rows))
    if options.json:
        print(json.dumps({"benchmark": "remedies", "rows": rows}))


if __name__ == "__main__":
    main()
