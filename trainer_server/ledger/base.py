"""The protocol of a ledger. One in SQLite and one in PostgreSQL implement it; another database needs one more class.

Other packages use `Ledger` and `LedgerError` only; they know no database. See
docs/contributing/ledger.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, runtime_checkable

from trainer_server.common import Home
from trainer_server.wire import ARTError, Completion, NotStored

RETENTION_DAYS = 30.0
"""Days for which a completion is kept where nobody says otherwise."""


class LedgerError(ARTError):
    """The ledger could not be written or read, for example because the disk is full or the database is down.

    The gateway withholds an answer that could not be recorded.
    """


class DiskFull(LedgerError, NotStored):
    """The ledger could not be written because its disk is full."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}. Free space on the disk, then ask again", code="disk")


class CompletionWriter(Protocol):
    """The part of a ledger that records answers."""

    async def add(self, *completions: Completion) -> None:
        """See `Ledger.add`."""
        ...


class Ledger(Protocol):
    """A store of completions.

    The server opens one ledger, adds to it and reads from it. The trainer process opens the same ledger by the same
    factory, and only reads. Methods that are not `async` may block; the server calls them on threads, several at once.
    """

    async def add(self, *completions: Completion) -> None:
        """Records completions, and returns once they survive a crash of this process and of the machine.

        From then on readers in any process see them. The server calls this on its event loop, so it must not block.

        Args:
            completions: A completion whose id is known already replaces the earlier completion.

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

    def rollout(self, rollout_id: str) -> list[Completion]:
        """All completions of a rollout, also those that were broken off.

        The server calls this for every rollout that has ended, so that it must not read the whole ledger.

        Args:
            rollout_id: Id of the rollout, as `Completion.rollout` has it.

        Returns:
            The completions in the order of their creation; none for an unknown rollout.

        Raises:
            LedgerError: The ledger could not be read.
        """
        ...

    def sampled_versions(self, ids: Sequence[str]) -> set[tuple[str, int]]:
        """The versions that sampled these completions.

        Args:
            ids: Ids of completions; unknown ids are ignored.

        Returns:
            (policy, version) pairs. Completions of the base model have none.

        Raises:
            LedgerError: The ledger could not be read.
        """
        ...

    def purge(self, *, keep: Iterable[str] = (), days: float = RETENTION_DAYS, most_bytes: int | None = None) -> int:
        """Deletes old completions. `add` must work while this runs.

        Args:
            keep: Ids of completions that open jobs need. They are not deleted, however old they are.
            days: Age in days above which completions are deleted.
            most_bytes: Size of all completions above which the oldest are deleted, about; None: no limit.

        Returns:
            How many completions were deleted.

        Raises:
            LedgerError: The ledger could not be changed.
        """
        ...

    def close(self) -> None:
        """Finishes the calls of `add` that have not returned, and frees the ledger's resources."""
        ...


class LedgerRow(NamedTuple):
    """A completion as a ledger writes it. Processes of one server pass it on."""

    id: str
    columns: Any
    """What the ledger's own class makes of the completion."""


@runtime_checkable
class TakesRows(Protocol):
    """What a ledger may have besides: a process that reads the ledger does most of the work of `add` for the one that
    writes (`serve --gateways`). It passes whole completions on to a ledger without it."""

    def row_of(self, completion: Completion) -> LedgerRow:
        """What `add` writes of a completion."""
        ...

    async def add_rows(self, rows: Sequence[LedgerRow]) -> None:
        """Records completions as `add` does."""
        ...


@dataclass(frozen=True, slots=True)
class CompletionSummary:
    """What a list of completions says of one of them."""

    place: int
    """Where it stands among the completions. Completions that are added later have higher places."""
    created: float
    """Unix time, seconds."""
    policy: str | None
    version: int | None
    rollout: str | None
    status: str
    tokens: int
    """Sampled tokens."""
    text: str
    """The beginning of the last message of the request."""


