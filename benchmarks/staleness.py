"""Which loss learns best from groups that are several versions old? Success after equal samples, and after equal time.

    python -m benchmarks.staleness [--json] [--tasks reverse_text sql] [--seeds 3] [--output staleness.jsonl]
    python -m benchmarks.staleness --stalenesses 0 2 --losses default --seeds 1 --tasks reverse_text

A cell is a training with a `max_staleness` and a loss (`LOSSES`), on the embedded model. The cells of a task and a seed
begin with forks of one warm start, and take as many steps of as many runs. Nothing is measured meanwhile, so that no
evaluation takes slots from the groups: versions are kept, and measured on held-out scenarios at temperature 0 when all
cells are trained. "equal samples" is the last version of a cell; "equal time" the newest that it had when the fastest
cell of its task and seed was through.

Engine and trainer share the processor here. On devices of their own, staleness saves more time.

The cells of a task and a seed are written to --output together, and are not made again where the file has all of them.
The last line under --json is one JSON object, whose `cells` has success after the warm start, after equal samples and
after equal time, the seconds of the training, and how many groups were so many versions old.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from art_examples.learning.learn import CONCURRENCY, Learning
from art_examples.learning.task import Task
from art_examples.quickstart.server_process import trainer_server
from rich.console import Console
from rich.table import Table

from art_langgraph import ChatART, Evaluation, GRPOConfig, TrainerClient, evaluate, train
from benchmarks.tasks.registry import MORE_TASKS
from trainer_server.common.jsonl import append_jsonl, read_jsonl

STALENESSES = (0, 1, 2, 4)
LOSSES: dict[str, dict[str, Any]] = {
    "default": {},
    "proximal": {"proximal_policy": "step"},
    "dppo": {"loss_type": "dppo"},
    "cispo": {"loss_type": "cispo"},
    "sequence_mask": {"proximal_policy": "step", "importance_sampling_mode": "sequence_mask"},
}
"""Changes of a recipe's settings; docs/training/options.md has what they do."""
GROUPS, RUNS_OF_GROUP = 4, 8

Cell = dict[str, Any]


@dataclass(slots=True)
class Training:
    """A cell that was trained.

    Args:
        policy: The policy.
        versions: The version of each step, and the seconds after which it was there.
        ages: How many groups were so many versions old.
    """

    policy: str
    versions: list[tuple[int, float]] = field(default_factory=list)
    ages: Counter[int] = field(default_factory=Counter)

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return self.versions[-1][1]

    def version_at(self, seconds: float) -> int:
        """The newest version that was there after so many seconds; 0, which is the warm start, if there was none."""
        return max((version for version, end in self.versions if end <= seconds), default=0)


def config_of(task: Task, loss: str) -> GRPOConfig:
    """The settings of a task's recipe with another loss."""
    return GRPOConfig(**{**task.recipe.config.model_dump(exclude_unset=True), **LOSSES[loss]})


class Bench:
    """The cells of a task and a seed.

    Args:
        task: The task.
        seed: Of the policies and the order of scenarios.
        client: The trainer server.
        steps: Of each cell.
        held_out: How many held-out scenarios measure a version.
        tell: Called with a line of progress.
    """

    def __init__(
        self, task: Task, seed: int, client: TrainerClient, steps: int, held_out: int, tell: Callable[[str], None]
    ) -> None:
        self._task, self._seed, self._client, self._steps, self._tell = task, seed, client, steps, tell
        self._held_out = task.held_out[:held_out]
        self._name = f"{task.name}-{seed}".replace("_", "-")

    async def cells(self, stalenesses: Sequence[int], losses: Sequence[str]) -> list[Cell]:
        """Trains all cells, and measures them."""
        shared = Learning(self._task, self._seed, self._client, self._name)
        await shared.create()
        if self._task.recipe.warm_start is not None:
            await shared.warm_start()
        first = (await self._client.policy(self._name)).latest
        warm = await self._measure(self._name, first)
        trainings = {(age, loss): await self._train(first, age, loss) for age in stalenesses for loss in losses}
        limit = min(training.seconds for training in trainings.values())
        cells = []
        for (age, loss), training in trainings.items():
            last, at_limit = training.version_at(training.seconds), training.version_at(limit)
            equal_samples = await self._measure(training.policy, last)
            equal_time = equal_samples if at_limit == last else await self._measure(training.policy, at_limit)
            cells.append(
                {
                    "task": self._task.name, "seed": self._seed, "staleness": age, "loss": loss, "steps": self._steps,
                    "held_out": len(self._held_out), "warm": warm.success_rate,
                    "equal_samples": equal_samples.success_rate, "equal_time": equal_time.success_rate,
                    "interval": list(equal_samples.success_interval), "seconds": round(training.seconds, 1),
                    "steps_in_equal_time": sum(end <= limit for _, end in training.versions),
                    "ages": {str(old): count for old, count in sorted(training.ages.items())},
                }
            )  # fmt: skip
        return cells

    async def _train(self, first: int, staleness: int, loss: str) -> Training:
        task, training = self._task, Training(f"{self._name}-{staleness}-{loss}".replace("_", "-"))
        await self._client.fork(self._name, first, training.policy, optimizer=False)
        start = time.monotonic()
        async for record in train(
            task.graph(self._model(training.policy)),
            task.training,
            policy=training.policy,
            reward=task.reward,
            client=self._client,
            config=config_of(task, loss),
            steps=self._steps,
            groups_per_step=GROUPS,
            n=RUNS_OF_GROUP,
            max_staleness=staleness,
            max_concurrency=CONCURRENCY,
            seed=self._seed,
            progress=False,
        ):
            training.versions.append((record.result.version, time.monotonic() - start))
            training.ages.update(record.ages or {0: len(record.groups)})
        self._tell(f"{training.policy}: {self._steps} steps in {training.seconds:.0f} s")
        return training

    async def _measure(self, policy: str, version: int) -> Evaluation:
        return await evaluate(
            self._task.graph(self._model(policy)),
            self._held_out,
            self._task.reward,
            version={policy: version},
            success=self._task.success,
            temperature=0.0,
            max_concurrency=CONCURRENCY,
            progress=False,
        )

    def _model(self, policy: str) -> ChatART:
        server = self._client.connection
        return ChatART(
            policy=policy, base_url=server.url, api_key=server.api_key, max_tokens=self._task.max_tokens
        )  # fmt: skip


