"""Does the quickstart teach its agent on every seed, and how long does it take?

    python -m benchmarks.learning [--seeds 5] [--json]            the quickstart, from command to report
    python -m benchmarks.learning --task sql [--seeds 3] [--json]  another task of benchmarks/tasks
    python -m benchmarks.learning --sweep [--only lr …]            settings of GRPO, on three tasks

Each seed of the quickstart is the command `art-langgraph quickstart --seed S` in a directory of its own, one after
another. The last line under --json is one JSON object: `seeds` has success before and after on held-out scenarios with
95 % intervals, the seconds of the whole command, those of its phases, the training steps, and `peak_memory`, the
largest sum of all processes' memory in bytes; `worst_after` is the
lowest success after training, `median_seconds` the median of the seconds. A command that fails ends the program.

The sweep changes one setting at a time (`--list` shows them). It can be resumed: every finished cell is a line of
--cells, and is not run again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from art_examples.learning.runs import tell
from rich.console import Console
from rich.table import Table

from benchmarks.tasks.__main__ import learn_all
from benchmarks.tasks.registry import TASKS
from benchmarks.tasks.sweep import SETTINGS, SWEPT_TASKS, print_sweep, sweep
from trainer_server.common.intervals import wilson
from trainer_server.common.jsonl import read_jsonl

QUICKSTART = "quickstart"
COMMAND = (str(Path(sys.executable).with_name("art-langgraph")), "quickstart")


def run_quickstart(
    seed: int, directory: Path, arguments: Sequence[str] = (), command: Sequence[str] = COMMAND
) -> dict[str, Any]:
    """Runs the command of the quickstart, as a user would.

    Args:
        seed: The seed.
        directory: The working directory of the command, in which it makes `runs/`.
        arguments: Further arguments of the command.
        command: The command, without arguments.

    Raises:
        RuntimeError: The command failed. The message has the end of its output, which is in the directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    output = directory / "output.log"
    started = time.monotonic()
    with output.open("w") as log:
        done = subprocess.run([*command, "--seed", str(seed), *arguments], cwd=directory, stdout=log, stderr=log)
    seconds = time.monotonic() - started
    if done.returncode:
        raise RuntimeError(f"the quickstart ended with {done.returncode}. The end of {output}:\n{_tail(output)}")
    latest = directory / "runs" / "latest"
    summary = json.loads((latest / "summary.json").read_text())
    spent = json.loads((latest / "budget.json").read_text())
    rows = list(read_jsonl(latest / "metrics.jsonl", dict, what="row of a step"))
    return {
        "seed": seed,
        "before": summary["before"]["success"],
        "after": summary["after"]["success"],
        "seconds": round(seconds, 1),
        "held_out": summary["after"]["n"],
        "before_interval": _interval(summary["before"]),
        "after_interval": _interval(summary["after"]),
        "phases": summary["seconds"],
        "budget": {name: spent[name] for name in ("seconds", "rollouts")},
        "peak_memory": spent["peak_memory"]["total"],
        "steps": [{name: row.get(name) for name in ("step", "reward", "success", "seconds")} for row in rows],
    }


def _tail(path: Path, lines: int = 20) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def _interval(measured: dict[str, Any]) -> list[float] | None:
    """Wilson's 95 % interval of a measurement that has one run of each scenario. None: no run has a reward."""
    if measured["success"] is None:
        return None
    return list(wilson(measured["success"] * measured["n"], measured["n"]))


def of_task(row: dict[str, Any]) -> dict[str, Any]:
    """The result of a task (`Learned.as_json`) in the form of `run_quickstart`."""
    return {
        "seed": row["seed"],
        "before": row["before"]["success"],
        "after": row["after"]["success"],
        "seconds": row["seconds"],
        "held_out": row["after"]["n"],
        "before_interval": row["before"]["interval"],
        "after_interval": row["after"]["interval"],
        "phases": row["stages"],
        "steps": [{"step": at, "reward": reward} for at, reward in enumerate(row["rewards"], 1)],
        "warm": row["warm"],
        "tokens": row["tokens"],
    }