@runtime_checkable
class ListsCompletions(Protocol):
    """What a ledger may have besides: it lists what it recorded. The dashboard needs it to find runs that nobody
    registered, rewarded or reported; it says so where a ledger lacks it."""

    def recorded(self, after: int, limit: int) -> list[CompletionSummary]:
        """Completions in the order in which they were added.

        Args:
            after: Leaves out those up to this place; 0: none.
            limit: How many at most.

        Raises:
            LedgerError: The ledger could not be read.
        """
        ...


@runtime_checkable
class DatesCompletions(Protocol):
    """What a ledger may have besides: it says when it recorded last, so that retention can doubt a wrong clock."""

    def newest(self) -> float | None:
        """`created` of the newest completion; None: there is none. Raises LedgerError if it cannot be read."""
        ...


@runtime_checkable
class ErasesCompletions(Protocol):
    """What a ledger may have besides: it deletes completions that a user names, so that nothing of them is left. A
    server whose ledger lacks it refuses to delete rollouts and policies."""

    def matching(
        self, *, rollouts: Sequence[str] = (), completions: Sequence[str] = (), policy: str | None = None
    ) -> dict[str, str | None]:
        """The completions of rollouts, those with these ids, and those of a policy.

        Args:
            rollouts: Ids of rollouts.
            completions: Ids of completions.
            policy: Name of a policy; None: of none.

        Returns:
            By id: the completion's rollout; None: it has none. Those of a single rollout are in the order of their
            creation.

        Raises:
            LedgerError: The ledger could not be read.
        """
        ...

    def erase(self, completions: Sequence[str]) -> bool:
        """Deletes completions. When this returns, their text is in no file of the ledger. `add` must work meanwhile,
        and may wait.

        Args:
            completions: Ids; unknown ids are ignored.

        Returns:
            Whether the files were written anew. If not, what was deleted is overwritten in them.

        Raises:
            LedgerError: The ledger could not be changed. A later call with the same ids goes on.
        """
        ...


Row = tuple[str, float, str | None, int | None, str | None, str, str]
"""A row of the ledger: the values of COLUMNS."""
COLUMNS = ("id", "created", "policy", "version", "rollout", "status", "record")


class Month(Protocol):
    """The oldest month of which a ledger has completions that may leave it."""

    name: str | None
    """Such as `2026-08` (UTC); None: no completion may leave."""

    def __contains__(self, completion: object) -> bool: ...

    def rows(self) -> Iterator[Row]:
        """The rows of the month."""
        ...

    def delete(self) -> int:
        """Deletes the rows, a few at a time; returns how many."""
        ...


@runtime_checkable
class GivesMonths(Protocol):
    """What a ledger may have besides: it gives completions to the archive."""

    def oldest_month(self, before: float, keep: Collection[str] = ()) -> AbstractContextManager[Month]:
        """The oldest month, for the archive. `add` works meanwhile.

        Args:
            before: Unix time from which on completions stay in the ledger.
            keep: Ids of completions that stay.

        Raises:
            LedgerError: The ledger could not be read or changed.
        """
        ...


def month_of(moment: float) -> str:
    """The month of a Unix time, such as `2026-08` (UTC)."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m}"


def beginning(month: str, *, later: int = 0) -> float:
    """When a month begins, as Unix time.

    Args:
        month: Such as `2026-08`.
        later: So many months later; may be negative.
    """
    year, number = divmod(int(month[:4]) * 12 + int(month[5:]) - 1 + later, 12)
    return datetime(year, number + 1, 1, tzinfo=UTC).timestamp()


LedgerFactory = Callable[[Home], Ledger]
"""Opens a ledger for the server whose state lies under a home directory. It is called once in the server and once in
each trainer process. The ledger reads its own settings, such as the address of a database, from environment variables,
which `serve --trainer-env NAME` passes on to the trainer process."""
