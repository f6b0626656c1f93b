"""The queue: jobs in the order in which they were accepted, none that cannot be read, and cheap to look at."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from trainer_server.common import Home
from trainer_server.jobs.job_files import BROKEN_OFF, TrainingOutcome
from trainer_server.jobs.queue import JobQueue
from trainer_server.ledger.sqlite import SQLiteLedger
from trainer_server.training.grpo.batch import Origin
from trainer_server.training.worker import Worker
from trainer_server.wire import (
    ConfigError,
    Conversation,
    GroupRef,
    Job,
    JobStatus,
    PolicySpec,
    SFTRequest,
    StepRequest,
    StepResult,
    TrainingError,
)

SPEC = PolicySpec(name="p")


def test_ids_are_in_the_order_of_acceptance_wherever_the_clock_was_set(tmp_path: Path) -> None:
    early = JobQueue(tmp_path).accept("create", "p", spec=SPEC)
    late = f"job-{time.time_ns() + 3600 * 10**9:019d}-ffffffff"  # accepted before the clock was set back by an hour
    os.rename(tmp_path / early.id, tmp_path / late)
    (tmp_path / "job-by-hand").mkdir()
    (tmp_path / "job-by-hand" / "job.json").write_text("{}")
    accepted = [late]
    for _ in range(2):  # before and after a restart
        board = JobQueue(tmp_path)
        accepted += [board.accept("create", "p", spec=SPEC).id for _ in range(20)]
    assert board.ids() == [*accepted, "job-by-hand"]


@pytest.mark.parametrize(
    "request_",
    [
        StepRequest(groups=[GroupRef(scenario_id="\ud83d", trajectories=[])]),
        SFTRequest(conversations=[
            Conversation(messages=[{"role": "user", "content": "?"}, {"role": "assistant", "content": "\ud83d"}])
        ]),
        SFTRequest(conversations=[
            Conversation(
                messages=[{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}],
                tools=[{"type": "function", "function": {"name": "f", "parameters": {"maximum": float("inf")}}}],
            )
        ]),
    ],
)  # fmt: skip
def test_what_could_not_be_read_again_is_not_accepted(tmp_path: Path, request_: StepRequest | SFTRequest) -> None:
    board = JobQueue(tmp_path)
    with pytest.raises(ConfigError, match="cannot be written down and read again"):
        board.accept("sft" if isinstance(request_, SFTRequest) else "step", "p", request=request_)
    assert list(tmp_path.iterdir()) == []


def test_damaged_files_are_said(tmp_path: Path) -> None:
    board = JobQueue(tmp_path)
    job = board.accept("create", "p", spec=SPEC)
    (tmp_path / job.id / "trained.json").write_text("{")
    trained = board.training_outcome(job.id)
    assert trained is not None
    assert "trained.json in the server's home cannot be read" in str(trained.error)
    (tmp_path / job.id / "job.json").write_text("{")
    assert board.job(job.id) is None
    with pytest.raises(TrainingError, match=r"job\.json in the server's home cannot be read"):
        board.file(job.id)


class Ended(Exception):
    pass


class Watched(JobQueue):
    """Counts how often it is looked through, and ends the worker after `polls`."""

    def __init__(self, root: Path, polls: int) -> None:
        super().__init__(root)
        self.looks, self._polls = 0, polls

    def ids(self) -> list[str]:
        self.looks += 1
        return super().ids()

    def changed_at(self) -> float:
        self._polls -= 1
        if self._polls < 0:
            raise Ended
        return super().changed_at()


def working(home: Path, polls: int) -> Watched:
    """A worker that has no model, for so many polls; the board that it looked at."""
    worker = Worker(Home(home), None, ledger=SQLiteLedger(Home(home).ledger), origin=Origin("base", "t"))  # type: ignore[arg-type]
    worker.queue = board = Watched(worker.home.jobs, polls)
    with pytest.raises(Ended):
        worker.run()
    return board


def test_an_idle_worker_does_not_look_through_all_jobs(tmp_path: Path) -> None:
    board = JobQueue(Home(tmp_path).jobs)
    for _ in range(3):
        board.report(board.accept("create", "p", spec=SPEC).id, TrainingOutcome())
    assert working(tmp_path, 30).looks < 5


def test_an_accepted_job_changes_the_board(tmp_path: Path) -> None:
    board = JobQueue(tmp_path)
    seen = [board.changed_at()]
    for _ in range(3):
        time.sleep(0.02)  # more than a tick of the file system's clock
        board.accept("create", "p", spec=SPEC)
        seen.append(board.changed_at())
        board.start(board.ids()[-1])
        assert board.changed_at() == seen[-1]
    assert seen == sorted(set(seen))


def test_a_damaged_job_is_reported_and_the_worker_goes_on(tmp_path: Path) -> None:
    board = JobQueue(Home(tmp_path).jobs)
    damaged = board.accept("create", "p", spec=SPEC)
    (board.root / damaged.id / "job.json").write_text(json.dumps({"id": damaged.id, "kind": "step"}))
    good = board.accept("step", "p", request=StepRequest(groups=[GroupRef(scenario_id="s", trajectories=[])]))
    working(tmp_path, 3)
    for job, why in ((damaged, "cannot be read"), (good, "there is no policy 'p'")):
        trained = board.training_outcome(job.id)
        assert trained is not None
        assert why in str(trained.error)


def test_a_job_is_either_started_or_cancelled(tmp_path: Path) -> None:
    board = JobQueue(Home(tmp_path).jobs)
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
    trained = board.training_outcome(cancelled.id)
    assert trained is not None
    assert trained.cancelled


def request_of(key: str) -> StepRequest:
    return StepRequest(groups=[GroupRef(scenario_id="s", trajectories=[])], idempotency_key=key)


def ended(board: JobQueue, days_ago: float, **request: object) -> str:
    """A step that ended so many days ago."""
    groups = [GroupRef(scenario_id="s", trajectories=[])]
    file = board.accept("step", "p", request=StepRequest.model_validate({"groups": groups, **request}))
    result = StepResult(version=1, metrics={"reward_mean": 0.5}, trajectories=["t1"])
    board.finish(Job(id=file.id, kind="step", policy="p", created=0.0, status=JobStatus.succeeded, result=result))
    at = time.time() - days_ago * 86400
    os.utime(board.root / file.id / "done.json", (at, at))
    return file.id


def test_jobs_that_ended_long_ago_are_deleted_and_their_metrics_stay(tmp_path: Path) -> None:
    board = JobQueue(tmp_path)
    old, older = ended(board, 31, idempotency_key="old"), ended(board, 40)
    young = ended(board, 29, idempotency_key="young")
    waiting = board.accept("create", "p", spec=SPEC).id
    damaged = ended(board, 31)
    (tmp_path / damaged / "done.json").write_text("{")
    os.utime(tmp_path / damaged / "done.json", (0, 0))
    (tmp_path / damaged / "job.json").write_text("{")
    half = board.accept("step", "p", request=request_of("half")).id  # the server was killed between the two files
    shutil.rmtree(tmp_path / half)
    for key in (tmp_path / "keys").iterdir():
        os.utime(key, (0, 0))
    just_now = board.accept("step", "p", request=request_of("just now")).id
    shutil.rmtree(tmp_path / just_now)
    assert board.prune(30) == 3
    assert board.prune(30) == 0
    for again in (board, JobQueue(tmp_path)):
        assert again.ids() == [young, waiting]
        assert again.open_ids() == [waiting]
        assert again.keys.find("p", "old") is None
        known = again.keys.find("p", "young")
        assert known is not None
        assert known.job == young
    lines = [json.loads(line) for line in (tmp_path / "ended.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [old, older, damaged]
    assert lines[0]["result"] == {"version": 1, "metrics": {"reward_mean": 0.5}, "trajectories": None}
    assert lines[2] == {"id": damaged, "damaged": "{"}
    assert len(list((tmp_path / "keys").iterdir())) == 2, "of the young job, and of what is being accepted"


def test_a_torn_line_of_ended_jobs_keeps_no_policy_from_being_erased(tmp_path: Path) -> None:
    board = JobQueue(tmp_path)
    ended_file = tmp_path / "ended.jsonl"
    ended_file.write_bytes(b'{"policy": "p", "error": "caf\xc3')  # the disk was full
    board.erase([ended(board, 1)])
    first, second, *rest = ended_file.read_bytes().split(b"\n")
    assert (first, rest) == (b'{"policy": "p", "error": "caf\xc3', [b""])
    other = json.dumps({"policy": "q", "error": "a\u2028b"}, ensure_ascii=False)
    ended_file.write_bytes(b"\n".join((first, second, other.encode(), b"")))
    board.erase([], "p")
    assert ended_file.read_text() == f"{other}\n", "what cannot be read may be of the policy"


def test_jobs_that_ended_first_go_where_all_jobs_are_too_large(tmp_path: Path) -> None:
    board = JobQueue(tmp_path)
    waiting = board.accept("create", "p", spec=SPEC).id
    first, second, third = (ended(board, days) for days in (3, 2, 1))
    for job_id in (waiting, first, second, third):
        (tmp_path / job_id / "tokens.json.gz").write_bytes(b"x" * 100_000)
    assert board.prune(30, 500_000) == 0
    assert board.prune(30, 350_000) == 1
    assert board.ids() == [waiting, second, third]
    assert board.prune(30, 0) == 2
    assert board.ids() == [waiting], "an open job stays, however large it is"
    just_ended = ended(board, 0)
    assert board.prune(30, 0) == 0
    assert board.ids() == [waiting, just_ended], "its client may not have heard of its end"


def test_what_a_killed_server_was_deleting_goes_with_the_next_jobs(tmp_path: Path) -> None:
    board = JobQueue(tmp_path)
    job_id = ended(board, 1)
    os.rename(tmp_path / job_id, tmp_path / f".deleted-{job_id}")
    assert board.ids() == []
    assert board.prune(30) == 0
    assert list(tmp_path.iterdir()) == []


def test_jobs_that_have_ended_are_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = JobQueue(tmp_path)
    jobs = [ended(board, 1) for _ in range(3)]
    waiting = board.accept("create", "p", spec=SPEC).id
    assert board.open_ids() == [waiting]
    looks: list[str] = []
    plain = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: (looks.append(path.parent.name), plain(path))[1])
    assert board.ids() == [*jobs, waiting]
    assert board.open_ids() == [waiting]
    assert looks == [waiting]
    monkeypatch.undo()
    (tmp_path / jobs[0] / "done.json").unlink()  # directories that vanish are forgotten
    os.rename(tmp_path / jobs[0], tmp_path / "elsewhere")
    assert board.ids() == [*jobs[1:], waiting]


def test_a_worker_reads_nothing_of_jobs_that_have_ended(tmp_path: Path) -> None:
    board = JobQueue(Home(tmp_path).jobs)
    for _ in range(2):
        job_id = ended(board, 1)
        (board.root / job_id / "job.json").write_text("{")  # it would report this
    working(tmp_path, 3)
    assert not list(board.root.glob("*/trained.json"))


def test_the_request_of_an_open_job_is_read_once_however_often_somebody_asks(tmp_path: Path) -> None:
    """That of a warm start has hundreds of conversations, and a progress bar asks once a second."""
    board = JobQueue(tmp_path)
    job_id = board.accept("create", "p", spec=SPEC).id
    first = board.job(job_id)
    (tmp_path / job_id / "job.json").write_text("{")  # who reads it again finds no job
    (tmp_path / job_id / "progress.json").write_text('{"share": 0.5}')
    later = board.job(job_id)
    assert first is not None
    assert later == first.model_copy(update={"progress": 0.5})
    shutil.rmtree(tmp_path / job_id)
    assert board.job(job_id) is None


def test_a_job_whose_directory_was_deleted_is_not_made_again(tmp_path: Path) -> None:
    board = JobQueue(tmp_path)
    job = board.accept("create", "p", spec=SPEC)
    board.training_outcome(job.id)
    for path in (tmp_path / job.id).iterdir():
        path.unlink()
    (tmp_path / job.id).rmdir()
    board.report(job.id, TrainingOutcome(error="out of memory"))
    assert not (tmp_path / job.id).exists()
    assert board.job(job.id) is None
    with pytest.raises(TrainingError, match=r"job\.json in the server's home cannot be read"):
        board.file(job.id)


def test_a_job_that_was_broken_off_is_cancelled(tmp_path: Path) -> None:
    board = JobQueue(tmp_path)
    request = StepRequest(groups=[GroupRef(scenario_id="s", trajectories=[])])
    job_id = board.accept("step", "p", request=request).id
    assert board.started_at(job_id) is None
    board.start(job_id)
    assert time.time() - 60 < (board.started_at(job_id) or 0.0) <= time.time()
    board.report(job_id, BROKEN_OFF)
    job = board.job(job_id)
    assert job is not None
    assert (job.status, job.error) == (JobStatus.cancelled, BROKEN_OFF.error)


@pytest.mark.parametrize("text", ["[]", "null", '{"time": null, "share": "x"}', "{", ""])
def test_a_damaged_file_of_a_job_breaks_no_list(tmp_path: Path, text: str) -> None:
    board = JobQueue(tmp_path)
    job = board.accept("create", "p", spec=SPEC)
    (tmp_path / job.id / "started.json").write_text(text)
    assert board.started_at(job.id) is None
    assert board.start(job.id)
    assert board.job(job.id).status == JobStatus.running
    (tmp_path / job.id / "progress.json").write_text(text)
    assert board.job(job.id) is None


def test_an_unreadable_job_keeps_no_other_from_being_pruned(tmp_path: Path) -> None:
    board = JobQueue(tmp_path)
    binary, unreadable = ended(board, 31), ended(board, 31)
    ended(board, 31)
    (tmp_path / binary / "done.json").write_bytes(b"\xff")
    (tmp_path / unreadable / "done.json").unlink()
    (tmp_path / unreadable / "done.json").mkdir()
    for job_id in (binary, unreadable):
        os.utime(tmp_path / job_id / "done.json", (0, 0))
    assert board.prune(30) == 2
    assert board.ids() == [unreadable]
