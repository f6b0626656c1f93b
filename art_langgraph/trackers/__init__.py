"""Trackers that get a step's trajectories as traces, and the names of all trackers that a client has.

The protocol of a tracker, and those that show numbers, are in `trainer_server.tracking` and `trainer_server.trackers`:
the server reports to them too.
"""

from collections.abc import Sequence
from typing import Protocol

from art_langgraph.trajectory import Trajectory
from trainer_server.tracking import CLIENT_TRACKERS, JSONLTracker, TrackedRun, Tracker, numbers

__all__ = ["CLIENT_TRACKERS", "JSONLTracker", "TakesTrajectories", "TrackedRun", "Tracker", "numbers"]


class TakesTrajectories(Tracker, Protocol):
    """A tracker that gets the runs of each step, besides its numbers."""

    def trajectories(self, step: int, runs: Sequence[Trajectory]) -> None:
        """The runs of a step: those that were sent, and those of its held-out evaluation (`run.evaluation`).

        Args:
            step: Number of the step.
            runs: The runs. They must not be changed.
        """
        ...
