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
_DUPLICATE = Unreadable("conversations that an earlier line has as well", "")
_NO_TASK = Unreadable("runs without a task, which make no scenario", "they have no message of a user")
_ALL_FAILED = Unreadable(
    "runs whose calls all failed, which are no demonstrations", "what a call that failed had answered is not imitated"
)
_SOME_FAILED = Unreadable("runs with failed calls, whose answers are in no demonstration", "")
_NO_TOOLS = Unreadable(
    "runs that call tools without their definitions, which their demonstrations lack too",
    "record the definitions of tools (gen_ai.tool.definitions, llm.tools, tools)",
)


@dataclass(slots=True)
class Tally:
    """How many of a kind are new, and how many were there already."""

    new: int = 0
    known_count: int = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return self.new + self.known_count

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


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Keywords of `import_runs`.

    Args:
        scenarios: JSONL file to which the tasks of runs are appended, for `load_scenarios`; None: none.
        demonstrations: JSONL file to which their conversations are appended, for a warm start; None: none.
        feedback: Name of the feedback that is the reward; None: the only one that a run has.
        min_reward: Least reward of a demonstration; None: above 0. Runs without any feedback are demonstrations.
        system_messages: Whether system messages of conversations are part of scenarios.
        since: Only runs that began then or later, as Unix time. Runs whose time is not known are left out.
        limit: How many runs to read at most; None: all.
        dry_run: Counts, and writes nothing.
    """

    scenarios: str | Path | None = None
    demonstrations: str | Path | None = None
    feedback: str | None = None
    min_reward: float | None = None
    system_messages: bool = True
    since: float | None = None
    limit: int | None = None
    dry_run: bool = False


def import_runs(
    system: str,
    *paths: str | Path,
    store: TrajectoryStore | None = None,
    advance: Callable[[int], None] = lambda _: None,
    **keywords: Any,
) -> ImportSummary:
    """Imports the runs of an export. An export may be imported again: what is known stays as it is.

    Args:
        system: Which system made it: a key of `FORMATS`.
        paths: Its files.
        store: Gets the runs, with their feedback as rewards; None: they are not stored.
        advance: Is called with the number of bytes that were read until now.
        keywords: Fields of `ImportOptions`.

    Raises:
        ConfigError: A file cannot be read or written, or a file that is there is of another kind.
    """
    options, summary = ImportOptions(**keywords), ImportSummary()
    scenarios = _Output(options.scenarios, _scenario_ids, summary.scenarios)
    demonstrations = _Output(options.demonstrations, _conversation_ids, summary.demonstrations)
    runs = read_runs(system, *paths, skips=summary.skips, advance=advance)
    selection = itertools.islice(_select_runs(runs, options.since, summary), options.limit)
    while batch := list(itertools.islice(selection, _BATCH)):
        trajectories: list[Trajectory] = []
        for run in batch:
            reward, is_undecided = None, False
            try:
                reward = run.reward(options.feedback)
            except Unreadable as problem:
                is_undecided = True
                summary.skips.note(problem, run.line)
            for line in run.repeat_lines:
                summary.skips.note(_DUPLICATE, line)
            trajectories.append(run.trajectory(reward, options.feedback))
            if options.scenarios is not None:
                _add_scenario(run, scenarios, options, summary)
            if options.demonstrations is not None and not is_undecided:  # the feedback may say that it was bad
                _add_demonstrations(run, reward, demonstrations, options, summary)
        _store(trajectories, store, summary, options.dry_run)
        for output in (scenarios, demonstrations):
            output.write(options.dry_run)
    return summary


def _select_runs(runs: Iterable[ForeignRun], since: float | None, summary: ImportSummary) -> Iterator[ForeignRun]:
    early = Unreadable("runs that began before --since", "")
    for run in runs:
        if since is not None and (run.start_time is None or run.start_time < since):
            summary.skips.note(early, run.line)
        else:
            yield run


def _store(runs: list[Trajectory], store: TrajectoryStore | None, summary: ImportSummary, dry_run: bool) -> None:
    """Stores the runs that are new, and rewards that are."""
    by_id = {run.id: run for run in runs}
    rewards = {} if store is None else store.rewards(list(by_id))
    fresh = [run for run in by_id.values() if run.id not in rewards]
    summary.runs.new += len(fresh)
    summary.runs.known_count += len(runs) - len(fresh)
    updates = [run for run in by_id.values() if run.id in rewards and run.reward not in (None, rewards[run.id])]
    summary.rewards.new += (new := sum(run.reward is not None for run in fresh) + len(updates))
    summary.rewards.known_count += sum(run.reward is not None for run in by_id.values()) - new
    if store is None or dry_run:
        return
    with store.session() as session, session.batch() as batch:
        for run in fresh:
            batch.add(run)
    for run in updates:
        store.score(run.id, run.reward, run.metrics, source=run.reward_source or "import")


class _Output:
    """A JSONL file that gets the records which it does not have.

    Args:
        path: The file; None: there is none.
        read_ids: Ids of the records that a file has.
        tally: Counts the records that are added.
    """

    def __init__(self, path: str | Path | None, read_ids: Callable[[str | Path], Iterable[str]], tally: Tally) -> None:
        self._path, self._tally = path, tally
        self._ids = set(read_ids(path)) if path is not None and Path(path).is_file() else set()
        self._records: list[Any] = []

    def add(self, record_id: str, record: Any) -> None:
        """Adds a record, unless the file has it."""
        if record_id in self._ids:
            self._tally.known_count += 1
            return
        self._tally.new += 1
        self._ids.add(record_id)
        self._records.append(record)

    def write(self, dry_run: bool) -> None:
        """Appends the records that were added since the last time. Raises ConfigError where that is not possible."""
        if self._path is not None and self._records and not dry_run:
            try:
                append_jsonl(self._path, self._records)
            except OSError as error:
                raise ConfigError(f"{self._path} cannot be written: {error.strerror}") from None
        self._records.clear()


def _scenario_ids(path: str | Path) -> Iterator[str]:
    return (scenario.id for scenario in load_scenarios(path))


def _conversation_ids(path: str | Path) -> Iterator[str]:
    return map(digest, read_jsonl(path, Conversation.model_validate, what="conversation"))


def _add_scenario(run: ForeignRun, output: _Output, options: ImportOptions, summary: ImportSummary) -> None:
    if (scenario := run.scenario(system=options.system_messages)) is None:
        summary.skips.note(_NO_TASK, run.line)
    else:
        output.add(scenario.id, scenario)


def _add_demonstrations(
    run: ForeignRun, reward: float | None, output: _Output, options: ImportOptions, summary: ImportSummary
) -> None:
    if (problem := _imitation_problem(run, reward, options.min_reward)) is not None:
        summary.skips.note(problem, run.line)
        return
    if any(call.error is not None for call in run.calls if call.answer):
        summary.gaps.note(_SOME_FAILED, run.line)
    try:
        conversations = run.demonstrations()
    except Unreadable as error:
        summary.skips.note(error, run.line)
        return
    if run.lacks_tools:
        summary.gaps.note(_NO_TOOLS, run.line)
    for conversation in conversations:
        output.add(digest(conversation), conversation.model_dump(mode="json", exclude_none=True))


_ANSWERS = "answers are those of model calls, so an export needs these too, not the root runs alone"


def _imitation_problem(run: ForeignRun, reward: float | None, min_reward: float | None) -> Unreadable | None:
    """Why a run is no demonstration; None: it is one."""
    if run.error is not None:
        return Unreadable("failed runs, which are no demonstrations", "")
    errors = [call.error for call in run.calls if call.answer]
    if not errors:
        return Unreadable("runs without an answer, which are no demonstrations", _ANSWERS)
    if None not in errors:
        return _ALL_FAILED
    if reward is not None and (reward <= 0 if min_reward is None else reward < min_reward):
        limit = "above 0" if min_reward is None else f"of {min_reward:g} or more"
        return Unreadable(f"runs without a reward {limit}, which are no demonstrations", "--min-reward sets the limit")
    return None
