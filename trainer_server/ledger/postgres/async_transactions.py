"""Transactions that an event loop waits for, and that outlast a restart of the database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import psycopg

from trainer_server.ledger.base import LedgerError
from trainer_server.ledger.postgres.database import Database, Db, is_away

T = TypeVar("T")

_THREADS = 8
"""Transactions at once: as many as a pool has connections."""
_PATIENCE = 15.0
"""Seconds for which a transaction is tried again while the database is not there, as when it restarts."""
_PAUSE = 0.2
"""Seconds between tries."""


class AsyncTransactions:
    """Runs transactions on threads of its own: those that wait for a database must not keep files from being read.

    Args:
        url: `postgresql://…`, as libpq reads it.
        part: As `Database` has it.
        migrations: As `Database` has it.

    Raises:
        ConfigError, LedgerError, NewerSchema: See `Database`.
    """

    def __init__(self, url: str, part: str, migrations: Sequence[str]) -> None:
        self._database = Database(url, part, migrations)
        self._threads = ThreadPoolExecutor(_THREADS, part)
        self._closed = False

    async def run(self, work: Callable[[Db], T]) -> T:
        """What `work` returns, which is one transaction. It may be run again after a failure of which nobody knows
        whether it was committed.

        Raises:
            LedgerError: The database does not answer, or refuses.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)

    def close(self) -> None:
        """Frees its resources. Transactions that are tried again and again end."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._database.close()

    def _run(self, work: Callable[[Db], T]) -> T:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                with self._database.connection("asked") as db, db.transaction():
                    return work(db)
            except LedgerError as error:
                cause = error.__cause__
                away = isinstance(cause, psycopg.Error) and is_away(cause)
                if self._closed or not away or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)
