"""The protocol of a tracker, the training that it shows, and helpers that trackers share."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

from trainer_server.wire.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A training: the argument of `Tracker.start`.

    Args:
        policy: Name of the policy that is trained.
        name: What people call the training.
        id: Names the training for machines: letters, digits, `-`, `_` and `.`, at most 64. A training that is continued
            has the same id.
        kind: `train`: the loop of a client, with a row for each step. `server`: all jobs of a policy on a server.
        home: Directory for files of trackers that write some.
        config: Settings of the training, as JSON.
    """

    policy: str
    name: str
    id: str
    kind: Literal["train", "server"]
    home: Path
    config: Mapping[str, Any] = field(default_factory=dict)


class Tracker(Protocol):
    """Gets the progress of a training. A class with these methods is a tracker; no base class is needed.

    All calls come from one thread in the background, one after another, so they may take their time. What they raise is
    reported and counted, and the training goes on. Where `start` raises, nothing else is called.

    A tracker may have two things more:

    - `trajectories(step, runs)`: called after `log` with the step's runs, where the training has them. See
      `art_langgraph.trackers.TakesTrajectories`.
    - `remedy`: a text that says what to check when it fails.
    """

    def start(self, run: TrackedRun) -> None:
        """The training begins, or is continued.

        Args:
            run: The training.
        """
        ...

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """A step has ended.

        Args:
            step: Number of the step; the version that a job made, where a server logs its jobs. The same number comes
                again where a training that was interrupted takes a step up again.
            metrics: What the step reports, as JSON. `numbers(metrics)` has the numbers in it by name, for curves.
        """
        ...

    def finish(self, error: str | None) -> None:
        """The training has ended. What was not sent must be sent when this returns.

        Args:
            error: What ended the training before its time; None: it came to its end.
        """
        ...


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers in a step's report, by their path: `{"seconds/train": 2.5}`. Truth values are 0 and 1.

    Args:
        metrics: What `Tracker.log` gets.
    """
    flat: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}/{inner}": number for inner, number in numbers(value).items()}
        elif isinstance(value, int | float) and math.isfinite(value):
            flat[str(name)] = float(value)
    return flat


def run_id(policy: str, name: str, *facts: object) -> str:
    """An id that is the same wherever policy, name and facts are.

    Args:
        policy: Name of the policy; the id begins with it.
        name: Name of the training.
        facts: Whatever else tells it from trainings of the same name, such as when its policy was created.
    """
    digest = hashlib.sha256("\n".join(map(str, (policy, name, *facts))).encode()).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '-', policy)[:50]}-{digest}"


def import_library(module: str, extra: str, tracker: str) -> Any:
    """A module of another package.

    Args:
        module: Its name.
        extra: The extra of this project that brings it.
        tracker: Name of the tracker, for messages.

    Raises:
        ConfigError: It cannot be imported.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"the tracker {tracker!r} needs {module.partition('.')[0]}, which cannot be imported ({error}). "
            f"Install it: pip install 'art-langgraph[{extra}]'"
        ) from error
