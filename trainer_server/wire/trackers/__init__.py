"""Trackers: where the progress of a training can be watched besides this project's own dashboard.

They are here because the training loop of a client and the server both report to them, and this folder is the only one
that both may import. Like its neighbours it imports the standard library and pydantic only: the library of a tracker is
imported when the tracker is made.
"""

from trainer_server.wire.trackers.base import TrackedRun, Tracker, numbers
from trainer_server.wire.trackers.jsonl import JSONLTracker
from trainer_server.wire.trackers.library import import_library
from trainer_server.wire.trackers.registry import ENVIRONMENT, TRACKERS, make_trackers, named_by
from trainer_server.wire.trackers.tracking import FLUSH_SECONDS, Tracking

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
