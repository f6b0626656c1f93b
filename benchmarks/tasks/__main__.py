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
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from art_examples.quickstart.server_process import trainer_server
from rich.console import Console
from rich.table import Table

from art_langgraph import TrainerClient
from benchmarks.tasks.learn import learn
from benchmarks.tasks.registry import TASKS
from trainer_server.wire import Connection
from trainer_server.wire.jsonl import append_jsonl, read_jsonl


def tell(line: str) -> None:
    """Prints a line of progress to the standard error output."""
    print(line, file=sys.stderr, flush=True)


def learn_all(
    names: Sequence[str], seeds: Sequence[int], steps: int | None = None, results: Path | None = None
) -> list[dict[str, Any]]:
    """Learns each task for each seed, one after another, on a trainer server of its own.

    Args:
        names: Names of the tasks.
        seeds: The seeds.
        steps: Number of training steps. None: those of the recipe of each task.
        results: JSONL file to which each finished run is appended. Runs that it has are not run again. None: no file.

    Returns:
        A row (`Learned.as_json`) for each task and seed.
    """
    rows = {} if results is None or not results.exists() else _by_task_and_seed(read_jsonl(results, dict, what="run"))
    keys = [(name, seed) for name in names for seed in seeds]
    missing = [key for key in keys if key not in rows]
    if missing:
        with tempfile.TemporaryDirectory() as scratch:
            home = Path(scratch)
            with trainer_server(home, home / "server.log", tell, "--max-rank", "8") as server:
                rows |= _by_task_and_seed(asyncio.run(_learn_all(server, missing, steps, results)))
    return [rows[key] for key in keys]


def _by_task_and_seed(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["task"], row["seed"]): row for row in rows}


async def _learn_all(
    server: Connection, runs: Sequence[tuple[str, int]], steps: int | None, results: Path | None
) -> list[dict[str, Any]]:
    rows = []
    async with TrainerClient(server.url, server.api_key) as client:
        for name, seed in runs:
            tell(f"{name}, seed {seed}")
            async with TASKS[name](seed) as task:
                if steps is not None:
                    task = replace(task, recipe=replace(task.recipe, steps=steps))
                policy = f"{name}-{seed}".replace("_", "-")
                learned = await learn(task, seed, client, policy, lambda line: tell(f"  {line}"))
            tell(f"  {learned.total_seconds:.0f} s in all")
            rows.append(learned.as_json())
            if results is not None:
                append_jsonl(results, rows[-1:])
    return rows


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """A line for each run."""
    made = Table("task", "seed", "before", "after warm start", "after RL", "mean reward", "seconds", "tokens", "n")
    for row in rows:
        measured = [row["before"], row["warm"], row["after"]]
        means = " → ".join(f"{each['mean']:.3f}" for each in measured if each is not None)
        tokens = " + ".join(map(str, row["tokens"].values()))
        rates = (success(each) for each in measured)
        made.add_row(
            row["task"], str(row["seed"]), *rates, means, f"{row['seconds']:.0f}", tokens, str(row["after"]["n"])
        )
    return made


def success(measured: dict[str, Any] | None) -> str:
    """The success rate with its 95 % interval."""
    if measured is None:
        return "-"
    low, high = measured["interval"]
    return f"{measured['success']:.3f} ({low:.3f} - {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", action="append", choices=list(TASKS), help="only this one; may be repeated (all)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each task, with the seeds from 0 (3)")
    parser.add_argument("--steps", type=int, help="training steps in place of those of the recipes")
    parser.add_argument("--results", type=Path, help="append finished runs to this file; do not repeat those it has")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args()
    rows = learn_all(options.task or list(TASKS), range(options.seeds), options.steps, options.results)
    Console(width=150, stderr=options.json).print(table(rows))
    if options.json:
        print(json.dumps({"benchmark": "tasks", "runs": rows}))


if __name__ == "__main__":
    main()
