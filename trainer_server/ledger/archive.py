"""Old months of the ledger as Parquet files. A month is written, read back, and only then deleted from the ledger."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from trainer_server.common.jsonl import from_json
from trainer_server.ledger.base import COLUMNS, GivesMonths, LedgerError, Month, Row
from trainer_server.wire import Completion

_SUFFIX, _PARTIAL = ".parquet", ".partial"
_AT_ONCE = 1000
"""Rows of a row group, which are in memory at once."""


class Archive:
    """The months that were archived: `archive/2026-08.parquet` has the completions of August 2026 (UTC).

    A caller that reads and changes it holds the lock meanwhile (`hold_lock`): rows come from the ledger while the
    server runs.

    Args:
        directory: Where the files are. It need not exist.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Nobody else archives or deletes while the context is open.

        Raises:
            LedgerError: Somebody does; or the lock cannot be made.
        """
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.directory / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise LedgerError(f"the archive at {self.directory} cannot be opened: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            message = f"completions are being archived in {self.directory}, or deleted: ask again when that has ended"
            raise LedgerError(message) from None
        try:
            for path in self.directory.glob(f".*{_PARTIAL}"):  # of a process that was killed
                path.unlink(missing_ok=True)
            yield
        finally:
            os.close(lock)

    def months(self) -> list[str]:
        """The months that it has, such as `2026-08`, the oldest first."""
        return sorted(path.name.removesuffix(_SUFFIX) for path in self.directory.glob(f"[0-9]*{_SUFFIX}"))

    def path(self, month: str) -> Path:
        """The file of a month."""
        return self.directory / f"{month}{_SUFFIX}"

    def rows(self, month: str) -> Iterator[Row]:
        """The rows of a month.

        Raises:
            LedgerError: The file cannot be read.
        """
        return _read(self.path(month))

    def read(self, ids: Collection[str]) -> dict[str, Completion]:
        """Looks completions up. Ids that it does not have are left out.

        Raises:
            LedgerError: A file cannot be read.
        """
        return {completion.id: completion for completion in self.completions(ids)}

    def completions(self, ids: Collection[str]) -> Iterator[Completion]:
        """The same, one after another."""
        id_set = set(ids)
        for month in self.months() if id_set else ():
            yield from (from_json(Completion, row[-1]) for row in self.rows(month) if row[0] in id_set)

    def matching(
        self, *, rollouts: Collection[str] = (), completions: Collection[str] = (), policy: str | None = None
    ) -> dict[str, str | None]:
        matches: dict[str, str | None] = {}
        of_rollouts, with_ids = set(rollouts), set(completions)
        for month in self.months():
            for completion_id, of_policy, rollout in _read(self.path(month), ("id", "policy", "rollout")):
                of_the_policy = policy is not None and of_policy == policy
                if of_the_policy or completion_id in with_ids or (rollout is not None and rollout in of_rollouts):
                    matches[completion_id] = rollout
        return matches

    def erase(self, completions: Collection[str]) -> None:
        """Deletes completions: the files that have them are written anew without them. Unknown ids are ignored.

        Raises:
            LedgerError: A file cannot be read or written.
        """
        ids = set(completions)
        for month in self.months() if ids else ():
            if any(completion_id in ids for (completion_id,) in _read(self.path(month), ("id",))):
                self.write(month, (row for row in self.rows(month) if row[0] not in ids))

    def write(self, month: str, rows: Iterable[Row]) -> int:
        """Writes the file of a month in place of the one that is there. Until it is whole and was read back, the
        earlier one stays. Without rows, there is no file afterwards.

        Args:
            month: The month.
            rows: The rows. They may be read from the file that is replaced.

        Returns:
            How many rows the file has.

        Raises:
            LedgerError: It cannot be written, or what is read back differs.
        """
        path = self.path(month)
        aside = self.directory / f".{path.name}{_PARTIAL}"
        try:
            count_and_digest = _write(aside, rows)
            if _digest(_read(aside)) != count_and_digest:
                raise LedgerError(f"{aside} was not written as it should: is the disk {self.directory} damaged?")
            if count_and_digest[0]:
                os.replace(aside, path)
            else:
                path.unlink(missing_ok=True)
            _flush(self.directory)
        except (OSError, _pyarrow()[0].ArrowException) as error:
            raise LedgerError(f"{path} cannot be written: {error}") from error
        finally:
            aside.unlink(missing_ok=True)
        return count_and_digest[0]


def archive_months(
    ledger: GivesMonths, archive: Archive, before: float, *, keep: Collection[str] = ()
) -> Iterator[tuple[str, int]]:
    """Moves completions from the ledger to the archive, a month after another. The server may run.

    A process that is killed meanwhile leaves each completion in the ledger, in the archive, or in both; the next call
    goes on, and the archive has it once.

    Args:
        ledger: The ledger.
        archive: The archive.
        before: Unix time from which on completions stay in the ledger.
        keep: Ids of completions that stay, because open jobs need them.

    Yields:
        Each month, and how many completions were moved.

    Raises:
        LedgerError: Ledger or archive cannot be read or written, or somebody else archives or deletes.
    """
    while True:
        with archive.hold_lock(), ledger.oldest_month(before, keep) as month:
            if month.name is None:
                return
            archive.write(month.name, _merge_rows(month, archive))
            count = month.delete()
        yield month.name, count


def _merge_rows(month: Month, archive: Archive) -> Iterator[Row]:
    """The rows of a month: those of the ledger, and those that were archived before."""
    yield from month.rows()
    if month.name is not None and archive.path(month.name).exists():
        yield from (row for row in archive.rows(month.name) if row[0] not in month)


def _write(path: Path, rows: Iterable[Row]) -> tuple[int, str]:
    arrow, parquet = _pyarrow()
    text = arrow.string()
    kinds = (text, arrow.float64(), text, arrow.int64(), text, text, text)
    schema = arrow.schema(list(zip(COLUMNS, kinds, strict=True)))
    count, digest = 0, hashlib.sha256()
    remaining = iter(rows)
    with open(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
        with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            while chunk := list(islice(remaining, _AT_ONCE)):
                columns = dict(zip(COLUMNS, map(list, zip(*chunk, strict=True)), strict=True))
                writer.write_table(arrow.table(columns, schema=schema))
                count += len(chunk)
                for row in chunk:
                    digest.update(repr(row).encode())
        file.flush()
        os.fsync(file.fileno())
    return count, digest.hexdigest()


def _read(path: Path, columns: Sequence[str] = COLUMNS) -> Iterator[Any]:
    """Rows of a file, as tuples of these columns."""
    arrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_AT_ONCE, columns=list(columns)):
                yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
    except (OSError, KeyError, arrow.ArrowException) as error:
        raise LedgerError(f"{path} cannot be read: {error}. Move it away if it is damaged") from error


def _digest(rows: Iterable[Row]) -> tuple[int, str]:
    count, digest = 0, hashlib.sha256()
    for row in rows:
        count += 1
        digest.update(repr(row).encode())
    return count, digest.hexdigest()


def _pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise LedgerError("the archive needs pyarrow: pip install 'art-langgraph[parquet]'") from None


def _flush(directory: Path) -> None:
    """Makes renames inside a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
