"""Imports runs: into a store, and as scenarios and demonstrations into files. What is there already is left alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art_langgraph.datasets import load_scenarios
from art_langgraph.store import TrajectoryStore
from art_langgraph.traces.problems import Skips, Unreadable
from art_langgraph.traces.reading import read_runs
from art_langgraph.traces.run import ForeignRun, digest
from art_langgraph.trajectory import Trajectory
from trainer_server.common.jsonl import append_jsonl, read_jsonl
from trainer_server.wire import ConfigError, Conversation

_BATCH = 200
"""Runs that are written at once."""
_REPEATED = Unreadable("conversations that an earlier line has as well", "")
_NO_TASK = Unreadable("runs without a task, which make no scenario", "they have no message of a user")
_ALL_FAILED = Unreadable(
    "runs whose calls all failed, which are no demonstrations", "what a call that failed had answered is not imitated"
)
_SOME_FAILED = Unreadable("runs with failed calls, whose answers are in no demonstration", "")

_UNDEFINED = Unreadable(
    "runs that call tools without their definitions, which their demonstrations lack too",
    "record the definitions of tools (gen_ai.tool.definitions, llm.tools, tools)",
)


@dataclass(slots=True)
class Tally:
    """How many of a kind are new, and how many were there already."""

    new: int = 0
    known_count: int = 0

    def __str__(self) -> str:
        return f"{self.new:,} new, {self.known_count:,} known"


@dataclass(slots=True)
class ImportSummary:
    """What became of an export."""

    runs: Tally = field(default_factory=Tally)
    """Runs in the store."""
    scenarios: Tally = field(default_factory=Tally)
    demonstrations: Tally = field(default_factory=Tally)
    rewards: Tally = field(default_factory=Tally)
    """Runs with a reward; new: those that had none, or another."""
    skips: Skips = field(default_factory=Skips)
    """What was left out, by reason."""
    gaps: Skips = field(default_factory=Skips)
    """What the runs that were read lack, by reason."""

    @property
    def read(self) -> int:
        """Runs that were read."""
        return self.runs.new + self.runs.known_count

    def as_json(self) -> dict[str, Any]:
        """The numbers, for programs."""
        tallies = {name: getattr(self, name) for name in ("runs", "scenarios", "demonstrations", "rewards")}
        return {
            "read": self.read,
            **{name: {"new": tally.new, "known": tally.known_count} for name, tally in tallies.items()},
            "skipped": self.skips.counts,
            "lacking": self.gaps.counts,
        }


def import_runs(
    system: str,
    *paths: str | Path,
    store: TrajectoryStore | None = None,
    scenarios: str | Path | None = None,
    demonstrations: str | Path | None = None,
    feedback: str | None = None,
    min_reward: float | None = None,
    system_messages: bool = True,
    since: float | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> ImportSummary:
    """Imports the runs of an export. An export may be imported again: what is known stays as it is.

    Args:
        system: Which system made it: a key of `FORMATS`.
        paths: Its files.
        store: Gets the runs, with their feedback as rewards; None: they are not stored.
        scenarios: JSONL file to which their tasks are appended, for `load_scenarios`; None: none.
        demonstrations: JSONL file to which their conversations are appended, for a warm start; None: none.
        feedback: Name of the feedback that is the reward; None: the only one that a run has.
        min_reward: Least reward of a demonstration; None: above 0. Runs without a reward are demonstrations.
        system_messages: Whether system messages of conversations are part of scenarios.
        since: Only runs that began then or later, as Unix time. Runs whose time is not known are left out.
        limit: How many runs to read at most; None: all.
        dry_run: Counts, and writes nothing.
        advance: Is called with the number of bytes that were read until now.

    Raises:
        ConfigError: A file cannot be read or written, or a file that is there is of another kind.
    """
    summary = ImportSummary()
    files = _Files(scenarios, demonstrations, summary, dry_run)
    runs = itertools.islice(
        _select_runs(read_runs(system, *paths, skips=summary.skips, advance=advance), since, summary), limit
    )
    while batch := list(itertools.islice(runs, _BATCH)):
        imported: list[Trajectory] = []
        for run in batch:
            reward = None
            try:
                reward = run.reward(feedback)
            except Unreadable as problem:
                summary.skips.note(problem, run.line)
            for line in run.repeat_lines:
                summary.skips.note(_REPEATED, line)
            imported.append(run.trajectory(reward, feedback))
            files.take(run, reward, min_reward, system_messages)
        _keep(imported, store, summary, dry_run)
        files.write()
    return summary


def _select_runs(runs: Iterable[ForeignRun], since: float | None, summary: ImportSummary) -> Iterator[ForeignRun]:
    early = Unreadable("runs that began before --since", "")
    for run in runs:
        if since is not None and (run.start_time is None or run.start_time < since):
            summary.skips.note(early, run.line)
        else:
            yield run


def _keep(runs: list[Trajectory], store: TrajectoryStore | None, summary: ImportSummary, dry_run: bool) -> None:
    """Stores the runs that are new, and rewards that are."""
    by_id = {run.id: run for run in runs}
    known = {} if store is None else store.rewards(list(by_id))
    fresh = [run for run in by_id.values() if run.id not in known]
    summary.runs.new += len(fresh)
    summary.runs.known_count += len(runs) - len(fresh)
    changed = [run for run in by_id.values() if run.id in known and run.reward not in (None, known[run.id])]
    rewarded = sum(run.reward is not None for run in by_id.values())
    summary.rewards.new += (new := sum(run.reward is not None for run in fresh) + len(changed))
    summary.rewards.known_count += rewarded - new
    if store is None or dry_run:
        return
    with store.session() as session, session.batch() as batch:
        for run in fresh:
            batch.add(run)
    for run in changed:
        store.score(run.id, run.reward, run.metrics, source=run.reward_source or "import")


class _Files:
    """The files of scenarios and demonstrations, and what waits to be appended to them."""

    def __init__(
        self, scenarios: str | Path | None, demonstrations: str | Path | None, summary: ImportSummary, dry_run: bool
    ) -> None:
        self._scenarios, self._demonstrations = scenarios, demonstrations
        self._summary, self._dry_run = summary, dry_run
        self._tasks = (
            {scenario.id for scenario in load_scenarios(scenarios)}
            if scenarios is not None and _is_file(scenarios)
            else set()
        )
        conversations = (
            read_jsonl(demonstrations, Conversation.model_validate, what="conversation")
            if demonstrations is not None and _is_file(demonstrations)
            else ()
        )
        self._conversations = set(map(digest, conversations))
        self._waiting: tuple[list[Any], list[Any]] = ([], [])

    def take(self, run: ForeignRun, reward: float | None, min_reward: float | None, system_messages: bool) -> None:
        """Takes what a run gives."""
        if self._scenarios is not None:
            scenario = run.scenario(system=system_messages)
            if scenario is None:
                self._summary.skips.note(_NO_TASK, run.line)
            elif scenario.id in self._tasks:
                self._summary.scenarios.known_count += 1
            else:
                self._summary.scenarios.new += 1
                self._tasks.add(scenario.id)
                self._waiting[0].append(scenario)
        if self._demonstrations is None or not self._imitated(run, reward, min_reward):
            return
        try:
            conversations = run.demonstrations()
        except Unreadable as problem:
            self._summary.skips.note(problem, run.line)
            return
        if run.undefined:
            self._summary.gaps.note(_UNDEFINED, run.line)
        for conversation in conversations:
            if (name := digest(conversation)) in self._conversations:
                self._summary.demonstrations.known_count += 1
            else:
                self._summary.demonstrations.new += 1
                self._conversations.add(name)
                self._waiting[1].append(conversation.model_dump(mode="json", exclude_none=True))

    def write(self) -> None:
        """Appends what waits.

        Raises:
            ConfigError: A file cannot be written.
        """
        for path, waiting in zip((self._scenarios, self._demonstrations), self._waiting, strict=True):
            if path is not None and waiting and not self._dry_run:
                try:
                    append_jsonl(path, waiting)
                except OSError as error:
                    raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
            waiting.clear()

    def _imitated(self, run: ForeignRun, reward: float | None, min_reward: float | None) -> bool:
        """Whether a run is a demonstration. Says why where it is none."""
        if run.error is not None:
            self._summary.skips.note(Unreadable("failed runs, which are no demonstrations", ""), run.line)
            return False
        failed = [call.error is not None for call in run.calls if call.answer]
        if not failed:
            self._summary.skips.note(Unreadable("runs without an answer, which are no demonstrations", ""), run.line)
            return False
        if all(failed):
            self._summary.skips.note(_ALL_FAILED, run.line)
            return False
        if reward is not None and (reward <= 0 if min_reward is None else reward < min_reward):
            limit = "above 0" if min_reward is None else f"of {min_reward:g} or more"
            why = Unreadable(
                f"runs without a reward {limit}, which are no demonstrations", "--min-reward sets the limit"
            )
            self._summary.skips.note(why, run.line)
            return False
        if any(failed):
            self._summary.gaps.note(_SOME_FAILED, run.line)
        return True


def _is_file(path: str | Path | None) -> bool:
    return path is not None and Path(path).is_file()
