"""MLflow: a tracking server, or files of this machine."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from trainer_server.common.jsonl import to_json
from trainer_server.tracking import TrackedRun, import_library, numbers

_NOT_ALLOWED = re.compile(r"[^\w\-. /]")
_METRICS, _PARAMS = 900, 100
"""The most of one request, by the limits of MLflow's API (1,000 and 100)."""
_LENGTH = 500
"""Characters of a parameter's value that every version of MLflow takes."""
_ID = "art_langgraph.run"
"""The tag by which the run of a training that is continued is found."""


class MLflowTracker:
    """A run of MLflow for each training.

    MLflow's own environment variables count: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME (default `art-langgraph`),
    and those of its login. A training that is continued continues its run.
    """

    remedy = "Check MLFLOW_TRACKING_URI, its login, and the network"

    def __init__(self) -> None:
        self._tracking = import_library("mlflow.tracking", "mlflow", "mlflow")
        self._entities = import_library("mlflow.entities", "mlflow", "mlflow")
        self._client: Any = None
        self._run = ""

    def start(self, run: TrackedRun) -> None:
        # MlflowClient, not the functions of the module: these keep the current run by thread, for a whole process.
        self._client = self._tracking.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "art-langgraph"
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        earlier = self._client.search_runs([number], f"tags.`{_ID}` = '{run.id}'", max_results=1)
        if earlier:
            self._run = earlier[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {_ID: run.id, "policy": run.policy, "kind": run.kind}
        self._run = self._client.create_run(number, tags=tags, run_name=run.name).info.run_id
        params = [self._entities.Param(key, value[:_LENGTH]) for key, value in _params(run.config).items()]
        for part in _parts(params, _PARAMS):
            self._client.log_batch(self._run, params=part)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        at = int(time.time() * 1000)
        values = {_NOT_ALLOWED.sub("_", name)[:250]: value for name, value in numbers(metrics).items()}
        rows = [self._entities.Metric(name, value, at, step) for name, value in values.items()]
        for part in _parts(rows, _METRICS):
            self._client.log_batch(self._run, metrics=part)

    def finish(self, error: str | None) -> None:
        if error is not None:
            self._client.set_tag(self._run, "error", error[:_LENGTH])
        self._client.set_terminated(self._run, "FINISHED" if error is None else "FAILED")


def _params(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings as texts, by their path."""
    params: dict[str, str] = {}
    for name, value in config.items():
        key = _NOT_ALLOWED.sub("_", f"{prefix}{name}")[:250]
        if isinstance(value, Mapping):
            params |= _params(value, f"{key}/")
        else:
            params[key] = value if isinstance(value, str) else to_json(value)
    return params


def _parts(items: list[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
