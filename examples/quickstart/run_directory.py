"""The directory of a run: its seed, measurements and training steps, so that the run can be resumed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_examples.quickstart.reward import success
from art_examples.quickstart.speed import HELD_OUT

from art_langgraph import Evaluation
from art_langgraph.loop.watch.record import StepRecord
from trainer_server.common.jsonl import append_jsonl, read_jsonl
from trainer_server.process.files import write_atomic
from trainer_server.wire import ConfigError

RUNS = Path("runs")
"""Parent of the directories of all runs."""


def evaluation_file(run: Path, version: int) -> Path:
    """Where the directory of a run has the measured runs of a version."""
    return run / f"held_out@{version}.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the command line.

    Args:
        name: Name of the run and of its directory.
        seed: Seed of the LoRA and of the choice of scenarios.
        steps: Total number of training steps. Steps before a resumption count.
        held_out: Number of held-out scenarios to measure on.
        train: False measures the untrained policy and stops.
        resume: Whether to continue a stopped run.
    """

    name: str
    seed: int
    steps: int
    held_out: int = HELD_OUT
    train: bool = True
    resume: bool = False

    @classmethod
    def of(
        cls,
        name: str | None,
        seed: int | None,
        resume: bool,
        held_out: int | None = None,
        **others: Any,
    ) -> Options:
        """Fills in what the command line leaves open.

        Args:
            name: Name of the run. None: a new name, or the latest run to resume.
            seed: The seed. None: 0, or the seed of the run to resume.
            resume: Whether to continue a stopped run.
            held_out: Number of held-out scenarios; None: 120, or that of the run to resume.
            **others: The other options.

        Raises:
            ConfigError: There is no run to resume, or it was started with another seed or number of scenarios.
        """
        if not resume:
            seed = seed or 0
            name = name or f"{time.strftime('%Y%m%d-%H%M%S')}-seed{seed}"
            return cls(name=name, seed=seed, held_out=held_out or HELD_OUT, **others)
        directory = RUNS / (name or "latest")
        try:
            run = json.loads((directory / "run.json").read_text())
        except OSError:
            raise ConfigError(f"{directory} is no run: there is nothing to resume") from None
        began_with, measured_on = int(run["seed"]), int(run.get("held_out", HELD_OUT))
        if seed is not None and seed != began_with:
            raise ConfigError(f"{directory} was started with --seed {began_with}; resume it with the same seed")
        if held_out is not None and held_out != measured_on:
            raise ConfigError(f"{directory} was started with --held-out {measured_on}; resume it with that number")
        return cls(name=directory.resolve().name, seed=began_with, resume=True, held_out=measured_on, **others)


class RunDirectory:
    """The files of a run.

    They are run.json, metrics.jsonl (a line per step), held_out@VERSION.jsonl (the measured runs), summary.json and
    budget.json. The link `runs/latest` points to the run that was started or resumed last.

    Args:
        options: Options of the command line.

    Raises:
        ConfigError: A new run has the name of an existing one.
    """

    def __init__(self, options: Options) -> None:
        self.path = RUNS / options.name
        self._metrics = self.path / "metrics.jsonl"
        if not options.resume:
            if self.path.exists():
                raise ConfigError(f"{self.path} exists: go on with it by --resume, or choose another --name")
            write_atomic(self.path / "run.json", json.dumps({"seed": options.seed, "held_out": options.held_out}))
        link = RUNS / f".latest.{os.getpid()}"
        link.symlink_to(self.path.name)
        os.replace(link, RUNS / "latest")

    def steps(self) -> list[dict[str, Any]]:
        """Reads the rows of the finished steps."""
        return list(read_jsonl(self._metrics, dict, what="row of a step")) if self._metrics.exists() else []

    def add_step(self, record: StepRecord, spent: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
        """Appends a step to metrics.jsonl.

        Args:
            record: The record of the step.
            spent: What it took, as `Meter.lap` gives it.

        Returns:
            The row that was written.
        """
        trajectories = [trajectory for group in record.groups for trajectory in group.trajectories]
        row = {
            "step": record.step,
            "version": record.result.version,
            "reward": record.reward,
            "success": sum(map(success, trajectories)) / len(trajectories) if trajectories else None,
            "seconds": record.seconds,
            "spent": spent,
            "skipped": record.result.metrics.get("skipped"),
            "cost": record.cost and record.cost.summary(),
            "metrics": record.result.metrics,
        }
        append_jsonl(self._metrics, [row])
        return row

    def evaluation(self, version: int) -> Evaluation | None:
        """Reads the saved evaluation of a version. None: there is none."""
        path = evaluation_file(self.path, version)
        return Evaluation.load(path, version=version, success=success) if path.exists() else None

    def save_evaluation(self, evaluation: Evaluation, version: int) -> None:
        """Saves the evaluation of a version."""
        evaluation.save(evaluation_file(self.path, version))

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Writes summary.json."""
        write_atomic(self.path / "summary.json", json.dumps(summary, indent=2) + "\n")

    def write_budget(self, spent: Mapping[str, Any]) -> None:
        """Writes budget.json: what `budget` gives."""
        write_atomic(self.path / "budget.json", json.dumps(spent, indent=2) + "\n")
