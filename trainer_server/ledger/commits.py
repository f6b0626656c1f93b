"""How ledgers write: completions share transactions, and are deleted in slices that let others write meanwhile."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from trainer_server.ledger.base import LedgerError, LedgerRow
from trainer_server.wire import Completion

_BATCH = 512
"""Largest number of calls of `add` that share a transaction."""

_SLICE_SECONDS = 0.02
"""Seconds that a slice should take: others wait for about as long."""
_FIRST, _FEWEST, _MOST = 50, 10, 1000
"""Rows of the first slice, and bounds of the others."""

Record = Completion | LedgerRow
_Entry = tuple[Sequence[Record], asyncio.Future[None]]
"""Completions of a call of `add`, and the future that is resolved once they are durable."""
_Outcome = tuple[asyncio.Future[None], LedgerError | None]
"""Such a future, and why the completions could not be written; None: they are."""


class GroupCommit:
    """Writes completions on a thread of its own, which the first `add` starts. A process that only reads has no such
    thread.

    Args:
        write: Writes completions in one transaction, and returns once they are durable. A LedgerError says that none of
            them could be written. Any other exception says that one of them is at fault: each is then written by
            itself. It is called on the thread.
        finish: Called on the thread at its end.
    """

    def __init__(self, write: Callable[[Sequence[Record]], None], finish: Callable[[], None]) -> None:
        self._write, self._finish = write, finish
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def add(self, completions: Sequence[Record]) -> None:
        """Returns once the completions are durable. Raises LedgerError if one of them could not be written."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
            self._thread.start()
        future = asyncio.get_running_loop().create_future()
        self._queue.put((completions, future))
        await future

    def close(self) -> None:
        """Writes what is still queued, and ends the thread."""
        if self._thread is None:
            return
        self._queue.put(None)
        self._thread.join()
        self._thread = None

    def _run(self) -> None:
        last = False
        while not last and (first := self._queue.get()) is not None:
            batch = [first]
            while len(batch) < _BATCH and not self._queue.empty():
                if (more := self._queue.get()) is None:
                    last = True
                    break
                batch.append(more)
            self._commit(batch)
        self._finish()

    def _commit(self, batch: Sequence[_Entry]) -> None:
        """Writes rows in one transaction, and resolves the futures of the callers of `add`."""
        outcomes: list[_Outcome]
        try:
            self._write([completion for completions, _ in batch for completion in completions])
            outcomes = [(future, None) for _, future in batch]
        except LedgerError as error:
            outcomes = [(future, error) for _, future in batch]
        except Exception:  # one row is at fault: the thread must go on, or every later answer would hang
            outcomes = [(future, self._write_singly(completions)) for completions, future in batch]
        _resolve(outcomes)

    def _write_singly(self, completions: Sequence[Record]) -> LedgerError | None:
        """Writes each row by itself. Returns the first error."""
        first: LedgerError | None = None
        for completion in completions:
            try:
                self._write([completion])
            except LedgerError as error:
                first = first or error
            except Exception as error:
                first = first or LedgerError(f"{completion.id} cannot be written to the ledger: {error}")
        return first


def _resolve(outcomes: Sequence[_Outcome]) -> None:
    """Resolves futures on their loops, all of a loop at once: each call wakes it."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome[0].get_loop(), []).append(outcome)
    for loop, of_loop in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: no caller waits any more
            loop.call_soon_threadsafe(_settle, of_loop)


def _settle(outcomes: Sequence[_Outcome]) -> None:
    for future, error in outcomes:
        if future.done():  # the request was cancelled meanwhile; the row is written all the same
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def delete_in_slices(delete: Callable[[int], int]) -> int:
    """Deletes rows a few at a time.

    SQLite does not queue writers: one that waits looks again after some milliseconds. So each slice is followed by a
    pause as long as the slice took. That also leaves a database server half of its time for others.

    Args:
        delete: Deletes at most so many rows, in a transaction of its own, and returns how many. Fewer end the deletion.

    Returns:
        How many rows were deleted.
    """
    rows, total = _FIRST, 0
    while True:
        start = time.monotonic()
        count = delete(rows)
        seconds = time.monotonic() - start
        total += count
        if count < rows:
            return total
        time.sleep(seconds)
        rows = max(_FEWEST, min(_MOST, int(rows * _SLICE_SECONDS / max(seconds, 1e-6))))
