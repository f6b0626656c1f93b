"""What a tracker has that takes trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from art_langgraph.trajectory import Trajectory
from trainer_server.tracking import Tracker


class TakesTrajectories(Tracker, Protocol):
    """A tracker that gets the runs of each step, besides its numbers."""

    def trajectories(self, step: int, runs: Sequence[Trajectory]) -> None:
        """The runs of a step: those that were sent, and those of its held-out evaluation (`run.evaluation`).

        Args:
            step: Number of the step.
            runs: The runs. They must not be changed.
        """
        ...
