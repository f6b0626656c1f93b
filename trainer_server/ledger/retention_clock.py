"""The time by which retention counts the ages of what is recorded.

A clock that is ahead makes everything old, and what is deleted is gone for good. So this time follows the system's
clock only where something else confirms it: the newest record, and how long the server has been running.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from trainer_server.ledger.base import DatesCompletions, Ledger
from trainer_server.ledger.books import Books
from trainer_server.ledger.run_rows import set_source_place, source_place

log = logging.getLogger("trainer_server")

_AGREES = 86400.0
"""Seconds by which the clock may be ahead of what confirms it: a server may rest for a night."""
_CATCH_UP = 6.0
"""How many times as fast as the server's uptime ages grow where the clock is further ahead. A server that rested for
weeks catches up in days. A wrong clock deletes what is six hours older in each hour, so that there is time to set it.
"""
_SOURCE = "retention's clock"


class RetentionClock:
    """Counts the time for retention, over restarts of the server.

    Args:
        books: Where the time is written down. Their newest record, or that of the ledger, is where it begins.
        ledger: The ledger.
        clock: The system's clock, Unix seconds.
        uptime: Seconds that nobody can set.
    """

    def __init__(
        self,
        books: Books,
        ledger: Ledger,
        clock: Callable[[], float] = lambda: time.time(),
        uptime: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        self._books, self._ledger, self._clock, self._uptime = books, ledger, clock, uptime
        self._last_uptime = uptime()
        self._behind = False

    def lag(self) -> float:
        """By how many seconds the system's clock is ahead of the time by which ages count, which is written down: 0
        where they agree. Ages by the system's clock are too large by so much.

        Raises:
            LedgerError: The database cannot be read or written.
        """
        now, uptime = self._clock(), self._uptime()
        with self._books.writing() as db:
            reference_time = float(source_place(db, _SOURCE) or min(now, self._newest(now)))
            reference_time += uptime - self._last_uptime
            if now - reference_time <= _AGREES:
                reference_time = max(reference_time, now)  # a clock that was set back confirms no later jump
            else:
                reference_time = min(now, reference_time + (uptime - self._last_uptime) * (_CATCH_UP - 1))
            set_source_place(db, _SOURCE, repr(reference_time))
        self._last_uptime = uptime
        self._warn(now, reference_time)
        return max(0.0, now - reference_time)

    def _newest(self, now: float) -> float:
        """When something was recorded last, Unix time; `now` where nothing is."""
        moments = [self._ledger.newest() if isinstance(self._ledger, DatesCompletions) else None]
        with self._books.reading() as db:
            moments += [db.execute(f"SELECT max(changed) FROM {table}").fetchone()[0] for table in ("rollouts", "runs")]
        return max((moment for moment in moments if moment is not None), default=now)

    def _warn(self, now: float, confirmed_time: float) -> None:
        behind = now > confirmed_time
        if behind and not self._behind:
            log.warning(
                "the clock says %s, but the last that was recorded here is of %s: ages are counted from there, and "
                "hour by hour six hours are added, until the two agree. If the server rested for so long, all is well. "
                "Else set the clock: what is deleted after --keep-days is gone for good",
                _render_time(now),
                _render_time(confirmed_time),
            )
        self._behind = behind


def _render_time(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"
