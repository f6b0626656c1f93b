"""Trackio: a local file, or a Space of Hugging Face."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trainer_server.tracking import TrackedRun, import_library, numbers


class TrackioTracker:
    """A run of trackio for each training; `trackio show` opens its dashboard.

    Trackio's own environment variables count: TRACKIO_DIR, TRACKIO_SPACE_ID, and TRACKIO_PROJECT (default
    `art-langgraph`). A training that is continued continues its run.
    """

    remedy = "Check TRACKIO_DIR, or TRACKIO_SPACE_ID and HF_TOKEN where a Space gets the rows"

    def __init__(self) -> None:
        self._trackio = import_library("trackio", "trackio", "trackio")
        self._run: Any = None

    def start(self, run: TrackedRun) -> None:
        self._run = self._trackio.init(
            project=os.environ.get("TRACKIO_PROJECT") or "art-langgraph",
            name=f"{run.name} ({run.id})",
            group=run.policy,
            config={"policy": run.policy, "kind": run.kind, **run.config},
            resume="allow",
            embed=False,
        )

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._run.log(numbers(metrics), step=step)

    def finish(self, error: str | None) -> None:
        self._run.finish()
