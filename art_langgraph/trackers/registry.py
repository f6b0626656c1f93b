"""Trackers by name, as a client has them."""

from __future__ import annotations

from art_langgraph.trackers.langfuse import LangfuseTracker
from art_langgraph.trackers.langsmith import LangSmithTracker
from trainer_server.trackers.registry import TRACKERS, TrackerFactory

CLIENT_TRACKERS: dict[str, TrackerFactory] = {
    **TRACKERS,
    "langfuse": LangfuseTracker,
    "langsmith": LangSmithTracker,
}
"""Those of `trainer_server.trackers`, and those that get trajectories."""
