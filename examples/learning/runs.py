"""Runs of tasks on a trainer server, and the metrics file that each finished run is appended to."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from art_examples.learning.curve import measured_at
from art_examples.learning.judged import RULES, judge_of_rules, learn_by_judge
from art_examples.learning.learn import SERVER_ARGUMENTS, Learned, learn
from art_examples.learning.task import Task, TaskMaker
from art_examples.quickstart.server_process import trainer_server
from rich.table import Table

from art_langgraph import LLM, TrainerClient
from trainer_server.common import Connection
from trainer_server.common.jsonl import append_jsonl, read_jsonl
from trainer_server.process.hardware import gpu_count

EMBEDDED = "embedded"
"""The base model of the recipes, as `serve --model` calls it."""
Row = dict[str, Any]
"""A finished run: `Learned.as_json`, with date, machine and note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How tasks are run.

    Args:
        steps: Number of training steps. None: those of the recipe of each task.
        minutes: Minutes of training steps, of which there are as many as fit. None: there is no limit of time.
        held_out: Number of held-out scenarios. None: all.
        demonstrations: Number of demonstrations of the warm start. None: all.
        results: JSONL file to which each finished run is appended. None: no file.
        model: The base model, as `serve --model` takes it. Recipes are made for the embedded one: another is not warmed
            up where it is able without. None: that of a server that runs already.
        prompted: Whether the untrained policy is also measured with demonstrations in its prompts.
        models: Names of other models to measure with these prompts, as litellm knows them.
        judge: Model by whose scores (RULER) a copy of the policy is trained, as litellm knows it. None: the judge of
            written rules that the task has, or no copy.
        note: What a reader of the metrics file should know of the runs.
    """

    steps: int | None = None
    minutes: float | None = None
    held_out: int | None = None
    demonstrations: int | None = None
    results: Path | None = None
    model: str | None = None
    prompted: bool = False
    models: Sequence[str] = ()
    judge: str | None = None
    note: str = ""

    @property
    def short(self) -> str | None:
        """What is shortened. None: the runs are whole."""
        if self.steps is None and self.held_out is None and self.minutes is None:
            return None
        return f"steps: {self.steps}, minutes: {self.minutes}, held out: {self.held_out}"


def tell(line: str) -> None:
    """Prints a line of progress to the standard error output."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def own_server(*arguments: str) -> Iterator[Connection]:
    """A trainer server that ends, and whose state is deleted, when the block is left.

    Inside of the block ART_BASE_URL and ART_API_KEY name it, so that no client finds another server of this user.

    Args:
        *arguments: Further arguments of the command.
    """
    with tempfile.TemporaryDirectory() as scratch:
        home, before = Path(scratch), dict(os.environ)
        with trainer_server(home, home / "server.log", tell, *SERVER_ARGUMENTS, *arguments) as server:
            os.environ |= {"ART_BASE_URL": server.url, "ART_API_KEY": server.api_key}
            try:
                yield server
            finally:
                for name in ("ART_BASE_URL", "ART_API_KEY"):
                    os.environ.pop(name, None)
                    os.environ |= {name: before[name]} if name in before else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run of a task is given.

    Args:
        seed: Seed of the task, the LoRA and the training.
        client: Client of the trainer server.
        policy: Name for the policy, which does not exist yet.
        options: How it is run.
        tell: Called with a line of text after each stage and step.
    """

    seed: int
    client: TrainerClient
    policy: str
    options: Options
    tell: Callable[[str], None]


Learner = Callable[[Run], Awaitable[Learned]]
"""Learns a task, and measures it after each stage."""


def by_recipe(maker: TaskMaker) -> Learner:
    """A learner that follows the recipe of a task. maker: makes the task."""

    async def learner(run: Run) -> Learned:
        options = run.options
        async with maker(run.seed) as whole:
            task = whole.short(steps=options.steps, held_out=options.held_out, demonstrations=options.demonstrations)
            learned = await learn(
                task,
                run.seed,
                run.client,
                run.policy,
                run.tell,
                prompted=options.prompted,
                models=options.models,
                minutes=options.minutes,
                always_warm=options.model in (None, EMBEDDED),
            )
            async with _judge(task, options) as judge:
                if judge is not None:
                    name, policy = options.judge or RULES, f"{run.policy}-judged"
                    judged = await learn_by_judge(task, learned, run.client, policy, judge, name, run.tell)
                    learned.judged = judged.as_json()
        return learned

    return learner


@asynccontextmanager
async def _judge(task: Task, options: Options) -> AsyncIterator[LLM | None]:
    """The judge that a copy of the policy learns by: the one that is named, or that of the task. None: none."""
    if options.judge is not None or task.grade is None:
        yield None if options.judge is None else LLM(options.judge)
        return
    async with judge_of_rules(task.grade) as judge:
        yield judge


def learn_all(
    learners: Mapping[str, Learner], runs: Sequence[tuple[str, int]], server: Connection, options: Options
) -> list[Row]:
    """Learns tasks one after another, each with a policy of its own.

    Args:
        learners: Learners by the names of their tasks.
        runs: Name of the task and seed of each run.
        server: The trainer server.
        options: How they are run.

    Returns:
        A row for each run.
    """
    return asyncio.run(_learn_all(learners, runs, server, options))


async def _learn_all(
    learners: Mapping[str, Learner], runs: Sequence[tuple[str, int]], server: Connection, options: Options
) -> list[Row]:
    rows = []
    async with TrainerClient(server.url, server.api_key) as client:
        for name, seed in runs:
            tell(f"{name}, seed {seed}")
            policy = f"{name}-{seed}-{uuid.uuid4().hex[:6]}".replace("_", "-")
            run = Run(seed=seed, client=client, policy=policy, options=options, tell=lambda line: tell(f"  {line}"))
            learned = await learners[name](run)
            tell(f"  {learned.total_seconds:.0f} s in all")
            facts = {"date": datetime.now(UTC).date().isoformat(), "machine": machine()}
            fingerprint = learned.fingerprint or options.short
            if options.demonstrations is not None:
                fingerprint = f"{fingerprint}, demonstrations: {options.demonstrations}"
            made_by = {"fingerprint": fingerprint, "model": options.model, "note": options.note}
            rows.append({**learned.as_json(), **facts, **made_by})
            if options.results is not None:
                options.results.parent.mkdir(parents=True, exist_ok=True)
                append_jsonl(options.results, rows[-1:])
    return rows


def newest(path: Path) -> dict[tuple[str, int], Row]:
    """The newest row of each task and seed in a metrics file, which may be missing.

    The rows of a task are in order of seeds. Only those count that have the fingerprint of its last one. So a table or
    a picture never has runs of different recipes, or short ones beside whole ones.
    """
    rows = recorded(path)
    last = {row["task"]: row.get("fingerprint") for row in rows}
    kept = {(row["task"], row["seed"]): row for row in rows if row.get("fingerprint") == last[row["task"]]}
    tasks = list(last)
    return dict(sorted(kept.items(), key=lambda item: (tasks.index(item[0][0]), item[0][1])))


def recorded(path: Path) -> list[Row]:
    """All rows of a metrics file, which may be missing."""
    return list(read_jsonl(path, dict, what="run")) if path.exists() else []


def made_as(row: Row, task: Task) -> bool:
    """Whether a run was made as a task says: by its recipe, with its steps, and on as many held-out scenarios.

    A row without a fingerprint counts as made by the recipe if it has its number of steps, and that of scenarios.
    """
    if "fingerprint" in row:
        return bool(row["fingerprint"] == task.fingerprint)
    return (row["steps"], row["after"]["n"]) == (task.recipe.steps, len(task.held_out))


def machine() -> str:
    """The machine in words: its processor, the cores that this process may use, memory, GPUs."""
    names = [line.partition(":")[2].strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpus = gpu_count()
    cores = len(os.sched_getaffinity(0))
    used = f"{cores} core" if cores == 1 else f"{cores} cores"
    parts = [names[0] if names else "unknown processor", used, f"{memory:.0f} GiB"]
    return ", ".join([*parts, *([f"{gpus} GPUs" if gpus else "GPUs"] if gpus != 0 else [])])


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def table(rows: Sequence[Row]) -> Table:
    """A line for each run."""
    models = list(dict.fromkeys(name for row in rows for name in row["models"]))
    headings = ("task", "seed", "before", "prompted", *models, "after warm start", "after RL")
    made = Table(*headings, "mean reward", "parts of the reward", "seconds", "tokens", "n")
    for row in rows:
        measured = [measured_at(row, stage) for stage in ("before", "warm", "after")]
        means = " → ".join(f"{each['mean']:.3f}" for each in measured if each is not None)
        tokens = " + ".join(map(str, row["tokens"].values()))
        compared = [row["before"], row["prompted"], *(row["models"].get(name) for name in models)]
        rates = map(success, [*compared, row["warm"], measured_at(row, "after")])
        made.add_row(
            row["task"],
            str(row["seed"]),
            *rates,
            means,
            parts(measured),
            f"{row['seconds']:.0f}",
            tokens,
            str(row["after"]["n"]),
        )
    return made


def parts(measured: Sequence[Mapping[str, Any] | None]) -> str:
    """How the parts of the reward change from stage to stage, a line each, without the part that is the success: what
    improves where success does not. measured: the stages; None: not measured."""
    known = [stage["parts"] for stage in measured if stage is not None]
    names = dict.fromkeys(name for stage in known for name in stage if name != "success")
    return "\n".join(f"{name} {' → '.join(f'{stage.get(name, 0.0):.3f}' for stage in known)}" for name in names)


def success(measured: Mapping[str, Any] | None) -> str:
    """The success rate with its 95 % interval."""
    if measured is None:
        return "-"
    low, high = measured["interval"]
    return f"{measured['success']:.3f} ({low:.3f} - {high:.3f})"
