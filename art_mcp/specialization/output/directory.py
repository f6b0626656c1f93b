"""RunDirectory: the files of a specialization, and what an earlier process of the same run has left in them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from filelock import lock_descriptor

from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.store import TrajectoryStore
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.specialization.output.journal import Journal
from art_mcp.specialization.verify import solved
from trainer_server.wire import ConfigError
from trainer_server.wire.home import write_private
from trainer_server.wire.jsonl import append_jsonl, read_jsonl, write_jsonl

RUN, PROGRESS, SCENARIOS, RUNS, ADAPTER = "run.json", "progress.jsonl", "scenarios.jsonl", "runs.sqlite", "adapter"


class RunDirectory:
    """The files of a run. Without a directory nothing is written, and nothing can be continued.

    - run.json: the settings, and the name of the run at the trainer server
    - progress.jsonl: the journal
    - scenarios.jsonl: each scenario when it is kept; all of them, divided into sets, when generation has ended
    - measurements/STAGE.jsonl: the runs of each measurement
    - runs.sqlite: the runs of the training, as a trajectory store
    - report.html, report.md: written anew after each stage
    - adapter/: the LoRA

    Args:
        path: The directory. None: there is none.
        settings: The settings of the run, by name, as JSON values.
        resume: Whether to continue the run that the directory has.

    Raises:
        ConfigError: The directory has files and `resume` is false, or it has those of a run with other settings.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any], *, resume: bool) -> None:
        self.path = path
        self.name = f"specialize-{uuid.uuid4().hex[:12]}"
        self.store: TrajectoryStore | None = None
        self._settings, self._resumed = dict(settings), False
        self._lock: IO[bytes] | None = None
        if path is None:
            if resume:
                raise ConfigError("resume=True needs output=: the directory of the run to continue")
            self.journal = Journal(None)
            return
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path} is a file: give a directory for the output")
        there = (
            sorted(entry.name for entry in path.iterdir() if not entry.name.startswith(".")) if path.exists() else []
        )
        if there and not resume:
            remedy = "continue it by --resume (resume=True)" if RUN in there else "it is no run of `specialize`"
            raise ConfigError(f"{path} is not empty ({', '.join(there[:3])}, …): {remedy}, or give another --output")
        path.mkdir(parents=True, exist_ok=True)
        self._take(path)
        if RUN in there:
            self._continue(path)
        elif there:
            self.close()
            raise ConfigError(f"{path} has no {RUN}, so that there is no run to resume: give another --output")
        else:
            (path / "measurements").mkdir(exist_ok=True)
            write_jsonl(path / RUN, [{"name": self.name, "settings": self._settings}])
        self.journal = Journal(path / PROGRESS)
        self.store = TrajectoryStore(path / RUNS)

    @property
    def resumed(self) -> bool:
        """Whether an earlier process has begun the run."""
        return self._resumed

    def add_scenario(self, scenario: MCPScenario) -> None:
        """Appends a scenario that was kept, while others are still generated."""
        if self.path is not None:
            append_jsonl(self.path / SCENARIOS, [scenario.model_dump(mode="json")])

    def kept_scenarios(self) -> list[MCPScenario]:
        """The scenarios that were kept until a process was killed. A line that it left incomplete is left out."""
        if self.path is None or not (self.path / SCENARIOS).exists():
            return []
        scenarios = read_jsonl(
            self.path / SCENARIOS, lambda line: MCPScenario.of_scenario(MCPScenario(**line)), skip=lambda _: None
        )
        return list({scenario.id: scenario for scenario in scenarios}.values())

    def save_scenarios(self, scenarios: ScenarioSet) -> None:
        """Writes all scenarios with their sets and measured difficulties."""
        if self.path is not None:
            scenarios.save(self.path / SCENARIOS)

    def scenarios(self) -> ScenarioSet:
        """The scenarios that `save_scenarios` wrote."""
        assert self.path is not None
        return ScenarioSet.load(self.path / SCENARIOS)

    def save_measurement(self, stage: str, evaluation: Evaluation) -> None:
        """Writes the runs of a measurement."""
        if self.path is not None:
            evaluation.save(self.path / "measurements" / f"{stage}.jsonl")

    def measurement(self, stage: str, version: int) -> Evaluation:
        """The runs of a measurement that `save_measurement` wrote."""
        assert self.path is not None
        return Evaluation.load(self.path / "measurements" / f"{stage}.jsonl", version=version, success=solved)

    def write(self, name: str, text: str) -> None:
        """Writes a file. It has all of the text, or what it had before."""
        if self.path is None:
            return
        partial = self.path / f".{name}.{os.getpid()}.partial"
        try:
            write_private(partial, text)
            os.replace(partial, self.path / name)
        finally:
            with suppress(OSError):
                partial.unlink()

    def close(self) -> None:
        """Lets another process have the run."""
        if self._lock is not None:
            self._lock.close()

    def _take(self, path: Path) -> None:
        """Holds the directory until `close` or the process's end. Raises ConfigError if another process has it."""
        self._lock = (path / ".lock").open("ab")
        if not lock_descriptor(self._lock.fileno(), blocking=False):
            self._lock.close()
            raise ConfigError(f"another process works on the run in {path}: wait for its end, or end it")

    def _continue(self, path: Path) -> None:
        """Takes up a run. Raises ConfigError if its settings were others."""
        (line,) = read_jsonl(path / RUN, dict, what="run")
        before, now = dict(line["settings"]), self._settings
        differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if differing:
            self.close()
            listed = "; ".join(f"{name} was {before.get(name)!r}, is {now.get(name)!r}" for name in differing)
            raise ConfigError(
                f"{path} has a run with other settings: {listed}. Resume it with the settings that it began with, or "
                "give another --output"
            )
        self.name, self._resumed = str(line["name"]), True
