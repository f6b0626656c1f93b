"""A thread that calls trackers, so that a training never waits for one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

MOST = 256
"""Calls that may wait. Later ones are left out, and counted."""
_IDLE = 5.0
"""Seconds without a call after which the thread ends; the next call starts another one."""


@dataclass(slots=True)
class Counts:
    """What became of the calls.

    Args:
        done: Calls that returned.
        failed: Calls that raised.
        left_out: Calls that were not made: too many waited, or the time was over.
    """

    done: int = 0
    failed: int = 0
    left_out: int = 0


class Sender:
    """Makes calls one after another, in a thread of its own. Nothing that a call does reaches the caller.

    Args:
        name: Of the tracker.
        notify: Tells a person what went wrong; the first failure, and the first call that was left out.
        remedy: What to check where calls fail.
        most: Calls that may wait.
    """

    def __init__(self, name: str, notify: Callable[[str], None], remedy: str = "", most: int = MOST) -> None:
        self.name, self.counts = name, Counts()
        self._say, self._remedy, self._most = notify, remedy, most
        self._changed = threading.Condition(threading.Lock())
        self._calls: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._said: set[str] = set()

    def put(self, call: Callable[[], object]) -> None:
        """Takes a call. Never waits, and never raises."""
        with self._changed:
            full = len(self._calls) >= self._most
            if full or self._closing:
                self.counts.left_out += 1
            else:
                self._calls.append(call)
                self._changed.notify_all()
                self._start()
        if full:
            self._notify_once(
                "left out",
                f"the tracker {self.name!r} does not keep up: {self._most} calls wait for it, and later ones are left "
                f"out until it answers. {self._remedy}".rstrip(),
            )

    def close(self, seconds: float) -> None:
        """Makes the calls that wait, for so many seconds at most, and takes no more. The rest is left out.

        Args:
            seconds: A call that takes longer is left behind in its thread, which ends with the process.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._thread is None, max(0.0, deadline - time.monotonic()))
            left = len(self._calls) + (self._thread is not None)
            self._calls.clear()
            self.counts.left_out += left
        if left:
            self._notify_once(
                "late",
                f"the tracker {self.name!r} was not ready {seconds:g} s after the end: {left} of its calls are left "
                f"out. {self._remedy}".rstrip(),
            )

    def _start(self) -> None:
        """Starts the thread where there is none. The caller holds the lock."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name=f"art-tracker-{self.name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the process is about to end
            self._thread = None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._calls or self._closing, _IDLE)
                if not self._calls:
                    self._thread = None
                    self._changed.notify_all()
                    return
                call = self._calls.popleft()
            try:
                call()
            except BaseException as error:  # of anybody's code, in its own thread: counted and told, never raised
                with self._changed:
                    self.counts.failed += 1
                self._notify_once(
                    "failed",
                    f"the tracker {self.name!r} failed, and the training goes on without it being told of everything: "
                    f"{type(error).__name__}: {error}. {self._remedy}".rstrip(),
                )
            else:
                with self._changed:
                    self.counts.done += 1

    def _notify_once(self, what: str, text: str) -> None:
        """Says something once."""
        with self._changed:
            if what in self._said:
                return
            self._said.add(what)
        self._say(text)
