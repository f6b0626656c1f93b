"""StageRunner: leads a specialization from stage to stage, and keeps time, journal and report on the way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from art_langgraph.costs.tokens import Tokens
from art_mcp.specialization.budget import Budget
from art_mcp.specialization.output.directory import RunDirectory


@dataclass(slots=True)
class Stage:
    """A stage that has begun.

    Args:
        name: Its name.
        seconds: The time that it may take. None: any.
        before: Seconds that earlier processes of the run spent on it.
        facts: What is to be known when it has ended, as JSON values.
    """

    name: str
    seconds: float | None
    before: float
    facts: dict[str, Any] = field(default_factory=dict)


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

    def remark(self, about: str, text: str) -> None:
        """Adds a remark, which survives a kill of the process. It replaces an earlier one about the same."""
        self.directory.journal.note("remark", about=about, text=text)
        self.notes[:] = self._remarks()

    def _remarks(self) -> Collection[str]:
        events = self.directory.journal.events
        return {line["about"]: line["text"] for line in events if line["event"] == "remark"}.values()

    @contextmanager
    def stage(self, name: str, about: str) -> Iterator[Stage]:
        """A stage: notes and tells that it begins, and when the block has ended, what came of it.

        Args:
            name: Its name.
            about: What is done, in words.
        """
        journal = self.directory.journal
        seconds = self.budget.allows(name)
        begun = journal.of("begin", name)
        before = max(0.0, self.budget.seconds_spent - begun[0]["spent"]) if begun else 0.0
        journal.note("resume" if begun else "begin", stage=name, seconds=seconds)
        left = f" ({self.budget.text()})" if self.budget.text() else ""
        self.on_stage(f"{name}: {about}{left}")
        stage = Stage(name, seconds, before)
        yield stage
        journal.note("end", stage=name, left=self.budget.seconds_left, **stage.facts)
        self.report()

    def end_event(self, name: str) -> dict[str, Any] | None:
        """What came of a stage that an earlier process, or this one, has ended. None: it has not ended."""
        return self.directory.journal.end_event(name)

    def skip(self, name: str, why: str) -> None:
        """Notes that a stage is left out, and tells why."""
        self.directory.journal.note("skip", stage=name, why=why)
        self.on_stage(f"{name}: left out: {why}")

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each stage that has ended."""
        return self.directory.journal.seconds

    @property
    def tokens(self) -> dict[str, Tokens]:
        """Tokens of each stage that has ended."""
        ends = [line for line in self.directory.journal.events if line["event"] == "end" and "tokens" in line]
        return {line["stage"]: Tokens(**line["tokens"]) for line in ends}
