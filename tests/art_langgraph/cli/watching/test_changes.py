"""What `watch` says of two looks at a server, and when a training counts as ended."""

from __future__ import annotations

from typing import Any

from art_langgraph.cli.watching import Training, describe_end
from trainer_server.common.status import (
    JobPhase,
    LineStatus,
    MemoryStatus,
    OpenJob,
    PolicyStatus,
    RunsOutcome,
    ServerStatus,
    Traffic,
)
from trainer_server.wire import Job, JobStatus, StepResult


def job(status: JobStatus = JobStatus.running, **more: Any) -> Job:
    return Job(id="job-000-abcd1234", kind="step", policy="agent", status=status, created=1.0, **more)


def status(
    at: float, *, phase: JobPhase | None = None, progress: float | None = None, running: int = 0, **policy: Any
) -> ServerStatus:
    jobs = [] if phase is None else [OpenJob(job=job(progress=progress), phase=phase, words="w", since=1.0)]
    return ServerStatus(
        time=at,
        started=0.0,
        model="m",
        ready=True,
        trainer=True,
        engines=[],
        line=LineStatus(running=running, waiting=0, most=9, refused=0),
        jobs=jobs,
        policies=[PolicyStatus(name="agent", **{"newest": 0, **policy})],
        traffic=[Traffic(policy="agent", running=running)] if running else [],
        memory=MemoryStatus(total=1),
        problems=[],
    )


def test_a_step_is_told_phase_by_phase() -> None:
    training = Training("agent")
    told: list[str] = []
    closed: list[str] = []
    for look in (
        status(1, running=3),
        status(2, phase="queued"),
        status(3, phase="train"),
        status(4, phase="train", progress=0.05),
        status(5, phase="train", progress=0.5),
        status(6, phase="load", progress=1.0),
        status(7, newest=1, held_out=RunsOutcome(version=1, runs=20, mean=0.5, success=0.45)),
    ):
        changes, gone = training.look(look)
        told += [change.kind for change in changes]
        closed += gone
    assert told == ["rollouts", "job", "phase", "progress", "phase", "held_out"], (
        "and that it is quiet for a moment is no news"
    )
    assert closed == ["job-000-abcd1234"]


def test_a_training_is_quiet_since_the_last_thing_that_happened() -> None:
    training = Training("agent")
    told: list[str] = []
    for at, running in ((10.0, 2), (15.0, 0), (50.0, 0), (51.0, 0)):
        told += [change.kind for change in training.look(status(at, running=running))[0]]
    assert training.quiet == 41.0
    assert told == ["rollouts", "idle"]
    training.look(status(60.0, running=1))
    assert training.quiet == 0.0


def test_other_policies_are_not_watched() -> None:
    training = Training("other")
    changes, _ = training.look(status(1, phase="train", running=3))
    assert [change.kind for change in changes] == ["idle"]
    assert training.status is None


def test_the_end_of_a_job_says_what_came_of_it() -> None:
    result = StepResult(version=3, metrics={"reward_mean": 0.5, "loss": 0.25, "job": {"id": "x"}})
    made = describe_end(job(JobStatus.succeeded, result=result, seconds={"train": 8.0}))
    assert made.text == "step abcd1234 made agent@3: reward 0.500, loss 0.250 (train 8.0 s)"
    assert made.as_json()["version"] == 3
    assert "out of memory" in describe_end(job(JobStatus.failed, error="out of memory")).text
    dead = StepResult(version=2, metrics={"skipped": "equal rewards"})
    assert "learnt nothing: equal rewards" in describe_end(job(JobStatus.succeeded, result=dead)).text
