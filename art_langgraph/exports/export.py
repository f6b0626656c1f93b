"""Writes recorded runs with their tokens, or in the format of another trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from art_langgraph.client.outages import retry_seconds
from art_langgraph.exports import TrainerFormat
from art_langgraph.exports.answers import openai_conversations, trl_rows
from art_langgraph.exports.ledger_rows import LedgerRows, Rows, with_tokens
from art_langgraph.exports.verifiers import verifiers_episodes
from art_langgraph.traces.problems import Skips, Unreadable
from art_langgraph.trajectory import Trajectory
from trainer_server.common.jsonl import write_jsonl

Records = Callable[[Trajectory, Rows], Iterator[dict[str, Any]]]

FORMATS: Mapping[TrainerFormat, tuple[str, Records]] = {
    TrainerFormat.trl: ("answers", trl_rows),
    TrainerFormat.openai_sft: ("conversations", openai_conversations),
    TrainerFormat.verifiers: ("episodes", verifiers_episodes),
}
"""What a line is, and the function that makes a run's lines from the run and its rows of the ledger."""

_EVALUATES = Unreadable("runs that evaluate a version", "another trainer would learn what it is measured by")
_HAS_HINTS = Unreadable("runs with hints", "the hints are in their tokens, and not in their messages")
_PATIENCE = 5.0
"""Seconds for which requests are repeated to a server that is gone: somebody waits for the file."""


class Export:
    """Writes runs to a JSONL file.

    Args:
        format: Of another trainer; None: the runs as this project keeps them, with their tokens.
        tokens: It is an error if no server has the tokens. Otherwise a note says what the file lacks.

    Attributes:
        notes: What the file lacks, and why, with the remedy.
        summary: How many runs and lines were written.
    """

    def __init__(self, format: TrainerFormat | None, *, tokens: bool) -> None:
        self._format, self._tokens = format, tokens
        self.notes: list[str] = []
        self.summary = ""

    def write(self, file: Path, runs: Iterable[Trajectory]) -> None:
        """Writes the file; it gets all runs, or stays as it was.

        Args:
            file: The file, JSONL.
            runs: In the order in which they are written.

        Raises:
            ConfigError: `tokens`, and there is no key of a server.
            ServerUnreachable: `tokens`, and no server answers.
            ServerError: The server refuses.
        """
        with LedgerRows(min(retry_seconds(), _PATIENCE)) as server:
            write_jsonl(file, self._records(server, runs))
            if server.missing:
                self.notes.append(
                    f"{len(server.missing)} answers have no tokens in the file, since {server.url} does not know them, "
                    f"or not any more: the server keeps completions for 30 days. The first is {server.missing[0]}"
                )

    def _records(self, server: LedgerRows, runs: Iterable[Trajectory]) -> Iterator[dict[str, Any]]:
        kind, make = FORMATS[self._format] if self._format else ("", _whole)
        skips, run_count, lines, completion_count, others = Skips(), 0, 0, 0, 0
        runs = _trainable(runs, skips) if self._format else runs
        for run, rows in server.of(runs, without=None if self._tokens else self._lacks):
            others += sum(call.id is None for call in run.completions)
            try:
                records = list(make(run, rows))
            except Unreadable as problem:
                skips.note(problem, None)
                continue
            run_count, lines, completion_count = run_count + 1, lines + len(records), completion_count + len(rows)
            yield from records
        self.notes += [f"left out: {problem}" for problem in skips]
        if others:
            self.notes.append(
                f"{others} answers of other models have neither tokens nor tools in the file: this project's gateway "
                "did not see them"
            )
        self.summary = f"{run_count} trajectories" + (f" as {lines} {kind}" if kind else "")
        self.summary += f", with the tokens of {completion_count} completions"

    def _lacks(self, why: str) -> None:
        self.notes.append(f"the file has no tokens and no tools, which only the trainer server knows: {why}")


def _trainable(runs: Iterable[Trajectory], skips: Skips) -> Iterator[Trajectory]:
    """The runs that another trainer may have."""
    for run in runs:
        if run.evaluation or run.hints:
            skips.note(_EVALUATES if run.evaluation else _HAS_HINTS, None)
        else:
            yield run


def _whole(run: Trajectory, rows: Rows) -> Iterator[dict[str, Any]]:
    yield with_tokens(run, rows)
