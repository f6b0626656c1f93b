"""The book of runs: what each rollout did, as far as the ledger does not have it, and the list of all runs.

It is written when something becomes known of a run: a trace by its client, a reward, a step that it was sent to. What
the ledger recorded is read from it in order (`follow`), so that the gateway does no work for the list.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from trainer_server.common.jsonl import explain, from_json, to_json
from trainer_server.ledger.base import RETENTION_DAYS, CompletionSummary
from trainer_server.ledger.books import Books, Connection, chunks
from trainer_server.ledger.commits import delete_in_slices
from trainer_server.ledger.redaction import Redaction
from trainer_server.ledger.run_rows import (
    change,
    note_text,
    note_trace,
    note_version,
    row_of,
    set_source_place,
    source_place,
)
from trainer_server.wire import CompletionStatus, Gone, RunTrace
from trainer_server.wire.numbers import MOST_REWARD
from trainer_server.wire.text import writable

log = logging.getLogger("trainer_server")

_TABLES = ("run_versions", "run_traces", "run_steps", "run_nodes")
_LOOSE = "completions without a rollout"


@dataclass(frozen=True, slots=True)
class SentReference:
    """A run, or a part of it, in the request of a training step."""

    run: str
    """Id of the rollout."""
    reference: str
    """Id of the trajectory, as the request names it."""
    reward: float | None
    whole: bool = True
    """Whether the reference is the whole run, so that its reward is that of the run."""


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """The report of a client on a run that has ended."""

    run: str
    """Id of the rollout."""
    trace: RunTrace
    answer: str = ""
    """The beginning of what it answered, for a search."""


class RunRepository:
    """All runs of a server. Any thread may call it.

    All methods raise LedgerError when the database cannot be read or written.

    Args:
        books: The database.
        redaction: Changes texts before they are written.

    Attributes:
        books: The database.
    """

    def __init__(self, books: Books, redaction: Redaction | None = None) -> None:
        self.books = books
        self._redaction = redaction or Redaction()

    def trace(self, run_id: str, trace: RunTrace, answer: str = "") -> None:
        """Records the report of a client on a run, in place of an earlier one. When this returns, it survives a crash.

        Args:
            run_id: Id of the rollout.
            trace: What the run did.
            answer: The beginning of what it answered, for a search.

        Raises:
            Gone: A user deleted the rollout.
        """
        if self.traces([ReportedRun(run_id, trace, answer)]):
            raise Gone(f"rollout {run_id!r} was deleted: what is told of it now is not kept", code="deleted")

    def traces(self, reports: Sequence[ReportedRun]) -> list[str]:
        """Records reports of clients on several runs, in one transaction. When this returns, it survives a crash.

        Args:
            reports: The runs.

        Returns:
            Those that a user deleted. Nothing is kept of them.
        """
        entries = [
            ReportedRun(report.run, self._redaction.trace(report.trace), self._redaction.text(report.answer))
            for report in reports
        ]
        records = [zlib.compress(to_json(report.trace).encode(), 6) for report in entries]
        refusals = []
        query = "INSERT INTO run_traces VALUES (?, ?) ON CONFLICT (run) DO UPDATE SET record = excluded.record"
        with self.books.writing() as db:
            for report, record in zip(entries, records, strict=True):
                if db.execute("SELECT 1 FROM erased WHERE rollout = ?", (writable(report.run),)).fetchone():
                    refusals.append(report.run)
                else:
                    number = note_trace(db, report.run, report.trace, report.answer)
                    db.execute(query, (number, record))
        return refusals

    def find_trace(self, run_id: str) -> RunTrace | None:
        """The report of a client on a run; None: there is none."""
        query = "SELECT record FROM run_traces JOIN runs ON number = run WHERE id = ?"
        with self.books.reading() as db:
            row = db.execute(query, (writable(run_id),)).fetchone()
        try:
            return from_json(RunTrace, zlib.decompress(row[0]).decode()) if row else None
        except ValueError as error:  # an earlier release took values that cannot be read
            log.error("the trace of rollout %r cannot be read, and is shown as none: %s", run_id, explain(error))
            return None

    def place(self, source: str) -> str:
        """How far a source was read; empty: it was not."""
        with self.books.reading() as db:
            return source_place(db, source)

    def follow(self, completions: Sequence[CompletionSummary]) -> None:
        """Takes completions into the list that the ledger has recorded since the last call, in their order. Those that
        are in it already change nothing."""
        if not completions:
            return
        with self.books.writing() as db:
            place = int(source_place(db, "ledger") or 0)
            _follow(db, [completion for completion in completions if completion.place > place])

    def loose(self) -> int:
        """How many completions belonged to no rollout, so that they are in no run."""
        return int(self.place(_LOOSE) or 0)

    def step(self, job: str, policy: str, references: Sequence[SentReference]) -> None:
        """Notes which runs a training step was sent.

        Args:
            job: Id of the job. Jobs up to this one are not asked for again.
            policy: That the step trains.
            references: The runs.
        """
        with self.books.writing() as db:
            for entry in references:
                number = row_of(db, entry.run)
                row = (number, job, policy, writable(entry.reference), entry.reward)
                query = (
                    "INSERT INTO run_steps VALUES (?, ?, ?, ?, ?) ON CONFLICT (run, job, reference) "
                    "DO UPDATE SET policy = excluded.policy, reward = excluded.reward"
                )
                db.execute(query, row)
                if entry.whole and entry.reward is not None and abs(entry.reward) <= MOST_REWARD:
                    query = "UPDATE runs SET reward = ?, rewarded_by = 'step' WHERE number = ? AND reward IS NULL"
                    db.execute(query, (entry.reward, number))
            set_source_place(db, "jobs", job)

    def purge(self, days: float = RETENTION_DAYS) -> int:
        """Deletes runs that nothing was recorded of for so many days, with the reports of clients on them.

        Returns:
            How many.
        """
        before = time.time() - days * 86400
        old = "SELECT number FROM runs WHERE changed < ? ORDER BY changed LIMIT ?"

        def delete(most: int) -> int:
            with self.books.writing() as db:
                return _delete(db, [number for (number,) in db.execute(old, (before, most))])

        with self.books.writing() as db:
            db.execute("DELETE FROM run_minutes WHERE minute < ?", (int(before // 60),))
        return delete_in_slices(delete)

    def shed(self, most_bytes: int, keep: Collection[str] = ()) -> int:
        """Deletes reports of clients, those on the runs that began first, until the rest is small enough. The
        runs stay in the list.

        Args:
            most_bytes: Size of all reports, compressed.
            keep: Ids of runs of which nothing is deleted.

        Returns:
            Of how many runs.
        """
        with self.books.reading() as db:
            (size,) = db.execute("SELECT coalesce(sum(length(record)), 0) FROM run_traces").fetchone()
        excess = int(size) - most_bytes
        oldest = (
            "SELECT number, id, length(record) FROM runs JOIN run_traces ON run = number "
            "ORDER BY number LIMIT ?"  # a clock that was set back changes no order of rows
        )

        def delete(most: int) -> int:
            nonlocal excess
            numbers_of_runs: list[int] = []
            with self.books.writing() as db:
                for number, run_id, length in db.execute(oldest, (most + len(keep),)).fetchall():
                    if excess > 0 and len(numbers_of_runs) < most and run_id not in keep:
                        numbers_of_runs.append(number)
                        excess -= length
                for marks, numbers in chunks(numbers_of_runs):
                    db.execute(f"DELETE FROM run_traces WHERE run IN ({marks})", numbers)
                    db.execute(f"UPDATE runs SET traced = 0 WHERE number IN ({marks})", numbers)
            return len(numbers_of_runs)

        return delete_in_slices(delete) if excess > 0 else 0

    def of_policy(self, policy: str) -> set[str]:
        """Ids of the runs in which a policy answered, as the ledger recorded it. Reports of clients do not count."""
        query = "SELECT id FROM runs JOIN run_versions ON run = number WHERE run_versions.policy = ? AND recorded = 1"
        with self.books.reading() as db:
            return {run_id for (run_id,) in db.execute(query, (policy,))}

    def erase(self, run_ids: Sequence[str], policy: str | None = None) -> int:
        """Deletes runs, with the reports of clients on them. A trace of one that still comes is refused.

        Args:
            run_ids: Ids of rollouts.
            policy: A policy that is deleted with them: what it answered each minute, and its steps.

        Returns:
            How many runs were there.
        """
        names, count = [writable(run_id) for run_id in run_ids], 0
        with self.books.writing() as db:
            for marks, ids in chunks(names):
                rows = db.execute(f"SELECT number FROM runs WHERE id IN ({marks})", ids)
                count += _delete(db, [number for (number,) in rows])
            db.executemany("INSERT INTO erased VALUES (?) ON CONFLICT DO NOTHING", [(name,) for name in names])
            if policy is not None:
                for table in ("run_minutes", "run_steps", "run_versions"):
                    db.execute(f"DELETE FROM {table} WHERE policy = ?", (policy,))
                _name_another(db, policy)
        return count

    def overwrite(self) -> bool:
        """Leaves nothing of what was deleted in the files of the database; see `Books.overwrite`."""
        return self.books.overwrite()


def _follow(db: Connection, completions: Sequence[CompletionSummary]) -> None:
    """Adds completions to the list."""
    if not completions:
        return
    runs: defaultdict[str, list[CompletionSummary]] = defaultdict(list)
    minutes: defaultdict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for completion in completions:
        if completion.rollout is not None:
            runs[completion.rollout].append(completion)
        counts = minutes[int(completion.created // 60), completion.policy or ""]
        counts[0] += 1
        counts[1] += completion.tokens
        counts[2] += completion.status != CompletionStatus.complete
    for run_id, calls in runs.items():
        _note_calls(db, run_id, calls)
    sums = ", ".join(f"{name} = run_minutes.{name} + excluded.{name}" for name in ("completions", "tokens", "failed"))
    db.executemany(
        f"INSERT INTO run_minutes VALUES (?, ?, ?, ?, ?) ON CONFLICT (minute, policy) DO UPDATE SET {sums}",
        [(*key, *counts) for key, counts in minutes.items()],
    )
    loose = sum(completion.rollout is None for completion in completions)
    set_source_place(db, _LOOSE, str(loose + int(source_place(db, _LOOSE) or 0)))
    set_source_place(db, "ledger", str(completions[-1].place))


def _name_another(db: Connection, policy: str) -> None:
    """Runs that stay, where a client reported that a deleted policy answered in them: their rows name another one."""
    first = "(SELECT {} FROM run_versions WHERE run = number ORDER BY policy, version LIMIT 1)"
    query = f"UPDATE runs SET policy = {first.format('policy')}, version = {first.format('version')} WHERE policy = ?"
    db.execute(query, (policy,))


def _delete(db: Connection, numbers: Sequence[int]) -> int:
    """Deletes runs with all that is known of them. Returns how many were there."""
    count = 0
    for marks, runs in chunks(numbers):
        for table in _TABLES:
            db.execute(f"DELETE FROM {table} WHERE run IN ({marks})", runs)
        db.execute(f"DELETE FROM run_texts WHERE rowid IN ({marks})", runs)
        count += db.execute(f"DELETE FROM runs WHERE number IN ({marks})", runs).rowcount
    return count


def _note_calls(db: Connection, run_id: str, calls: Sequence[CompletionSummary]) -> None:
    """Adds completions of a run to its row."""
    number = row_of(db, run_id, min(call.created for call in calls))
    (earlier,) = db.execute("SELECT traced FROM runs WHERE number = ?", (number,)).fetchone()
    last = max(call.created for call in calls)
    db.execute(
        "UPDATE runs SET calls = calls + ?, tokens = tokens + ?, "
        "seconds = CASE WHEN ? - started > seconds THEN ? - started ELSE seconds END WHERE number = ?",
        (len(calls), sum(call.tokens for call in calls), last, last, number),
    )
    for policy, version in dict.fromkeys((call.policy, call.version) for call in calls):
        if policy is not None and version is not None:
            note_version(db, number, policy, version, recorded=True)
    failures = [call.status for call in calls if call.status != CompletionStatus.complete]
    if failures and not earlier:  # a client that reported the run knows better whether it failed
        change(db, number, failed=f"an answer is {failures[-1]}")
    note_text(db, number, calls[0].text, only_first=True)
