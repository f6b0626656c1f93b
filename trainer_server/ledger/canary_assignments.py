"""Which version each rollout was given while a candidate was tried: rows beside the registrations of rollouts.

A rollout keeps what it was given, also after the end of the trial and over a restart of the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from trainer_server.ledger.base import RETENTION_DAYS
from trainer_server.ledger.books import Books, Connection, chunks
from trainer_server.ledger.commits import delete_in_slices
from trainer_server.wire import Candidate
from trainer_server.wire.text import writable


class CanaryAssignments:
    """The draws of all policies. Any thread may call it.

    All methods raise LedgerError when the database cannot be read or written.

    Args:
        books: The database.
    """

    def __init__(self, books: Books) -> None:
        self._books = books

    def policies(self) -> set[str]:
        """The policies that have draws."""
        with self._books.reading() as db:
            return {policy for (policy,) in db.execute("SELECT DISTINCT policy FROM draws")}

    def version(self, policy: str, rollout: str) -> int | None:
        """The version of a policy that a rollout was given; None: nothing was drawn for it."""
        with self._books.reading() as db:
            return _version(db, policy, rollout)

    def draw(self, policy: str, rollout: str, candidate: Candidate, takes: Callable[[int, int], bool]) -> int:
        """Gives a rollout the candidate or the promoted version. When this returns, that survives a crash.

        Args:
            policy: Name of the policy.
            rollout: Id of the rollout. One that was given a version before keeps it.
            candidate: The trial.
            takes: Whether the candidate answers, by how many rollouts were drawn in this trial before, and how many
                of them were given the candidate.

        Returns:
            The version.
        """
        with self._books.writing() as db:
            if (earlier := _version(db, policy, rollout)) is not None:
                return earlier
            is_candidate = takes(*_counts(db, policy, candidate))
            version = candidate.version if is_candidate else candidate.beside
            row = (policy, writable(rollout), candidate.since, version, int(is_candidate), time.time())
            db.execute("INSERT INTO draws VALUES (?, ?, ?, ?, ?, ?)", row)
            return version

    def counts(self, policy: str, candidate: Candidate) -> tuple[int, int]:
        """How many rollouts were drawn in a trial, and how many of them were given the candidate."""
        with self._books.reading() as db:
            return _counts(db, policy, candidate)

    def erase(self, rollouts: Sequence[str], policy: str | None = None) -> None:
        """Deletes the draws of rollouts, and those of a policy that is deleted."""
        with self._books.writing() as db:
            for marks, ids in chunks([writable(rollout) for rollout in rollouts]):
                db.execute(f"DELETE FROM draws WHERE rollout IN ({marks})", ids)
            db.execute("DELETE FROM draws WHERE policy = ?", (policy,))

    def purge(self, days: float = RETENTION_DAYS) -> None:
        """Deletes draws that are older than so many days: the ledger has no completions of their rollouts any more."""
        before = time.time() - days * 86400
        old = "SELECT policy, rollout FROM draws WHERE time < ? ORDER BY time LIMIT ?"

        def delete(most: int) -> int:
            with self._books.writing() as db:
                return db.execute(f"DELETE FROM draws WHERE (policy, rollout) IN ({old})", (before, most)).rowcount

        delete_in_slices(delete)


def _version(db: Connection, policy: str, rollout: str) -> int | None:
    query = "SELECT version FROM draws WHERE policy = ? AND rollout = ?"
    row = db.execute(query, (policy, writable(rollout))).fetchone()
    return int(row[0]) if row else None


def _counts(db: Connection, policy: str, candidate: Candidate) -> tuple[int, int]:
    query = "SELECT count(*), coalesce(sum(taken), 0) FROM draws WHERE policy = ? AND trial = ?"
    rollouts, candidates = db.execute(query, (policy, candidate.since)).fetchone()
    return int(rollouts), int(candidates)
