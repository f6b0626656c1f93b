"""The pace of a policy's steps, and the sentence that says what bounds it."""

from __future__ import annotations

from typing import Any

import pytest

from trainer_server.dashboard.pace import STEPS, StepPace
from trainer_server.wire import Job, JobStatus, StepResult


def step(finished: float, *, metrics: dict[str, Any] | None = None, kind: Any = "step", **seconds: float) -> Job:
    result = StepResult(version=1, metrics=metrics or {})
    status = JobStatus.succeeded
    return Job(
        id=f"job-{finished}", kind=kind, policy="p", status=status, created=0.0, finished=finished, result=result,
        seconds=seconds,
    )  # fmt: skip


def test_the_pace_is_that_of_the_newest_steps_without_pauses() -> None:
    fill = {"row_fill": 0.5, "mfu": None, "tokens_per_second": 100.0}
    older = [step(10.0 * at, train=4.0, swap=1.0, engines_idle=3.0, metrics=fill) for at in range(STEPS + 5)]
    after_pause = step(5000.0, train=4.0, swap=1.0, engines_idle=4800.0, metrics=fill)
    newest = step(5010.0, train=4.0, swap=1.0, engines_idle=3.0, metrics={**fill, "row_fill": 1.5})
    pace = StepPace.of([newest, step(5005.0, kind="sft"), after_pause, *reversed(older)])
    assert pace is not None
    assert (pace.steps, pace.seconds, pace.trainer, pace.engines_idle) == (STEPS - 1, 10.0, 0.5, 0.3)
    assert pace.metrics["rows filled"] == pytest.approx((0.5 * (STEPS - 2) + 1.5) / (STEPS - 1))
    assert "MFU" not in pace.metrics


@pytest.mark.parametrize("jobs", [[], [step(5.0)], [step(5.0), step(3.0, kind="sft")], [step(5.0), step(5.0)]])
def test_there_is_none_of_fewer_than_two_steps(jobs: list[Job]) -> None:
    assert StepPace.of(jobs) is None


@pytest.mark.parametrize(
    ("train", "idle", "said"),
    [
        (9.5, {"engines_idle": 8.0}, "The trainer was busy 95% of the time, and bounds the run"),
        (4.0, {}, "The trainer waited 60% of the time for runs."),
        (2.0, {"engines_idle": 7.0}, "and engines had no request 70% of it: the runs wait for their tools or code"),
        (4.0, {"engines_idle": 4.0}, "and engines 40% of it for the trainer: they take turns"),
        (2.0, {"engines_idle": 1.0}, "and engines had requests 90% of it: add an engine"),
    ],
)
def test_a_sentence_says_what_bounds_it(train: float, idle: dict[str, float], said: str) -> None:
    pace = StepPace.of([step(20.0, train=train, **idle), step(10.0)])
    assert pace is not None
    assert said in pace.bound
