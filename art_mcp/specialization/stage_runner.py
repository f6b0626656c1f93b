"""StageRunner: leads a run from stage to stage within its time, and keeps journal and report on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from art_langgraph.costs.tokens import Tokens
from art_langgraph.trajectory import Trajectory
from art_mcp.specialization.run_directory import RunDirectory

REPORT = 10.0
"""Seconds that are kept for the report and the export of the adapter."""
LEAST = 20.0
"""Seconds of a stage that trains, at least. With less time it is left out."""


class Budget:
    """Seconds for all stages together, and what is left of them.

    A stage gets its share of what is left when it begins, compared with the stages that follow: so what a stage leaves
    goes to those after it, and what it took too much is taken from them.

    Args:
        seconds: For everything. None: there is no limit, and each stage takes what its settings say.
        earlier_seconds: Seconds that earlier processes of the same run have spent.
        clock: Seconds on a clock that never goes back.
    """

    def __init__(
        self, seconds: float | None, *, earlier_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self._clock, self._began = clock, clock() - earlier_seconds
        self._weights: dict[str, float] = {}
        self._needs: dict[str, float] = {}

    def divide(self, weights: Mapping[str, float]) -> None:
        """Divides the time among stages.

        Args:
            weights: The share of each stage, by its name, in their order. 0: it takes no time.
        """
        self._weights = dict(weights)

    @property
    def seconds_spent(self) -> float:
        """Seconds since the beginning, those of earlier processes included."""
        return self._clock() - self._began

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end. None: there is no limit."""
        return None if self.seconds is None else max(0.0, self.seconds - self.seconds_spent)

    def reserve(self, stage: str, seconds: float) -> None:
        """Keeps seconds for a stage that comes later, whatever the stages before it take.

        Args:
            stage: The stage, such as the last measurement.
            seconds: What it will take, as far as is known.
        """
        self._needs[stage] = seconds

    def leave_out(self, *stages: str) -> None:
        """Gives the shares of stages that come later to the others.

        Args:
            stages: Stages that will not be done, or take no time.
        """
        for name in stages:
            self._weights[name] = 0.0
            self._needs.pop(name, None)

    def allows(self, stage: str) -> float | None:
        """Seconds that a stage may take if it begins now. None: there is no limit.

        Args:
            stage: The stage. All stages before it have ended.
        """
        return self.foresees(stage, now=stage)

    def foresees(self, stage: str, now: str) -> float | None:
        """Seconds that a stage gets, if those before it take what they may. None: there is no limit.

        Args:
            stage: The stage.
            now: The stage that begins now. All stages before it have ended.
        """
        if self.seconds_left is None:
            return None
        names = list(self._weights)
        later = {name: self._weights[name] for name in names[names.index(now) :] if name != stage}
        needs = {name: seconds for name, seconds in self._needs.items() if later.get(name)}
        free = max(0.0, self.seconds_left - REPORT - sum(needs.values()))
        weight = self._weights[stage]
        sharing = weight + sum(weight for name, weight in later.items() if name not in needs)
        share = free * weight / sharing if sharing else 0.0
        own = min(self._needs.get(stage, 0.0), free)
        return max(share, own)

    def text(self) -> str:
        """What is left, in words. Empty: there is no limit."""
        seconds = self.seconds_left
        return "" if seconds is None else f"{_minutes(seconds)} of {_minutes(self.seconds or 0.0)} left"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"


