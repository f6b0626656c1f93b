"""Trackers by name. To add one to the project, write a class and add an entry here; others are named by their place.

Those of other projects are extensions, which are imported when one of them is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer_server.common.extensions import load
from trainer_server.common.jsonl import append_jsonl
from trainer_server.common.plugins import check_members, factory_named
from trainer_server.tracking.base import TrackedRun, Tracker
from trainer_server.wire.errors import ConfigError

TrackerFactory = Callable[[], Tracker]


class JSONLTracker:
    """Appends a row for each step to a JSON Lines file.

    Args:
        path: The file; None: `progress/<id of the training>.jsonl` in the home directory.
    """

    remedy = "Is the disk full, or the directory read-only?"

    def __init__(self, path: Path | None = None) -> None:
        self.path = path

    def start(self, run: TrackedRun) -> None:
        if self.path is None:
            self.path = run.home / "progress" / f"{run.id}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        assert self.path is not None
        append_jsonl(self.path, [{"step": step, **metrics}])

    def finish(self, error: str | None) -> None:
        """Every row is in the file already."""


def _of_extension(module: str, tracker: str) -> TrackerFactory:
    """The factory of a class in a module of an extension."""

    def make() -> Tracker:
        factory: TrackerFactory = getattr(load(module), tracker)
        return factory()

    return make


TRACKERS: dict[str, TrackerFactory] = {
    "jsonl": JSONLTracker,
    "mlflow": _of_extension("trainer_server.trackers.mlflow", "MLflowTracker"),
    "tensorboard": _of_extension("trainer_server.trackers.tensorboard", "TensorBoardTracker"),
    "trackio": _of_extension("trainer_server.trackers.trackio", "TrackioTracker"),
    "wandb": _of_extension("trainer_server.trackers.wandb", "WandbTracker"),
}
"""Those that show numbers, which a client and a server have."""

OF_CLIENTS: dict[str, TrackerFactory] = {
    "langfuse": _of_extension("art_langgraph.trackers.langfuse", "LangfuseTracker"),
    "langsmith": _of_extension("art_langgraph.trackers.langsmith", "LangSmithTracker"),
}
"""Those that show runs. Servers leave them out, because they have none."""

CLIENT_TRACKERS = {**TRACKERS, **OF_CLIENTS}
"""All that a client may name."""

ENVIRONMENT = "ART_TRACKERS"
"""The environment variable with names of trackers, between commas."""


def named_by(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The names in `ART_TRACKERS`, without repetitions."""
    return list(dict.fromkeys(filter(None, map(str.strip, environment.get(ENVIRONMENT, "").split(",")))))


def make_trackers(
    choices: Sequence[str | Tracker],
    factories: Mapping[str, TrackerFactory] = TRACKERS,
    *,
    option: str = "--tracker",
    skip: Callable[[str], None] | None = None,
) -> list[tuple[str, Tracker]]:
    """Makes trackers, and imports their libraries. Nothing is opened before `Tracker.start`.

    Args:
        choices: Names in `factories`, places `module:Class` of others, or trackers.
        factories: Trackers by name.
        option: What named them, for messages.
        skip: Told why a tracker is left out that cannot be made; None: that is an error.

    Returns:
        Name and tracker, in this order, each name once.

    Raises:
        ConfigError: There is no such tracker, its library is missing, or an object is none.
    """
    trackers: dict[str, Tracker] = {}
    for choice in choices:
        name = choice if isinstance(choice, str) else _free(type(choice).__name__, trackers)
        if name in trackers:
            continue
        try:
            tracker = _make_tracker(option, choice, factories) if isinstance(choice, str) else choice
            check_members(option, name, tracker, Tracker)
        except ConfigError as error:
            if skip is None:
                raise
            skip(str(error))
        else:
            trackers[name] = tracker
    return list(trackers.items())


def _make_tracker(option: str, name: str, factories: Mapping[str, TrackerFactory]) -> Tracker:
    factory = factory_named(option, name, factories, "makes a tracker")
    try:
        return factory()
    except ConfigError:
        raise
    except Exception as error:  # of anybody's code
        raise ConfigError(f"{option} {name}: it cannot be made: {type(error).__name__}: {error}") from error


def _free(name: str, used_names: Mapping[str, object]) -> str:
    """A name that is not taken: two trackers of one class are two trackers."""
    number = 2
    free = name
    while free in used_names:
        free, number = f"{name}-{number}", number + 1
    return free
