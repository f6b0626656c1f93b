"""Records of remote graphs' runs, on their way from the process of the graph to the rollout that waits for them."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from trainer_server.wire import NotStored

MOST_BYTES = 256 * 2**20
"""How many bytes of records, with the ids of their runs, may wait to be fetched."""
_OVERHEAD = 1000
"""What a run counts besides its record and its ids, in bytes: also one that has only begun takes memory."""


@dataclass(eq=False, slots=True)
class _Call:
    """Runs that answered one call of a remote graph: several where a LangGraph server tried again."""

    expiry: float
    runs: dict[str, bytes | None] = field(default_factory=dict)
    """Record by run; None: the run has not ended."""

    @property
    def ended(self) -> bool:
        return all(record is not None for record in self.runs.values())


class RemoteRunBuffer:
    """Keeps each record until its rollout ends, `seconds` from the last news of its call at most.

    The records are kept in memory only: the process that made them has them in its trajectory store too.

    Args:
        seconds: How long a record waits to be fetched.
        most_bytes: How many bytes of records may wait, with the ids of their runs and _OVERHEAD for each.
        clock: Gives the time, in seconds.
    """

    def __init__(
        self, seconds: float, most_bytes: int = MOST_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._most_bytes, self._clock = seconds, most_bytes, clock
        self._calls: OrderedDict[tuple[str, str], _Call] = OrderedDict()
        """By rollout and call. The call with the latest news stands last."""
        self._of_rollout: dict[str, set[tuple[str, str]]] = {}
        self._bytes = 0
        self._news = asyncio.Event()

    def put(self, rollout: str, call: str, run: str, record: bytes | None) -> None:
        """A run has begun, or ended.

        Args:
            rollout: Id of the rollout.
            call: Id that the rollout gave to its call of the remote graph.
            run: Id of the run.
            record: What the run did; None: it has begun.

        Raises:
            NotStored: Too many records wait.
        """
        self._expire()
        key = rollout, call
        before = self._calls.get(key)
        has_begun = before is not None and run in before.runs
        size = len(record or b"") if has_begun else _size(key, run, record)
        if self._bytes + size > self._most_bytes:
            raise NotStored(
                f"{self._bytes / 2**20:.0f} MiB of records of remote runs wait to be fetched by their rollouts, and "
                f"{self._most_bytes / 2**20:.0f} MiB are the most: run fewer rollouts at once",
                code="records_full",
            )
        entry = self._calls.setdefault(key, _Call(0.0))
        self._of_rollout.setdefault(rollout, set()).add(key)
        if record is not None or not has_begun:
            self._bytes += size - len(entry.runs.get(run) or b"")
            entry.runs[run] = record
        entry.expiry = self._clock() + self._seconds
        self._calls.move_to_end(key)
        self._news.set()
        self._news = asyncio.Event()

    async def get(self, rollout: str, call: str, wait: float) -> tuple[list[bytes], bool] | None:
        """The records of a call's runs, in the order in which the runs began.

        Args:
            rollout: Id of the rollout.
            call: Id of the call.
            wait: Seconds to wait at most until all of its runs have ended.

        Returns:
            The records of the runs that have ended, and whether all have; None when no run has begun.
        """
        deadline = self._clock() + wait
        while (entry := self._calls.get((rollout, call))) is None or not entry.ended:
            news, seconds = self._news, deadline - self._clock()
            if seconds <= 0:
                break
            try:
                await asyncio.wait_for(news.wait(), seconds)
            except TimeoutError:
                break
        entry = self._calls.get((rollout, call))
        if entry is None:
            return None
        return [record for record in entry.runs.values() if record is not None], entry.ended

    def drop(self, rollouts: Collection[str]) -> None:
        """Forgets the records of rollouts that have ended."""
        for rollout in rollouts:
            for key in tuple(self._of_rollout.get(rollout, ())):
                self._forget(key)

    def _expire(self) -> None:
        now = self._clock()
        while self._calls and next(iter(self._calls.values())).expiry < now:
            self._forget(next(iter(self._calls)))

    def _forget(self, key: tuple[str, str]) -> None:
        self._bytes -= sum(_size(key, run, record) for run, record in self._calls.pop(key).runs.items())
        keys = self._of_rollout[key[0]]
        keys.discard(key)
        if not keys:
            del self._of_rollout[key[0]]


def _size(key: tuple[str, str], run: str, record: bytes | None) -> int:
    return sum(map(len, (*key, run, record or b""))) + _OVERHEAD
