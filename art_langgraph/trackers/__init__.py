"""Trackers that get a step's trajectories as traces, and what `train` tells all trackers.

The protocol of a tracker, and those that show numbers, are in `trainer_server.tracking` and `trainer_server.trackers`:
the server reports to them too.
"""

from art_langgraph.trackers.base import TakesTrajectories
from trainer_server.tracking import CLIENT_TRACKERS, JSONLTracker, TrackedRun, Tracker, numbers

__all__ = ["CLIENT_TRACKERS", "JSONLTracker", "TakesTrajectories", "TrackedRun", "Tracker", "numbers"]
