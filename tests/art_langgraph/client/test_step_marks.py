"""Marks of runs that a training step was given, by what became of the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from art_langgraph import Scenario, Trajectory, TrajectoryStore
from art_langgraph.client.step_marks import StepMarks, settle
from trainer_server.wire import Job, JobFailed, JobStatus, ServerUnreachable, StepResult

RUN = Trajectory(id="scored", scenario=Scenario(input="x"), reward=1.0)
OTHERS = [
    Trajectory(id="unscored", scenario=Scenario(input="x")),
    Trajectory(id="held", scenario=Scenario(input="x"), reward=1.0, evaluation=True),
]


@pytest.fixture
def store(tmp_path: Path) -> TrajectoryStore:
    return TrajectoryStore(tmp_path / "s.sqlite")


@pytest.mark.parametrize(("metrics", "trained"), [({}, {"scored"}), ({"skipped": "equal rewards"}, set())])
async def test_runs_stay_marked_when_the_step_makes_a_version(
    store: TrajectoryStore, metrics: dict[str, Any], trained: set[str]
) -> None:
    async with StepMarks(store, "p", "key", [RUN, *OTHERS]) as marks:
        assert store.open_steps("p") == ["key"]
        marks.result = StepResult(version=1, metrics=metrics)
    assert (store.trained("p"), store.open_steps("p")) == (trained, [])


@pytest.mark.parametrize(
    ("error", "trained"), [(JobFailed("boom", job_id="j"), set()), (ServerUnreachable("gone"), {"scored"})]
)
async def test_only_a_step_that_surely_failed_frees_its_runs(
    store: TrajectoryStore, error: Exception, trained: set[str]
) -> None:
    with pytest.raises(type(error)):
        async with StepMarks(store, "p", "key", [RUN]):
            raise error
    assert store.trained("p") == trained


async def test_without_a_store_nothing_is_marked() -> None:
    async with StepMarks(None, "p", "key", [RUN]) as marks:
        marks.result = StepResult(version=1)


class Server:
    """A trainer server that knows the outcome of some steps."""

    def __init__(self, **jobs: Job) -> None:
        self.jobs = jobs

    async def find_step(self, policy: str, key: str) -> Job | None:
        return self.jobs.get(key)


def job(status: JobStatus, result: StepResult | None = None) -> Job:
    return Job(id=f"job-{status}", kind="step", policy="p", status=status, created=0.0, result=result)


async def test_what_became_of_open_steps_is_asked_of_the_server(store: TrajectoryStore) -> None:
    server: Any = Server(
        made=job(JobStatus.succeeded, StepResult(version=4)),
        skipped=job(JobStatus.succeeded, StepResult(version=4, metrics={"skipped": "equal rewards"})),
        failed=job(JobStatus.failed),
        cancelled=job(JobStatus.cancelled),
        running=job(JobStatus.running),
    )
    for step in (*server.jobs, "never_sent"):
        store.begin_step("p", step, [step])
    assert [left.id for left in await settle(server, store, "p")] == ["job-running"]
    assert store.trained("p") == {"made", "running"}
    assert store.open_steps("p") == ["running"]


async def test_a_step_that_may_be_on_its_way_stays_open(store: TrajectoryStore) -> None:
    for step in ("on_its_way", "never_sent"):
        store.begin_step("p", step, [step])
    server: Any = Server()
    assert await settle(server, store, "p", sending="on_its_way") == []
    assert (store.trained("p"), store.open_steps("p")) == ({"on_its_way"}, ["on_its_way"])
