"""Which settings of GRPO learn best? One setting is changed at a time, on several tasks and seeds.

All cells of a task and a seed begin with the same warm start: it is made once, and each cell trains a fork of it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from art_examples.learning.learn import SERVER_ARGUMENTS, Learning
from art_examples.learning.task import Recipe, Task
from art_examples.quickstart.server_process import trainer_server
from rich.console import Console
from rich.table import Table

from art_langgraph import GRPOConfig, TrainerClient
from benchmarks.tasks.registry import TASKS
from trainer_server.common.jsonl import append_jsonl, read_jsonl

SWEPT_TASKS = ["reverse_text", "alphabet_sort", "sql"]

Cell = dict[str, Any]
"""A finished cell: task, seed, setting, fingerprint, warm and after (success), interval, seconds."""
Key = tuple[str, int, str]
"""Task, seed and setting of a cell."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A departure from a recipe.

    Args:
        about: What it changes, for readers.
        changes: Fields of GRPOConfig with their values.
        lr_factor: Multiplies the learning rate.
        falls: Whether the learning rate falls to 0 along a line. None: as the recipe has it.
        n: Runs of each scenario; the number of runs of a step stays as it is. None: as the recipe.
    """

    about: str
    changes: dict[str, Any] = field(default_factory=dict)
    lr_factor: float = 1.0
    falls: bool | None = None
    n: int | None = None

    def of(self, recipe: Recipe) -> Recipe:
        """The recipe with this setting."""
        config = GRPOConfig(**{**recipe.config.model_dump(exclude_unset=True), **self.changes})
        config = config.model_copy(update={"lr": config.lr * self.lr_factor})
        if self.falls is not None:  # in place of a schedule that the settings of a step may have: one law at a time
            config = config.model_copy(update={"lr_scheduler_type": "constant"})
            recipe = replace(recipe, falling=self.falls)
        n = self.n or recipe.n
        return replace(recipe, config=config, n=n, groups_per_step=recipe.groups_per_step * recipe.n // n)


_FOUR = {"num_minibatches": 4}
SETTINGS = {
    "base": Setting("the recipe of the task: dapo, one update a step, no KL penalty"),
    "lr_third": Setting("a third of the learning rate, steady", lr_factor=1 / 3, falls=False),
    "lr_triple": Setting("three times the learning rate, steady", lr_factor=3.0, falls=False),
    "lr_triple_falling": Setting("three times the learning rate, falling to 0", lr_factor=3.0, falls=True),
    "lr_six_falling": Setting("six times the learning rate, falling to 0", lr_factor=6.0, falls=True),
    "loss_grpo": Setting("loss_type=grpo", {"loss_type": "grpo"}),
    "loss_dr_grpo": Setting(
        "loss_type=dr_grpo, rewards not scaled",
        {"loss_type": "dr_grpo", "scale_rewards": "none", "max_completion_length": 32},
    ),
    "loss_cispo": Setting("loss_type=cispo", {"loss_type": "cispo"}),
    "loss_sapo": Setting("loss_type=sapo", {"loss_type": "sapo"}),
    "loss_gspo": Setting(
        "GSPO: grpo with ratios of sequences", {"loss_type": "grpo", "importance_sampling_level": "sequence"}
    ),
    "n_4": Setting("4 runs of twice as many scenarios", n=4),
    "n_16": Setting("16 runs of half as many scenarios", n=16),
    "updates_4": Setting("4 updates a step, clipped to 0.8 - 1.28", _FOUR),
    "updates_4_clip_wide": Setting(
        "4 updates a step, clipped to 0.5 - 2", {**_FOUR, "epsilon": 0.5, "epsilon_high": 1.0}
    ),
    "updates_4_clip_narrow": Setting(
        "4 updates a step, clipped to 0.9 - 1.1", {**_FOUR, "epsilon": 0.1, "epsilon_high": 0.1}
    ),
    "aggregation_trajectory": Setting("loss_aggregation=trajectory", {"loss_aggregation": "trajectory"}),
    "kl_0.01": Setting("KL penalty of 0.01 against the warm start", {"beta": 0.01}),
    "kl_0.05": Setting("KL penalty of 0.05 against the warm start", {"beta": 0.05}),
}
"""What the sweep measures. On-policy steps of one update have ratios of 1, so that clipping is swept with four."""


async def sweep(
    tasks: Sequence[str],
    seeds: Sequence[int],
    settings: Sequence[str],
    path: Path,
    tell: Callable[[str], None],
    limit: float | None = None,
) -> list[Cell]:
    """Runs all cells that the file does not have, task by task and seed by seed, on one server.

    A cell of the file counts if it has the fingerprint of the task with the recipe that the setting makes today.

    Args:
        tasks: Names of the tasks.
        seeds: The seeds.
        settings: Names of SETTINGS.
        path: JSONL file of finished cells, which is appended to.
        tell: Called with a line of progress.
        limit: Seconds after which no further cell begins. None: none.

    Returns:
        All cells of the file that belong to the tasks, seeds and settings.
    """
    done = await finished(path, tasks, settings)
    keys = [(task, seed, setting) for task in tasks for seed in seeds for setting in settings]
    missing = [key for key in keys if key not in done]
    tell(f"{len(keys) - len(missing)} of {len(keys)} cells are in {path}")
    if not missing:
        return [done[key] for key in keys]
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        with trainer_server(home, home / "server.log", tell, *SERVER_ARGUMENTS) as server:
            progress = _Progress(len(missing), limit, tell)
            async with TrainerClient(server.url, server.api_key) as client:
                for name, seed in dict.fromkeys(key[:2] for key in missing):
                    here = [setting for *at, setting in missing if at == [name, seed]]
                    if progress.over():
                        break
                    async with TASKS[name](seed) as task:
                        done |= await _cells(task, seed, here, client, path, progress)
    return [done[key] for key in keys if key in done]


class _Progress:
    """How many cells are done, and how long the others will take."""

    def __init__(self, cells: int, limit: float | None, tell: Callable[[str], None]) -> None:
        self._cells, self._limit, self._tell = cells, limit, tell
        self._started, self._done = time.monotonic(), 0

    def over(self) -> bool:
        """Whether no further cell may begin."""
        return self._limit is not None and time.monotonic() - self._started > self._limit

    def add(self, cell: Cell) -> None:
        """A cell is done."""
        self._done += 1
        left = (time.monotonic() - self._started) / self._done * (self._cells - self._done)
        about = f"{cell['task']}, seed {cell['seed']}, {cell['setting']}: {cell['warm']:.3f} → {cell['after']:.3f}"
        self._tell(f"{self._done} of {self._cells}: {about} in {cell['seconds']:.0f} s; about {left / 60:.0f} min left")


async def _cells(
    task: Task, seed: int, settings: Sequence[str], client: TrainerClient, path: Path, progress: _Progress
) -> dict[Key, Cell]:
    """Warms a policy up, and trains a fork of it by each setting."""
    made: dict[Key, Cell] = {}
    warm_policy = f"{task.name}-{seed}".replace("_", "-")
    shared = Learning(task, seed, client, warm_policy)
    await shared.create()
    if task.recipe.warm_start is not None:
        await shared.warm_start()
    warm = await shared.measure("warm")
    version = (await client.policy(warm_policy)).latest
    for name in settings:
        if progress.over():
            break
        policy = f"{warm_policy}-{name}".replace("_", "-").replace(".", "-")
        await client.fork(warm_policy, version, policy, optimizer=False)
        learning = Learning(task, seed, client, policy)
        await learning.train(SETTINGS[name].of(task.recipe))
        after = await learning.measure("after")
        cell = {
            "task": task.name,
            "seed": seed,
            "setting": name,
            "fingerprint": learning.learned.fingerprint,
            "warm": warm.success_rate,
            "after": after.success_rate,
            "interval": list(after.success_interval),
            "mean": after.mean,
            "held_out": after.n,
            "skipped": learning.learned.skipped,
            "seconds": round(learning.learned.total_seconds, 1),
        }
        append_jsonl(path, [cell])
        progress.add(cell)
        made[task.name, seed, name] = cell
    return made


async def finished(path: Path, tasks: Sequence[str], settings: Sequence[str]) -> dict[Key, Cell]:
    """Finished cells of a file, which may be missing, by task, seed and setting."""
    cells = list(read_jsonl(path, dict, what="cell")) if path.exists() else []
    done: dict[Key, Cell] = {}
    for name in tasks:
        if listed := [cell for cell in cells if cell["task"] == name and cell["setting"] in settings]:
            async with TASKS[name](0) as task:
                done |= {(name, cell["seed"], cell["setting"]): cell for cell in listed if _made_as(cell, task)}
    return done


def _made_as(cell: Cell, task: Task) -> bool:
    """Whether a cell is of this task, with its recipe changed by the setting.

    A cell without a fingerprint counts as such if the learning rate of the recipe is steady. Where it falls, settings
    of the learning rate meant something else when no fingerprints were recorded.
    """
    if "fingerprint" in cell:
        changed = replace(task, recipe=SETTINGS[cell["setting"]].of(task.recipe))
        return bool(cell["fingerprint"] == changed.fingerprint)
    return not task.recipe.falling and cell["held_out"] == len(task.held_out)


def print_sweep(cells: Sequence[Cell], tasks: Sequence[str], console: Console) -> None:
    """Shows a table: a row for each setting, and for each task the mean success over its seeds, with the worst."""
    table = Table("setting", *tasks, "mean gain over base")
    base = {(cell["task"], cell["seed"]): cell["after"] for cell in cells if cell["setting"] == "base"}
    for setting in dict.fromkeys(cell["setting"] for cell in cells):
        mine = [cell for cell in cells if cell["setting"] == setting]
        gains = [cell["after"] - base[at] for cell in mine if (at := (cell["task"], cell["seed"])) in base]
        by_task = ([cell["after"] for cell in mine if cell["task"] == task] for task in tasks)
        columns = (
            f"{fmean(rates):.3f} (worst {min(rates):.3f}, n = {len(rates)})" if rates else "-" for rates in by_task
        )
        table.add_row(SETTINGS[setting].about, *columns, f"{fmean(gains):+.3f}" if gains else "-")
    console.print(table)
