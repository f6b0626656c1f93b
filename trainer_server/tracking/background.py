"""Calls of trackers, each tracker in a thread of its own, so that a training never waits for one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer_server.tracking.base import TrackedRun, Tracker

FLUSH_SECONDS = 30.0
"""Seconds that a training which has ended waits for its trackers."""
MOST = 256
"""Calls that may wait for a tracker. Later ones are left out, and counted."""
_IDLE = 5.0
"""Seconds without a call after which the thread ends; the next call starts another one."""


class _TrackerThread:
    """Calls a tracker's methods one after another. Nothing that a method does reaches the caller."""

    def __init__(self, name: str, tracker: Tracker, notify: Callable[[str], None], most: int) -> None:
        self.name, self.tracker = name, tracker
        self.calls = self.lost_calls = 0
        """All calls, and those that raised or were not made."""
        self._notify, self._most = notify, most
        self._remedy = getattr(tracker, "remedy", "")
        self._changed = threading.Condition(threading.Lock())
        self._queue: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._start_failed = False
        self._notified_kinds: set[str] = set()

    def put(self, method: str, *arguments: Any) -> None:
        """Takes a call. Never waits, and never raises."""
        with self._changed:
            self.calls += 1
            full = len(self._queue) >= self._most
            if full or self._closing:
                self.lost_calls += 1
            else:
                self._queue.append((method, arguments))
                self._changed.notify_all()
                self._ensure_thread()
        if full:
            self._notify_once(
                "left out",
                f"the tracker {self.name!r} does not keep up: {self._most} calls wait for it, and later ones are left "
                "out until it answers.",
            )

    def close(self, seconds: float) -> None:
        """Makes the calls that wait, for so many seconds at most, and takes no more. The rest is left out.

        Args:
            seconds: A call that takes longer is left behind in its thread, which ends with the process.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._thread is None, seconds)
            late = len(self._queue) + (self._thread is not None)
            self._queue.clear()
            self.lost_calls += late
        if late:
            self._notify_once(
                "late",
                f"the tracker {self.name!r} was not ready {seconds:g} s after the end: {late} of its calls are left "
                "out.",
            )

    def _ensure_thread(self) -> None:
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
                self._changed.wait_for(lambda: self._queue or self._closing, _IDLE)
                if not self._queue:
                    self._thread = None
                    self._changed.notify_all()
                    return
                method, arguments = self._queue.popleft()
            if self._start_failed:
                with self._changed:
                    self.lost_calls += 1
                continue
            try:
                getattr(self.tracker, method)(*arguments)
            except BaseException as error:  # of anybody's code, in its own thread: counted and told, never raised
                self._start_failed = method == "start"
                with self._changed:
                    self.lost_calls += 1
                self._notify_once(
                    "failed",
                    f"the tracker {self.name!r} failed, and the training goes on without it being told of everything: "
                    f"{type(error).__name__}: {error}.",
                )

    def _notify_once(self, kind: str, text: str) -> None:
        """Tells a person of the first problem of its kind."""
        with self._changed:
            if kind in self._notified_kinds:
                return
            self._notified_kinds.add(kind)
        self._notify(f"{text} {self._remedy}".rstrip())


class Tracking:
    """Reports a training to trackers. No method waits for a tracker, but `finish`; none raises.

    Args:
        trackers: Name and tracker, as `make_trackers` gives them.
        notify: Tells a person what went wrong: the first failure of each tracker, and the counts in the end.
        most: Calls that may wait for a tracker.
    """

    def __init__(
        self, trackers: Sequence[tuple[str, Tracker]], notify: Callable[[str], None], *, most: int = MOST
    ) -> None:
        self._notify = notify
        self._threads = [_TrackerThread(name, tracker, notify, most) for name, tracker in trackers]
        self._finished = False

    def __bool__(self) -> bool:
        """Whether there is any tracker."""
        return bool(self._threads)

    def start(self, run: TrackedRun) -> None:
        """Calls `start` of all trackers."""
        for thread in self._threads:
            thread.put("start", run)

    def log(self, step: int, metrics: Mapping[str, Any], runs: Sequence[Any] = ()) -> None:
        """Calls `log` of all trackers, and `trajectories` of those that have it.

        Args:
            step: Number of the step.
            metrics: Its report, as JSON.
            runs: Its trajectories, for the trackers that take some.
        """
        for thread in self._threads:
            thread.put("log", step, metrics)
            if runs and hasattr(thread.tracker, "trajectories"):
                thread.put("trajectories", step, runs)

    def finish(self, error: str | None = None, seconds: float | None = None) -> None:
        """Calls `finish` of all trackers, and waits until they have sent their rows.

        Args:
            error: What ended it before its time; None: nothing did.
            seconds: To wait at most, for all trackers together; None: `FLUSH_SECONDS`.
        """
        if self._finished:
            return
        self._finished = True
        deadline = time.monotonic() + (FLUSH_SECONDS if seconds is None else seconds)
        for thread in self._threads:
            thread.put("finish", error)
        for thread in self._threads:
            thread.close(max(0.0, deadline - time.monotonic()))
        for thread in self._threads:
            if thread.lost_calls:
                self._notify(
                    f"the tracker {thread.name!r} was not told of everything: {thread.lost_calls} of {thread.calls} "
                    "calls are lost"
                )

    @property
    def lost_calls(self) -> dict[str, int]:
        """By tracker, how many calls failed or were left out."""
        return {thread.name: thread.lost_calls for thread in self._threads}
