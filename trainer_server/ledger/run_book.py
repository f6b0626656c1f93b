"""The book of runs: what each rollout did, as far as the ledger does not have it, and the list of all runs.

It is written when something becomes known of a run: a trace by its client, a reward, a step that it was sent to. What
the ledger recorded is read from it in order (`follow`), so that the gateway does no work for the list.
"""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from trainer_server.ledger.base import RETENTION_DAYS, Recorded
from trainer_server.ledger.redaction import Redaction
from trainer_server.ledger.run_rows import change, note_text, note_trace, note_version, row_of
from trainer_server.ledger.sqlite.file import LedgerFile
from trainer_server.ledger.sqlite.slices import delete_in_slices
from trainer_server.wire import CompletionStatus, Gone, RunTrace
from trainer_server.wire.jsonl import from_json, to_json
from trainer_server.wire.text import writable

_TABLES = ("run_versions", "run_traces", "run_steps")
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
class Told:
    """What a client told of a run that has ended."""

    run: str
    """Id of the rollout."""
    trace: RunTrace
    answer: str = ""
    """The beginning of what it answered, for a search."""


class RunBook:
    """All runs of a server. Any thread may call it; this process is the only writer.

    Args:
        path: The file of the rollouts. It is created if it does not exist.
        redaction: Changes texts before they are written.

    Raises:
        LedgerError: The file cannot be made or opened. All methods raise it when the file cannot be read or written.
    """

    def __init__(self, path: Path, redaction: Redaction | None = None) -> None:
        self._redaction = redaction or Redaction()
        self._file = LedgerFile(path, "runs")

    def opened(self) -> AbstractContextManager[sqlite3.Connection]:
        """A connection for reading, closed at the end of the block."""
        return self._file.opened()

    def trace(self, run_id: str, trace: RunTrace, answer: str = "") -> None:
        """Records what a client told of a run, in place of what it told before. When this returns, it survives a crash.

        Args:
            run_id: Id of the rollout.
            trace: What the run did.
            answer: The beginning of what it answered, for a search.

        Raises:
            Gone: A user deleted the rollout.
        """
        if self.traces([Told(run_id, trace, answer)]):
            raise Gone(f"rollout {run_id!r} was deleted: what is told of it now is not kept", code="deleted")

    def traces(self, told: Sequence[Told]) -> list[str]:
        """Records what clients told of several runs, in one transaction. When this returns, it survives a crash.

        Args:
            told: The runs.

        Returns:
            Those that a user deleted. Nothing is kept of them.
        """
        redacted = [Told(one.run, self._redaction.trace(one.trace), self._redaction.text(one.answer)) for one in told]
        records = [zlib.compress(to_json(one.trace).encode(), 6) for one in redacted]
        deleted = []
        with self._file.lock, self._file.opened() as db, db:
            for one, record in zip(redacted, records, strict=True):
                if db.execute("SELECT 1 FROM erased WHERE rollout = ?", (writable(one.run),)).fetchone():
                    deleted.append(one.run)
                else:
                    number = note_trace(db, one.run, one.trace, one.answer)
                    db.execute("INSERT OR REPLACE INTO run_traces VALUES (?, ?)", (number, record))
        return deleted

    def traced(self, run_id: str) -> RunTrace | None:
        """What a client told of a run; None: nothing."""
        query = "SELECT record FROM run_traces JOIN runs ON number = run WHERE id = ?"
        with self._file.opened() as db:
            row = db.execute(query, (writable(run_id),)).fetchone()
        return from_json(RunTrace, zlib.decompress(row[0]).decode()) if row else None

    def place(self, source: str) -> str:
        """How far a source was read; empty: it was not."""
        with self._file.opened() as db:
            row = db.execute("SELECT place FROM run_sources WHERE source = ?", (source,)).fetchone()
        return str(row[0]) if row else ""

    def follow(self, completions: Sequence[Recorded]) -> None:
        """Takes completions into the list that the ledger has recorded since the last call, in their order."""
        if not completions:
            return
        runs: defaultdict[str, list[Recorded]] = defaultdict(list)
        minutes: defaultdict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        for one in completions:
            if one.rollout is not None:
                runs[one.rollout].append(one)
            counts = minutes[int(one.created // 60), one.policy or ""]
            counts[0] += 1
            counts[1] += one.tokens
            counts[2] += one.status != CompletionStatus.complete
        loose = sum(one.rollout is None for one in completions)
        with self._file.lock, self._file.opened() as db, db:
            for run_id, calls in runs.items():
                _note_calls(db, run_id, calls)
            db.executemany(
                "INSERT INTO run_minutes VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET completions = completions + "
                "excluded.completions, tokens = tokens + excluded.tokens, failed = failed + excluded.failed",
                [(*key, *counts) for key, counts in minutes.items()],
            )
            _set_place(db, _LOOSE, str(loose + int(_place(db, _LOOSE) or 0)))
            _set_place(db, "ledger", str(completions[-1].place))

    def loose(self) -> int:
        """How many completions belonged to no rollout, so that they are in no run."""
        return int(self.place(_LOOSE) or 0)

    def step(self, job: str, policy: str, sent: Sequence[SentReference]) -> None:
        """Notes which runs a training step was sent.

        Args:
            job: Id of the job. Jobs up to this one are not asked for again.
            policy: That the step trains.
            sent: The runs.
        """
        with self._file.lock, self._file.opened() as db, db:
            for one in sent:
                number = row_of(db, one.run)
                row = (number, job, policy, writable(one.reference), one.reward)
                db.execute("INSERT OR REPLACE INTO run_steps VALUES (?, ?, ?, ?, ?)", row)
                if one.whole and one.reward is not None:
                    query = "UPDATE runs SET reward = ?, rewarded_by = 'step' WHERE number = ? AND reward IS NULL"
                    db.execute(query, (one.reward, number))
            _set_place(db, "jobs", job)

    def purge(self, days: float = RETENTION_DAYS) -> int:
        """Deletes runs that nothing was recorded of for so many days, with all that clients told of them.

        Returns:
            How many.
        """
        before = time.time() - days * 86400
        old = "SELECT number FROM runs WHERE changed < ? ORDER BY changed LIMIT ?"

        def delete(most: int) -> int:
            with self._file.lock, self._file.opened() as db, db:
                return _delete(db, [number for (number,) in db.execute(old, (before, most))])

        with self._file.lock, self._file.opened() as db, db:
            db.execute("DELETE FROM run_minutes WHERE minute < ?", (int(before // 60),))
        return delete_in_slices(delete)

    def of_policy(self, policy: str) -> set[str]:
        """Ids of the runs in which a policy answered."""
        query = "SELECT id FROM runs JOIN run_versions ON run = number WHERE run_versions.policy = ?"
        with self._file.opened() as db:
            return {one for (one,) in db.execute(query, (policy,))}

    def erase(self, run_ids: Sequence[str], policy: str | None = None) -> int:
        """Deletes runs, with all that clients told of them. A trace of one that still comes is refused.

        Args:
            run_ids: Ids of rollouts.
            policy: A policy that is deleted with them: what it answered each minute, and its steps.

        Returns:
            How many runs were there.
        """
        ids = (json.dumps([writable(one) for one in run_ids]),)
        wanted = "SELECT number FROM runs WHERE id IN (SELECT value FROM json_each(?))"
        with self._file.lock, self._file.opened() as db, db:
            deleted = _delete(db, [number for (number,) in db.execute(wanted, ids)])
            db.execute("INSERT OR IGNORE INTO erased SELECT value FROM json_each(?)", ids)
            if policy is not None:
                for table in ("run_minutes", "run_steps"):
                    db.execute(f"DELETE FROM {table} WHERE policy = ?", (policy,))
            db.execute("INSERT INTO run_texts (run_texts) VALUES ('optimize')")  # else its index keeps deleted words
        return deleted

    def overwrite(self) -> bool:
        """Leaves nothing of what was deleted in the file of the rollouts; see `overwrite_deleted`."""
        return self._file.overwrite()


def _delete(db: sqlite3.Connection, numbers: Sequence[int]) -> int:
    """Deletes runs with all that is known of them. In a transaction. Returns how many were there."""
    runs = (json.dumps(numbers),)
    for table in _TABLES:
        db.execute(f"DELETE FROM {table} WHERE run IN (SELECT value FROM json_each(?))", runs)
    db.execute("DELETE FROM run_texts WHERE rowid IN (SELECT value FROM json_each(?))", runs)
    return db.execute("DELETE FROM runs WHERE number IN (SELECT value FROM json_each(?))", runs).rowcount


def _note_calls(db: sqlite3.Connection, run_id: str, calls: Sequence[Recorded]) -> None:
    """Adds completions of a run to its row."""
    number = row_of(db, run_id, min(one.created for one in calls))
    (earlier,) = db.execute("SELECT traced FROM runs WHERE number = ?", (number,)).fetchone()
    db.execute(
        "UPDATE runs SET calls = calls + ?, tokens = tokens + ?, seconds = max(seconds, ? - started) WHERE number = ?",
        (len(calls), sum(one.tokens for one in calls), max(one.created for one in calls), number),
    )
    for policy, version in dict.fromkeys((one.policy, one.version) for one in calls):
        if policy is not None and version is not None:
            note_version(db, number, policy, version)
    broken = [one.status for one in calls if one.status != CompletionStatus.complete]
    if broken and not earlier:  # a client that told of the run knows better whether it failed
        change(db, number, failed=f"an answer is {broken[-1]}")
    note_text(db, number, calls[0].text, only_first=True)


def _place(db: sqlite3.Connection, source: str) -> str:
    row = db.execute("SELECT place FROM run_sources WHERE source = ?", (source,)).fetchone()
    return str(row[0]) if row else ""


def _set_place(db: sqlite3.Connection, source: str, place: str) -> None:
    db.execute("INSERT OR REPLACE INTO run_sources VALUES (?, ?)", (source, place))
