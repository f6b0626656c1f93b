"""The queue between server and trainer process: a directory of files, each written in one atomic step.

    File                     Written by  Content
    jobs/<id>/job.json       server      the accepted job; written before the server answers 202
    jobs/<id>/rows.json      server      sft only: the rows to imitate, as token ids
    jobs/<id>/started.json   both        the trainer started the job, or the server cancelled it. Created once, by the
                                         first of the two: a job is either started or cancelled.
    jobs/<id>/progress.json  trainer     how much of the job is done; replaced while it runs
    jobs/<id>/trained.json   trainer     the outcome; written after the version is published
    jobs/<id>/done.json      server      the final Job; written once the engine serves the version

    jobs/turn.json           server      share_gpu only: the job for which the engines rest; removed after it

A process that was killed between two files reads them at its next start and continues after the last one. Starting a
job twice is harmless: its version is published once, under the job's id.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, Field

from trainer_server.jobs.demonstrations import Demonstrations
from trainer_server.process import faults
from trainer_server.process.files import create_exclusive, write_atomic
from trainer_server.wire import (
    ConfigError,
    Job,
    JobKind,
    JobStatus,
    PolicySpec,
    SFTRequest,
    StepRequest,
    StepResult,
    TrainingError,
)

_TURN = "turn.json"
_ID = re.compile(r"job-(\d{19})-")


class JobFile(BaseModel):
    """Content of job.json. Exactly one of `spec` (kind create) and `request` (kinds step and sft) is set.

    Attributes:
        id: Id of the job; ids sort by time of acceptance.
        kind: What the job makes.
        policy: Name of the policy.
        created: Unix time, seconds.
        spec: The policy to create.
        request: The step or the warm start.
    """

    id: str
    kind: JobKind
    policy: str
    created: float
    spec: PolicySpec | None = None
    request: StepRequest | SFTRequest | None = None

    @property
    def completions(self) -> list[str]:
        """Ids of the completions that the job needs from the ledger."""
        if isinstance(self.request, SFTRequest):
            trajectories = self.request.trajectories
        else:
            groups = self.request.groups if self.request else ()
            trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        return [completion_id for trajectory in trajectories for completion_id in trajectory.completions]

    @property
    def versions(self) -> set[tuple[str, int]]:
        """(policy, version) pairs that the job's request names: the source of a fork, or the reference version."""
        if self.spec and self.spec.fork_of:
            return {(self.spec.fork_of.policy, self.spec.fork_of.version)}
        config = self.request.config if isinstance(self.request, StepRequest) else None
        return {(self.policy, config.reference_version)} if config and config.beta > 0 else set()


class Trained(BaseModel):
    """Content of trained.json: how the trainer's part of a job ended."""

    result: StepResult | None = None
    """What the job made; None where it failed or was cancelled."""
    error: str | None = None
    """Why the job failed or was cancelled; None otherwise."""
    cancelled: bool = False
    """Whether the job was cancelled before the trainer started it; `error` says why."""
    seconds: float = Field(default=0.0, description="wall time in the trainer")


CANCELLED = Trained(
    cancelled=True,
    error="A client cancelled this job before the trainer took it up. The policy stays at the version it had; to train "
    "after all, send the request again under another idempotency key.",
)