def missing(cells: Sequence[Cell], task: str, seed: int, options: argparse.Namespace) -> bool:
    """Whether cells of a task and a seed are not among those of a file, with these sizes."""
    sizes = {"task": task, "seed": seed, "steps": options.steps, "held_out": options.held_out}
    made = {(cell["staleness"], cell["loss"]) for cell in cells if sizes.items() <= cell.items()}
    return any((age, loss) not in made for age in options.stalenesses for loss in options.losses)


async def run(options: argparse.Namespace, url: str, key: str, tell: Callable[[str], None]) -> None:
    """Makes the cells that the file lacks.

    Args:
        options: Of the command line.
        url: Address of the trainer server.
        key: Its token.
        tell: Called with a line of progress.
    """
    async with TrainerClient(url, key) as client:
        for name in options.tasks:
            for seed in range(options.seeds):
                if not missing(read_cells(options.output), name, seed, options):
                    continue
                async with MORE_TASKS[name](seed) as task:
                    bench = Bench(task, seed, client, options.steps, options.held_out, tell)
                    append_jsonl(options.output, await bench.cells(options.stalenesses, options.losses))


def read_cells(path: Path) -> list[Cell]:
    """The cells of a file, which may be missing."""
    return list(read_jsonl(path, dict, what="cell")) if path.exists() else []


def table(cells: Sequence[Cell]) -> Table:
    """A row for each task, loss and staleness: means over the seeds."""
    made = Table("task", "loss", "max_staleness", "seeds", "warm", "equal samples", "equal time", "seconds")
    for task, loss, age in dict.fromkeys((cell["task"], cell["loss"], cell["staleness"]) for cell in cells):
        mine = [cell for cell in cells if (cell["task"], cell["loss"], cell["staleness"]) == (task, loss, age)]
        rates = (fmean(cell[name] for cell in mine) for name in ("warm", "equal_samples", "equal_time"))
        seconds = fmean(cell["seconds"] for cell in mine)
        made.add_row(task, loss, str(age), str(len(mine)), *(f"{rate:.3f}" for rate in rates), f"{seconds:.0f}")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--tasks", nargs="+", choices=list(MORE_TASKS), default=["reverse_text", "sql"])
    parser.add_argument("--seeds", type=int, default=3, help="seeds, from 0 (3)")
    parser.add_argument("--stalenesses", type=int, nargs="+", default=list(STALENESSES), help="max_staleness (0 1 2 4)")
    parser.add_argument("--losses", nargs="+", choices=list(LOSSES), default=list(LOSSES), help="losses (all)")
    parser.add_argument("--steps", type=int, default=12, help="of each cell (12)")
    parser.add_argument("--held-out", type=int, default=48, help="held-out scenarios (48)")
    parser.add_argument("--output", type=Path, default=Path("staleness.jsonl"), help="cells (staleness.jsonl)")
    options = parser.parse_args()

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    keys = [(name, seed) for name in options.tasks for seed in range(options.seeds)]
    if any(missing(read_cells(options.output), *key, options) for key in keys):
        with tempfile.TemporaryDirectory() as scratch:
            home = Path(scratch)
            with trainer_server(home, home / "server.log", tell, "--max-rank", "8") as server:
                asyncio.run(run(options, server.url, server.api_key, tell))
    cells = [
        cell
        for cell in read_cells(options.output)
        if (cell["task"], cell["seed"]) in keys and cell["steps"] == options.steps
    ]
    Console(width=150, stderr=options.json).print(table(cells))
    if options.json:
        print(json.dumps({"benchmark": "staleness", "cells": cells}))


if __name__ == "__main__":
    main()
