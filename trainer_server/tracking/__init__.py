"""Reports of a training to trackers: the protocol, trackers by name, a thread for each.

The trackers of other projects are extensions: `trainer_server.trackers` shows numbers, `art_langgraph.trackers` runs.
"""

from trainer_server.tracking.background import Tracking
from trainer_server.tracking.base import TrackedRun, Tracker, import_library, numbers, run_id
from trainer_server.tracking.registry import (
    CLIENT_TRACKERS,
    ENVIRONMENT,
    OF_CLIENTS,
    JSONLTracker,
    make_trackers,
    named_by,
)

__all__ = [
    "CLIENT_TRACKERS",
    "ENVIRONMENT",
    "OF_CLIENTS",
    "JSONLTracker",
    "TrackedRun",
    "Tracker",
    "Tracking",
    "import_library",
    "make_trackers",
    "named_by",
    "numbers",
    "run_id",
]