def report(task: str, seeds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The result of all seeds as JSON."""
    after = [row["after"] for row in seeds]
    return {
        "benchmark": "learning",
        "task": task,
        "seeds": list(seeds),
        "worst_after": None if None in after else min(after),
        "median_seconds": statistics.median(row["seconds"] for row in seeds),
    }


def table(seeds: Sequence[dict[str, Any]]) -> Table:
    """A row for each seed."""
    made = Table("seed", "before (95 %)", "after (95 %)", "held out", "seconds", "of which", "steps")
    for row in seeds:
        made.add_row(
            str(row["seed"]),
            _rate(row["before"], row["before_interval"]),
            _rate(row["after"], row["after_interval"]),
            str(row["held_out"]),
            f"{row['seconds']:.0f}",
            ", ".join(f"{name} {seconds:.4g}" for name, seconds in row["phases"].items() if seconds is not None),
            str(len(row["steps"])),
        )
    return made


def _rate(rate: float | None, interval: Sequence[float] | None) -> str:
    return "-" if rate is None or interval is None else f"{rate:.3f} ({interval[0]:.3f} - {interval[1]:.3f})"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, help="runs, with the seeds from 0 (quickstart: 5, others: 3)")
    parser.add_argument("--task", choices=[QUICKSTART, *TASKS], default=QUICKSTART, help="what to learn (quickstart)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--output", type=Path, help="keep the directories of the quickstart's runs here")
    parser.add_argument("--sweep", action="store_true", help="measure settings of GRPO in place of seeds")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=SWEPT_TASKS, help="tasks of the sweep")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="settings whose names begin so; and base")
    parser.add_argument("--cells", type=Path, default=Path("sweep.jsonl"), help="results of the sweep (sweep.jsonl)")
    parser.add_argument("--minutes", type=float, help="begin no further cell of the sweep after so long")
    parser.add_argument("--list", action="store_true", help="list the settings of the sweep, and run nothing")
    parser.add_argument("arguments", nargs="*", help="further arguments of the quickstart, after --")
    options = parser.parse_args()
    if options.seeds is None:
        options.seeds = 5 if options.task == QUICKSTART and not options.sweep else 3
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds}: at least one run is needed")
    if unknown := [name for name in options.only if not any(setting.startswith(name) for setting in SETTINGS)]:
        parser.error(f"--only {' '.join(unknown)}: no setting begins so; --list shows them")
    return options


def main() -> None:
    options = parse()
    console = Console(width=150, stderr=options.json)
    if options.list:
        for name, setting in SETTINGS.items():
            print(f"{name:24} {setting.about}")
        return
    if options.sweep:
        chosen = [
            name for name in SETTINGS if not options.only or name == "base" or name.startswith(tuple(options.only))
        ]
        limit = None if options.minutes is None else 60 * options.minutes
        cells = asyncio.run(sweep(options.tasks, range(options.seeds), chosen, options.cells, tell, limit))
        print_sweep(cells, options.tasks, console)
        if options.json:
            print(json.dumps({"benchmark": "sweep", "cells": cells}))
        return
    if options.task == QUICKSTART:
        rows = []
        scratch = nullcontext(options.output) if options.output else tempfile.TemporaryDirectory()
        with scratch as directory:
            for seed in range(options.seeds):
                rows.append(run_quickstart(seed, Path(directory) / f"seed-{seed}", options.arguments))
                made = rows[-1]
                tell(f"seed {seed}: {made['before']} → {made['after']} in {made['seconds']:.0f} s")
    else:
        rows = [of_task(row) for row in learn_all([options.task], range(options.seeds))]
    console.print(table(rows))
    result = report(options.task, rows)
    console.print(f"worst after: {result['worst_after']}, median: {result['median_seconds']:.0f} s")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