class Stage:
    """A part of a run that is done once: it is run, or left out, or what an earlier process made of it is read.

    Attributes:
        name: Its name in the journal and in the report.
        trains: Whether it changes the policy, so that the report says why it was left out.
    """

    name: ClassVar[str]
    trains: ClassVar[bool] = False

    @property
    def weight(self) -> float:
        """Its share of the time, compared with those of other stages. 0: the settings leave it out."""
        return 0.0

    def skip_reason(self) -> str | None:
        """Why it is left out now. None: it is not. Empty: as the settings ask for it, which needs no words."""
        return None

    async def run(self) -> None:
        """Does it, within `StageRunner.stage`."""
        raise NotImplementedError

    async def skip(self, why: str) -> None:
        """Does what follows if it is left out. By default that is nothing.

        Args:
            why: The reason.
        """

    async def restore(self, end: Mapping[str, Any]) -> None:
        """Reads what came of it. By default that is nothing.

        Args:
            end: The event with which it ended.
        """


@dataclass(slots=True)
class StageRecord:
    """A stage that has begun.

    Args:
        seconds: The time that it may take. None: any.
        seconds_before: Seconds that earlier processes of the run spent on it.
        facts: What is to be known when it has ended, as JSON values.
    """

    seconds: float | None
    seconds_before: float
    facts: dict[str, Any] = field(default_factory=dict)

    def add_runs(self, runs: Sequence[Trajectory]) -> None:
        """Adds the number of the runs of the graph that the stage made, and their tokens."""
        self.facts |= {"runs": len(runs), "tokens": Tokens.of(runs).summary()}


@dataclass(slots=True)
class StageRunner:
    """The stages of a run.

    Args:
        directory: Where the run is kept.
        budget: The time.
        on_stage: Called with a line of text when a stage begins, and with its results.
        report: Writes the report of what is known so far. It is called after each stage.

    Attributes:
        notes: Remarks for readers of the report, those of earlier processes included. Always the same list.
    """

    directory: RunDirectory
    budget: Budget
    on_stage: Callable[[str], None]
    report: Callable[[], None]
    notes: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.notes = [*self._remarks()]

    async def run(self, stages: Sequence[Stage]) -> None:
        """Does stages in their order, each within its share of the time.

        Args:
            stages: All stages of the run. Those that an earlier process has ended are restored.
        """
        self.budget.divide({stage.name: stage.weight for stage in stages})
        for stage in stages:
            if end := self.directory.journal.end_event(stage.name):
                await stage.restore(end)
            elif (why := stage.skip_reason()) is not None:
                if why:
                    self.leave_out(stage.name, why, in_report=stage.trains)
                await stage.skip(why)
            else:
                await stage.run()

    def remark(self, about: str, text: str) -> None:
        """Adds a remark, which survives a kill of the process. It replaces an earlier one about the same."""
        self.directory.journal.note("remark", about=about, text=text)
        self.notes[:] = self._remarks()

    def _remarks(self) -> Collection[str]:
        events = self.directory.journal.events
        return {line["about"]: line["text"] for line in events if line["event"] == "remark"}.values()

    @contextmanager
    def stage(self, name: str, about: str) -> Iterator[StageRecord]:
        """A stage: notes and tells that it begins, and when the block has ended, what came of it.

        Args:
            name: Its name.
            about: What is done, in words.
        """
        journal = self.directory.journal
        seconds = self.budget.allows(name)
        beginnings = journal.of("begin", name)
        before = max(0.0, self.budget.seconds_spent - beginnings[0]["spent"]) if beginnings else 0.0
        journal.note("resume" if beginnings else "begin", stage=name, seconds=seconds)
        time_left = f" ({self.budget.text()})" if self.budget.text() else ""
        self.on_stage(f"{name}: {about}{time_left}")
        record = StageRecord(seconds, before)
        yield record
        journal.note("end", stage=name, left=self.budget.seconds_left, **record.facts)
        self.report()

    def leave_out(self, name: str, why: str, *, in_report: bool) -> None:
        """Notes and tells that a stage is left out.

        Args:
            name: Its name.
            why: The reason.
            in_report: Whether the report says so too.
        """
        if in_report:
            self.remark(name, f"{name} was left out: {why}")
        self.directory.journal.note("skip", stage=name, why=why)
        self.on_stage(f"{name}: left out: {why}")
