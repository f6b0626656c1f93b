"""A row for each step, in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_server.common.jsonl import append_jsonl
from trainer_server.trackers.base import TrackedRun


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
