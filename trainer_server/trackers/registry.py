"""Trackers by name. To add one to the project, write a class and add an entry here; others are named by their place."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from trainer_server.common.plugins import check_members, factory_named
from trainer_server.trackers.base import Tracker
from trainer_server.trackers.jsonl import JSONLTracker
from trainer_server.trackers.mlflow import MLflowTracker
from trainer_server.trackers.tensorboard import TensorBoardTracker
from trainer_server.trackers.trackio import TrackioTracker
from trainer_server.trackers.wandb import WandbTracker
from trainer_server.wire.errors import ConfigError

TrackerFactory = Callable[[], Tracker]

TRACKERS: dict[str, TrackerFactory] = {
    "jsonl": JSONLTracker,
    "mlflow": MLflowTracker,
    "tensorboard": TensorBoardTracker,
    "trackio": TrackioTracker,
    "wandb": WandbTracker,
}
"""Those that show numbers, which a client and a server have."""

OF_CLIENTS = ("langfuse", "langsmith")
"""Those that show runs: clients add them (`art_langgraph.trackers`), servers leave them out, because they have none."""

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
    made: dict[str, Tracker] = {}
    for choice in choices:
        name = choice if isinstance(choice, str) else _free(type(choice).__name__, made)
        if name in made:
            continue
        try:
            tracker = _make_tracker(option, choice, factories) if isinstance(choice, str) else choice
            check_members(option, name, tracker, Tracker)
        except ConfigError as error:
            if skip is None:
                raise
            skip(str(error))
        else:
            made[name] = tracker
    return list(made.items())


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
