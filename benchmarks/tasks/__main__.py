"""What does the embedded model learn of each task?

    python -m benchmarks.tasks [--task NAME …] [--seeds 3] [--json] [--steps N]

Starts one trainer server for all runs. Each run has a policy of its own: it is measured on held-out scenarios, warmed
up on demonstrations, measured, trained with GRPO, and measured again, always at temperature 0. The last line under
--json is one JSON object: `runs` has an object for each task and seed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from art_examples.quickstart.server_process import trainer_server
from rich.console import Console
from rich.table import Table

from art_langgraph import Evaluation, TrainerClient
from benchmarks.tasks.learn import Learned, learn
from benchmarks.tasks.registry import TASKS
from trainer_server.wire import Connection


def tell(line: str) -> None:
    """Prints a line of progress to the standard error output."""
    print(line, file=sys.stderr, flush=True)


def learn_all(names: Sequence[str], seeds: Sequence[int], steps: int | None = None) -> list[Learned]:
    """Learns each task for each seed, one after another, on a trainer server of its own.

    Args:
        names: Names of the tasks.
        seeds: The seeds.
        steps: Number of training steps. None: those of the recipe of each task.
    """
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        with trainer_server(home, home / "server.log", tell, "--max-rank", "8") as server:
            return asyncio.run(_learn_all(server, names, seeds, steps))


async def _learn_all(
    server: Connection, names: Sequence[str], seeds: Sequence[int], steps: int | None
) -> list[Learned]:
    made = []
    async with TrainerClient(server.url, server.api_key) as client:
        for name in names:
            for seed in seeds:
                tell(f"{name}, seed {seed}")
                async with TASKS[name](seed) as task:
                    if steps is not None:
                        task = replace(task, recipe=replace(task.recipe, steps=steps))
                    policy = f"{name}-{seed}".replace("_", "-")
                    made.append(await learn(task, seed, client, policy, lambda line: tell(f"  {line}")))
                tell(f"  {made[-1].total_seconds:.0f} s in all")
    return made


def table(runs: Sequence[Learned]) -> Table:
    """A row for each run."""
    made = Table("task", "seed", "before", "after warm start", "after RL", "reward", "seconds", "tokens", "n")
    for one in runs:
        measured = (one.before, one.warm, one.after)
        means = " → ".join(f"{each.mean:.3f}" for each in measured if each is not None and each.mean is not None)
        made.add_row(
            one.task,
            str(one.seed),
            *(success(each) for each in measured),
            means,
            f"{one.total_seconds:.0f}",
            " + ".join(map(str, one.tokens.values())),
            str(one.after.n if one.after else 0),
        )
    return made


def success(evaluation: Evaluation | None) -> str:
    """The success rate with its 95 % interval."""
    if evaluation is None or evaluation.success_rate is None:
        return "-"
    low, high = evaluation.success_interval
    return f"{evaluation.success_rate:.3f} ({low:.3f} - {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", action="append", choices=list(TASKS), help="only this one; may be repeated (all)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each task, with the seeds from 0 (3)")
    parser.add_argument("--steps", type=int, help="training steps in place of those of the recipes")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args()
    runs = learn_all(options.task or list(TASKS), range(options.seeds), options.steps)
    Console(width=140, stderr=options.json).print(table(runs))
    if options.json:
        print(json.dumps({"benchmark": "tasks", "runs": [one.as_json() for one in runs]}))


if __name__ == "__main__":
    main()
