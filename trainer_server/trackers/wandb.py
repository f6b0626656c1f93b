"""Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trainer_server.tracking import TrackedRun, import_library, numbers


class WandbTracker:
    """A run of W&B for each training, with the step as the axis of all curves.

    W&B's own environment variables count: WANDB_API_KEY, WANDB_MODE, WANDB_PROJECT (default `art-langgraph`),
    WANDB_ENTITY, WANDB_DIR. A training that is continued continues its run.
    """

    remedy = (
        "Check WANDB_API_KEY and the network. WANDB_MODE=offline keeps rows on disk, and `wandb sync` sends them later"
    )

    def __init__(self) -> None:
        self._wandb = import_library("wandb", "wandb", "wandb")
        self._run: Any = None

    def start(self, run: TrackedRun) -> None:
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "art-langgraph",
            name=run.name,
            id=run.id,
            group=run.policy,
            job_type=run.kind,
            config={"policy": run.policy, **run.config},
            resume="allow",
            reinit="create_new",
            settings=self._wandb.Settings(console="off", x_disable_stats=True, silent=True),
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        # W&B's own step must never fall, and that of a training which is continued may: it is a value like the others.
        self._run.log({**numbers(metrics), "step": step})

    def finish(self, error: str | None) -> None:
        if error is not None:
            self._run.summary["error"] = error
        self._run.finish(exit_code=0 if error is None else 1)