class JobBoard:
    """The directory `jobs/`. Methods read the files on every call, so that server and trainer see the same state.

    Args:
        root: The directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._kinds: dict[str, JobKind] = {}
        self._last: int | None = None

    def accept(
        self,
        kind: JobKind,
        policy: str,
        *,
        spec: PolicySpec | None = None,
        request: StepRequest | SFTRequest | None = None,
    ) -> JobFile:
        """Writes a job to disk. Once this returns, the job survives a crash.

        Call it for one job at a time: jobs run in the order of their ids, so a job must not be visible before an
        earlier one.

        Args:
            kind: What the job makes.
            policy: Name of the policy.
            spec: For kind create, the policy to create.
            request: For kinds step and sft, the request.

        Raises:
            ConfigError: The request holds a value that JSON cannot express.
            OSError: The file could not be written.
        """
        file = JobFile(
            id=f"job-{self._next():019d}-{secrets.token_hex(4)}",
            kind=kind,
            policy=policy,
            created=time.time(),
            spec=spec,
            request=request,
        )
        try:
            text = file.model_dump_json()
            JobFile.model_validate_json(text)
        except ValueError as error:  # half a surrogate pair or an infinite number: JSON cannot express them
            raise ConfigError(f"the request cannot be written down and read again: {error}") from None
        faults.point("accepting")
        write_atomic(self.root / file.id / "job.json", text)
        with suppress(OSError):  # not fatal: this only makes the trainer see the job at once
            os.utime(self.root)
        faults.point("accepted")
        return file

    def _next(self) -> int:
        """The number in the next id: the time in ns, but always above earlier ids, even if the clock was set back."""
        if self._last is None:
            self._last = max((int(match[1]) for job_id in self.ids() if (match := _ID.match(job_id))), default=0)
        self._last = max(self._last + 1, time.time_ns())
        return self._last

    def changed(self) -> float:
        """When a job was last accepted: the directory's modification time in Unix seconds; 0 if there is no directory.

        Takes the same time however many jobs there are.
        """
        return self.root.stat().st_mtime if self.root.exists() else 0.0

    def ids(self) -> list[str]:
        """Ids of all jobs, oldest first."""
        return sorted(path.parent.name for path in self.root.glob("*/job.json"))

    def file(self, job_id: str) -> JobFile:
        """The content of a job's job.json.

        Raises:
            TrainingError: The file is damaged.
            OSError: The file does not exist or cannot be read.
        """
        try:
            return JobFile.model_validate_json((self.root / job_id / "job.json").read_text())
        except ValueError as error:
            raise TrainingError(f"jobs/{job_id}/job.json in the server's home cannot be read: {error}") from None

    def write_rows(self, job_id: str, rows: Demonstrations) -> None:
        """Writes the rows that a warm start imitates. From then on the trainer may start the job."""
        write_atomic(self.root / job_id / "rows.json", rows.model_dump_json())

    def rows(self, job_id: str) -> Demonstrations | None:
        """The rows that a warm start imitates; None while they are not rendered, and for other jobs."""
        path = self.root / job_id / "rows.json"
        return Demonstrations.model_validate_json(path.read_text()) if path.exists() else None

    def ready(self, job_id: str) -> bool:
        """Whether the trainer has all files that it needs for a job. Reads job.json only once for each job."""
        if job_id not in self._kinds:
            self._kinds[job_id] = self.file(job_id).kind
        return self._kinds[job_id] != "sft" or (self.root / job_id / "rows.json").exists()

    def give_turn(self, job_id: str) -> None:
        """Lets the trainer use the GPUs that it shares with the engines, for this job, until `end_turn`."""
        write_atomic(self.root / _TURN, json.dumps({"job": job_id}))

    def has_turn(self, job_id: str) -> bool:
        """Whether the trainer may use the shared GPUs for this job."""
        try:
            return bool(json.loads((self.root / _TURN).read_text())["job"] == job_id)
        except FileNotFoundError:
            return False

    def end_turn(self) -> None:
        """Takes the shared GPUs back from the trainer. Does nothing if no job has them."""
        (self.root / _TURN).unlink(missing_ok=True)

    def start(self, job_id: str) -> bool:
        """Marks a job as started by the trainer. The trainer may start a job again after it was killed.

        Returns:
            False if the job was cancelled before.
        """
        mine = create_exclusive(self.root / job_id / "started.json", json.dumps({"time": time.time()}))
        return mine or not self.cancelled(job_id)

    def cancel(self, job_id: str) -> bool:
        """Cancels a job that the trainer has not started.

        Returns:
            False if the trainer started the job before.
        """
        claim = {"time": time.time(), "cancelled": True}
        if not create_exclusive(self.root / job_id / "started.json", json.dumps(claim)):
            return False
        self.report(job_id, CANCELLED)
        return True

    def started(self, job_id: str) -> bool:
        """Whether the trainer started the job."""
        return (self.root / job_id / "started.json").exists() and not self.cancelled(job_id)

    def cancelled(self, job_id: str) -> bool:
        """Whether the job was cancelled before the trainer started it."""
        path = self.root / job_id / "started.json"
        try:
            return bool(json.loads(path.read_text()).get("cancelled"))
        except (FileNotFoundError, ValueError):  # not started; or damaged, which counts as started
            return False

    def progress(self, job_id: str, share: float) -> None:
        """Records how much of a running job is done: `share`, 0 to 1."""
        write_atomic(self.root / job_id / "progress.json", json.dumps({"share": share}))

    def report(self, job_id: str, trained: Trained) -> None:
        """Writes trained.json. The trainer calls this at its end of a job; the server to fail or cancel a job.

        A job that was cancelled stays cancelled, whatever is reported of it.
        """
        if self.cancelled(job_id):
            trained = CANCELLED
        write_atomic(self.root / job_id / "trained.json", trained.model_dump_json())

    def trained(self, job_id: str) -> Trained | None:
        """How the trainer's part of a job ended; None while it has not. A damaged file counts as a failed job."""
        path = self.root / job_id / "trained.json"
        try:
            return Trained.model_validate_json(path.read_text()) if path.exists() else None
        except ValueError as error:
            return Trained(error=f"jobs/{job_id}/trained.json in the server's home cannot be read: {error}")

    def finish(self, job: Job) -> None:
        """Writes done.json, the final state of a job."""
        faults.point("finishing")
        write_atomic(self.root / job.id / "done.json", job.model_dump_json())
        faults.point("done")

    def job(self, job_id: str) -> Job | None:
        """The job as clients see it; None when there is no such job, or it is damaged."""
        directory = self.root / job_id
        progress = directory / "progress.json"
        try:
            if (done := directory / "done.json").exists():
                return Job.model_validate_json(done.read_text())
            file = self.file(job_id)
            share = json.loads(progress.read_text())["share"] if progress.exists() else None
        except (FileNotFoundError, ValueError, TrainingError):
            return None
        status = JobStatus.queued
        if self.cancelled(job_id):
            status = JobStatus.cancelled
        elif self.started(job_id):
            status = JobStatus.running
        return Job(
            id=file.id,
            kind=file.kind,
            policy=file.policy,
            created=file.created,
            status=status,
            error=CANCELLED.error if status == JobStatus.cancelled else None,
            progress=share,
        )

    def open_ids(self) -> list[str]:
        """Ids of the jobs without done.json, oldest first."""
        return [job_id for job_id in self.ids() if not (self.root / job_id / "done.json").exists()]
