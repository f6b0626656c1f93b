"""The queue: jobs in the order in which they were accepted, none that cannot be read, and cheap to look at."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from trainer_server.jobs.board import JobBoard, Trained
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.training.worker import Worker
from trainer_server.wire import (
    ConfigError,
    Conversation,
    GroupRef,
    Home,
    JobStatus,
    PolicySpec,
    SFTRequest,
    StepRequest,
    TrainingError,
)

SPEC = PolicySpec(name="p")


def test_ids_are_in_the_order_of_acceptance_wherever_the_clock_was_set(tmp_path: Path) -> None:
    early = JobBoard(tmp_path).accept("create", "p", spec=SPEC)
    late = f"job-{time.time_ns() + 3600 * 10**9:019d}-ffffffff"  # accepted before the clock was set back by an hour
    os.rename(tmp_path / early.id, tmp_path / late)
    (tmp_path / "job-by-hand").mkdir()
    (tmp_path / "job-by-hand" / "job.json").write_text("{}")
    accepted = [late]
    for _ in range(2):  # before and after a restart
        board = JobBoard(tmp_path)
        accepted += [board.accept("create", "p", spec=SPEC).id for _ in range(20)]
    assert board.ids() == [*accepted, "job-by-hand"]


@pytest.mark.parametrize(
    "request_",
    [
        StepRequest(groups=[GroupRef(scenario_id="\ud83d", trajectories=[])]),
        SFTRequest(conversations=[
            Conversation(messages=[{"role": "user", "content": "?"}, {"role": "assistant", "content": "\ud83d"}])
        ]),
    ],
)  # fmt: skip
def test_what_could_not_be_read_again_is_not_accepted(tmp_path: Path, request_: StepRequest | SFTRequest) -> None:
    board = JobBoard(tmp_path)
    with pytest.raises(ConfigError, match="cannot be written down and read again"):
        board.accept("sft" if isinstance(request_, SFTRequest) else "step", "p", request=request_)
    assert list(tmp_path.iterdir()) == []


def test_damaged_files_are_said(tmp_path: Path) -> None:
    board = JobBoard(tmp_path)
    job = board.accept("create", "p", spec=SPEC)
    (tmp_path / job.id / "trained.json").write_text("{")
    trained = board.trained(job.id)
    assert trained is not None
    assert "trained.json in the server's home cannot be read" in str(trained.error)
    (tmp_path / job.id / "job.json").write_text("{")
    assert board.job(job.id) is None
    with pytest.raises(TrainingError, match=r"job\.json in the server's home cannot be read"):
        board.file(job.id)


class Ended(Exception):
    pass


class Watched(JobBoard):
    """Counts how often it is looked through, and ends the worker after `polls`."""

    def __init__(self, root: Path, polls: int) -> None:
        super().__init__(root)
        self.looks, self._polls = 0, polls

    def ids(self) -> list[str]:
        self.looks += 1
        return super().ids()

    def changed(self) -> float:
        self._polls -= 1
        if self._polls < 0:
            raise Ended
        return super().changed()


def working(home: Path, polls: int) -> Watched:
    """A worker that has no model, for so many polls; the board that it looked at."""
    worker = Worker(Home(home), None, ledger=SQLiteLedger(Home(home).ledger), base_model="base", tokenizer="t")  # type: ignore[arg-type]
    worker.board = board = Watched(worker.home.jobs, polls)
    with pytest.raises(Ended):
        worker.run()
    return board


def test_an_idle_worker_does_not_look_through_all_jobs(tmp_path: Path) -> None:
    board = JobBoard(Home(tmp_path).jobs)
    for _ in range(3):
        board.report(board.accept("create", "p", spec=SPEC).id, Trained())
    assert working(tmp_path, 30).looks < 5


def test_an_accepted_job_changes_the_board(tmp_path: Path) -> None:
    board = JobBoard(tmp_path)
    seen = [board.changed()]
    for _ in range(3):
        time.sleep(0.02)  # more than a tick of the file system's clock
        board.accept("create", "p", spec=SPEC)
        seen.append(board.changed())
        board.start(board.ids()[-1])
        assert board.changed() == seen[-1]
    assert seen == sorted(set(seen))


def test_a_damaged_job_is_reported_and_the_worker_goes_on(tmp_path: Path) -> None:
    board = JobBoard(Home(tmp_path).jobs)
    damaged = board.accept("create", "p", spec=SPEC)
    (board.root / damaged.id / "job.json").write_text(json.dumps({"id": damaged.id, "kind": "step"}))
    good = board.accept("step", "p", request=StepRequest(groups=[GroupRef(scenario_id="s", trajectories=[])]))
    working(tmp_path, 3)
    for job, why in ((damaged, "cannot be read"), (good, "there is no policy 'p'")):
        trained = board.trained(job.id)
        assert trained is not None
        assert why in str(trained.error)


def test_a_job_is_either_started_or_cancelled(tmp_path: Path) -> None:
    board = JobBoard(Home(tmp_path).jobs)
    request = StepRequest(groups=[GroupRef(scenario_id="s", trajectories=[])])
    cancelled, started = (board.accept("step", "p", request=request) for _ in range(2))
    assert board.cancel(cancelled.id)
    assert not board.start(cancelled.id)
    assert board.start(started.id)
    assert not board.cancel(started.id)
    assert board.start(started.id)  # again, after a kill
    statuses = [job.status for one in (cancelled, started) if (job := board.job(one.id))]
    assert statuses == [JobStatus.cancelled, JobStatus.running]
    (board.root / cancelled.id / "trained.json").unlink()  # the server was killed before it could report
    working(tmp_path, 3)
    trained = board.trained(cancelled.id)
    assert trained is not None
    assert trained.cancelled
