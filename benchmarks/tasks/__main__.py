"""What does the embedded model learn of each task?

    python -m benchmarks.tasks [--task NAME …] [--seeds 3] [--json] [--results FILE] [--steps N]

Starts one trainer server for all runs. Each run has a policy of its own: it is measured on held-out scenarios, warmed
up on demonstrations, measured, trained with GRPO, and measured again, always at temperature 0. The last line under
--json is one JSON object: `runs` has an object for each task and seed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from art_examples.learning import runs
from art_examples.learning.runs import Options, Row, made_as, own_server, recorded, table
from rich.console import Console

from benchmarks.tasks.registry import TASKS


def learn_all(
    names: Sequence[str], seeds: Sequence[int], steps: int | None = None, results: Path | None = None
) -> list[Row]:
    """Learns each task for each seed, one after another, on a trainer server of its own.

    Args:
        names: Names of the tasks.
        seeds: The seeds.
        steps: Number of training steps. None: those of the recipe of each task.
        results: JSONL file to which each finished run is appended. Runs that it has are not made again, if they are of
            these steps and today's recipe: see `made_as`. None: no file.

    Returns:
        A row for each task and seed.
    """
    rows = {} if results is None else asyncio.run(finished(results, names, steps))
    keys = [(name, seed) for name in names for seed in seeds]
    if missing := [key for key in keys if key not in rows]:
        with own_server() as server:
            learners = {name: runs.by_recipe(maker) for name, maker in TASKS.items()}
            learned = runs.learn_all(learners, missing, server, Options(steps=steps, results=results))
            rows |= {(row["task"], row["seed"]): row for row in learned}
    return [rows[key] for key in keys]


async def finished(results: Path, names: Sequence[str], steps: int | None = None) -> dict[tuple[str, int], Row]:
    """The runs of a file that need not be made again, by task and seed. Arguments: as those of `learn_all`."""
    rows = recorded(results)
    done: dict[tuple[str, int], Row] = {}
    for name in names:
        if listed := [row for row in rows if row["task"] == name]:
            async with TASKS[name](0) as whole:
                task = whole.short(steps=steps)
                done |= {(name, row["seed"]): row for row in listed if made_as(row, task)}
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", action="append", choices=list(TASKS), help="only this one; may be repeated (all)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each task, with the seeds from 0 (3)")
    parser.add_argument("--steps", type=int, help="training steps in place of those of the recipes")
    parser.add_argument("--results", type=Path, help="append finished runs to this file; do not repeat those it has")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args()
    rows = learn_all(options.task or list(TASKS), range(options.seeds), options.steps, options.results)
    Console(width=170, stderr=options.json).print(table(rows))
    if options.json:
        print(json.dumps({"benchmark": "tasks", "runs": rows}))


if __name__ == "__main__":
    main()
