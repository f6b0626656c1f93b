"""RunDirectory and its Journal: everything is written as it comes, so that a killed run can be continued."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from filelock import lock_descriptor

from art_langgraph.costs.tokens import Tokens
from art_langgraph.llm.llm import Usage
from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.store import TrajectoryStore
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.specialization.verify import solved
from trainer_server.common.home import write_private
from trainer_server.common.jsonl import append_jsonl, read_jsonl, write_jsonl
from trainer_server.wire import ConfigError

RUN, PROGRESS, SCENARIOS, RUNS, ADAPTER = "run.json", "progress.jsonl", "scenarios.jsonl", "runs.sqlite", "adapter"


class Journal:
    """The events of a run, those of earlier processes included.

    Each event has `event`, `time` (Unix time), `spent` (seconds of the run until then), and `usage` where language
    models were asked. Events of a stage have its name in `stage`: "begin", "end", and between them "part" (of a
    measurement) and "step" (of the training).

    Args:
        path: The JSONL file. None: events are kept in memory only.

    Attributes:
        seconds_spent: Gives the seconds of the run until now.
        usage: Gives the usage of language models until now, by what they were asked for.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.seconds_spent: Callable[[], float] = lambda: 0.0
        self.usage: Callable[[], Mapping[str, Usage]] = dict
        self.events: list[dict[str, Any]] = []
        if path is not None and path.exists():  # a killed process may have left half of the last line
            self.events = list(read_jsonl(path, dict, what="event", skip=lambda _: None))

    def note(self, event: str, **facts: Any) -> None:
        """Adds an event. When this returns, the event survives a kill of the process.

        Args:
            event: Its name.
            **facts: What is to be known of it, as JSON values.
        """
        line = {"event": event, "time": round(time.time(), 3), "spent": round(self.seconds_spent(), 3), **facts}
        if usage := self.usage():
            line["usage"] = {name: asdict(each) for name, each in usage.items()}
        if self._path is not None:
            append_jsonl(self._path, [line])
        self.events.append(line)

    def of(self, event: str, stage: str) -> list[dict[str, Any]]:
        """The events of a name in a stage, oldest first."""
        return [line for line in self.events if line["event"] == event and line.get("stage") == stage]

    def end_event(self, stage: str) -> dict[str, Any] | None:
        """The event with which a stage ended. None: it has not."""
        return next(iter(self.of("end", stage)), None)

    @property
    def last(self) -> float:
        """Seconds of the run at the last event."""
        return max((float(line.get("spent", 0.0)) for line in self.events), default=0.0)

    @property
    def last_usage(self) -> dict[str, Usage]:
        """Usage of language models at the last event that has it."""
        usage: dict[str, Any] = next((line["usage"] for line in reversed(self.events) if "usage" in line), {})
        return {name: Usage(**each) for name, each in usage.items()}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each stage that has ended, all processes together."""
        seconds = {}
        for line in self.events:
            if line["event"] == "end" and (beginnings := self.of("begin", line["stage"])):
                seconds[line["stage"]] = line["spent"] - beginnings[0]["spent"]
        return seconds

    @property
    def tokens(self) -> dict[str, Tokens]:
        """Tokens of each stage that has ended."""
        ends = [line for line in self.events if line["event"] == "end" and "tokens" in line]
        return {line["stage"]: Tokens(**line["tokens"]) for line in ends}

    @property
    def runs(self) -> dict[str, int]:
        """Runs of the graph of each stage that has ended. Stages that earlier releases wrote have none."""
        return {line["stage"]: line["runs"] for line in self.events if line["event"] == "end" and "runs" in line}


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

    Attributes:
        journal: What the run did.
        resumed: Whether an earlier process has begun the run.

    Raises:
        ConfigError: The directory has files and `resume` is false, or it has those of a run with other settings.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any], *, resume: bool) -> None:
        self.path = path
        self.name = f"specialize-{uuid.uuid4().hex[:12]}"
        self.store: TrajectoryStore | None = None
        self._settings, self.resumed = dict(settings), False
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
            differences = "; ".join(f"{name} was {before.get(name)!r}, is {now.get(name)!r}" for name in differing)
            raise ConfigError(
                f"{path} has a run with other settings: {differences}. Resume it with the settings that it began with, "
                "or give another --output"
            )
        self.name, self.resumed = str(line["name"]), True
