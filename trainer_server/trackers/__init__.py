"""Trackers: where the progress of a training can be watched besides this project's own dashboard.

The training loop of a client and the server both report to them, so this folder imports the standard library and
pydantic only: the library of a tracker is imported when the tracker is made.
"""

from trainer_server.trackers.base import TrackedRun, Tracker, numbers
from trainer_server.trackers.jsonl import JSONLTracker
from trainer_server.trackers.library import import_library
from trainer_server.trackers.registry import ENVIRONMENT, TRACKERS, make_trackers, named_by
from trainer_server.trackers.tracking import FLUSH_SECONDS, Tracking

__all__ = [
    "ENVIRONMENT",
    "FLUSH_SECONDS",
    "TRACKERS",
    "JSONLTracker",
    "TrackedRun",
    "Tracker",
    "Tracking",
    "import_library",
    "make_trackers",
    "named_by",
    "numbers",
]
