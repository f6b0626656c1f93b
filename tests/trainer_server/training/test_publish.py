"""New versions of policies: what their record says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer_server.jobs.queue import JobQueue
from trainer_server.policies.store import AdapterStore
from trainer_server.training.job_runner import Publisher
from trainer_server.wire import PolicySpec


@pytest.mark.parametrize("revision", [None, "b" * 40])
def test_a_version_carries_the_commit_of_its_base_model(tmp_path: Path, revision: str | None) -> None:
    store = AdapterStore(tmp_path / "policies")
    job = JobQueue(tmp_path / "jobs").accept("create", "p", spec=PolicySpec(name="p"))
    publisher = Publisher(store, None, revision)  # type: ignore[arg-type]  # no weights are written
    publisher.publish(job, 0, {}, lambda staging: None)
    assert json.loads((store.directory("p", 0) / "version.json").read_text())["base_revision"] == revision
