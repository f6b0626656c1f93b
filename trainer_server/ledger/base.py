"""What the server and the trainer process need of a ledger. SQLite has it; Postgres, for example, is one class more.

Everything above this package knows `Ledger` and `LedgerError`, and no database. See "A new ledger" in
docs/contributing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from trainer_server.wire import ARTError, Completion, Home

RETENTION_DAYS = 30.0
"""Days for which a completion is kept at least."""


class LedgerError(ARTError):
    """The ledger could not be written or read: a full disk, a database that is away.

    The gateway withholds an answer that could not be recorded.
    """


class Ledger(Protocol):
    """A store of completions.

    The server opens one ledger, adds to it and reads from it. The trainer process opens the same ledger by the same
    factory, and only reads. Methods that are not `async` may block; the server calls them on threads, several at once.
    """

    async def add(self, *completions: Completion) -> None:
        """Records completions, and returns once they survive a crash of this process and of the machine.

        A reader in any process sees them from then on. Called from the server's event loop, so it must not block it.

        Args:
            completions: A completion whose id is known already replaces the earlier one.

        Raises:
            LedgerError: At least one of them could not be recorded. A later call may succeed.
        """
        ...

    def read(self, ids: Sequence[str]) -> dict[str, Completion]:
        """Looks completions up.

        Args:
            ids: Ids of completions, as many as a training step has: thousands.

        Returns:
            The completions by id. Ids that the ledger does not know are left out.

        Raises:
            LedgerError: The ledger could not be read.
        """
        ...

    def sampled_versions(self, ids: Sequence[str]) -> set[tuple[str, int]]:
        """Which versions sampled these completions.

        Args:
            ids: Ids of completions; unknown ones count for nothing.

        Returns:
            (policy, version) pairs. Completions of the base model have none.

        Raises:
            LedgerError: The ledger could not be read.
        """
        ...

    def purge(self, *, keep: Iterable[str] = (), days: float = RETENTION_DAYS) -> int:
        """Deletes old completions. `add` must get through while this runs.

        Args:
            keep: Ids that stay, however old they are: open jobs need them.
            days: Completions that were created more than so many days ago are deleted.

        Returns:
            How many were deleted.

        Raises:
            LedgerError: The ledger could not be changed.
        """
        ...

    def close(self) -> None:
        """Records what `add` was given and has not returned from, and frees what the ledger holds."""
        ...


LedgerFactory = Callable[[Home], Ledger]
"""Opens a ledger for the server whose state lies under a home directory. Called once in the server and once in each
trainer process. Settings of its own, such as the address of a database, come from environment variables: the trainer
process inherits those of the server."""
