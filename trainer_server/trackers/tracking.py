"""The trackers of a training: told of everything in the background, each in a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from trainer_server.trackers.base import TrackedRun, Tracker
from trainer_server.trackers.sender import MOST, Sender

FLUSH_SECONDS = 30.0
"""Seconds that a training which has ended waits for its trackers."""


class _TrackerWorker:
    """A tracker with its thread."""

    def __init__(self, name: str, tracker: Tracker, notify: Callable[[str], None], most: int) -> None:
        self.name, self.tracker = name, tracker
        self.sender = Sender(name, notify, getattr(tracker, "remedy", ""), most)
        self.dead = False
        """Whether `start` failed, so that the tracker is told nothing."""
        self.untold = 0
        """Calls that were not made because of that."""

    def start(self, run: TrackedRun) -> None:
        try:
            self.tracker.start(run)
        except BaseException:
            self.dead = True
            raise

    def call(self, method: Callable[[], object]) -> None:
        if self.dead:
            self.untold += 1
        else:
            method()

    @property
    def calls(self) -> int:
        counts = self.sender.counts
        return counts.done + counts.failed + counts.left_out

    @property
    def lost_calls(self) -> int:
        return self.sender.counts.failed + self.sender.counts.left_out + self.untold


class Tracking:
    """Tells trackers of a training. No method waits for a tracker, but `finish`; none raises.

    Args:
        trackers: Name and tracker, as `make_trackers` gives them.
        notify: Tells a person what went wrong: the first failure of each tracker, and the counts in the end.
        most: Calls that may wait for a tracker.
    """

    def __init__(
        self, trackers: Sequence[tuple[str, Tracker]], notify: Callable[[str], None], *, most: int = MOST
    ) -> None:
        self._say = notify
        self._told = [_TrackerWorker(name, tracker, notify, most) for name, tracker in trackers]
        self._finished = False

    def __bool__(self) -> bool:
        """Whether there is any tracker."""
        return bool(self._told)

    def start(self, run: TrackedRun) -> None:
        """Tells all trackers that a training begins."""
        for told in self._told:
            told.sender.put(partial(told.start, run))

    def log(self, step: int, metrics: Mapping[str, Any], runs: Sequence[Any] = ()) -> None:
        """Tells all trackers of a step.

        Args:
            step: Number of the step.
            metrics: Its report, as JSON.
            runs: Its trajectories, for the trackers that take some.
        """
        for told in self._told:
            told.sender.put(partial(told.call, partial(told.tracker.log, step, metrics)))
            if runs and (trajectories := getattr(told.tracker, "trajectories", None)) is not None:
                told.sender.put(partial(told.call, partial(trajectories, step, runs)))

    def finish(self, error: str | None = None, seconds: float | None = None) -> None:
        """Tells all trackers that the training has ended, and waits until they have sent what they have.

        Args:
            error: What ended it before its time; None: nothing did.
            seconds: To wait at most, for all trackers together; None: `FLUSH_SECONDS`.
        """
        if self._finished:
            return
        self._finished = True
        deadline = time.monotonic() + (FLUSH_SECONDS if seconds is None else seconds)
        for told in self._told:
            told.sender.put(partial(told.call, partial(told.tracker.finish, error)))
        for told in self._told:
            told.sender.close(max(0.0, deadline - time.monotonic()))
        for told in self._told:
            if lost := told.lost_calls:
                self._say(
                    f"the tracker {told.name!r} was not told of everything: {lost} of {told.calls} calls are lost"
                )

    @property
    def lost_calls(self) -> dict[str, int]:
        """By tracker, how many calls failed or were left out."""
        return {told.name: told.lost_calls for told in self._told}
