"""The queue between server and trainer process: files that are only ever added, each written in one atomic step.

    jobs/<id>/job.json       what was accepted; by the server, before it answers 202
    jobs/<id>/rows.json      sft only: what is imitated, as token ids; by the server, which has the chat template
    jobs/<id>/started.json   when the trainer took it up; by the trainer. Or that it was cancelled; by the server.
                             Created once, by whoever comes first: a job is either started or cancelled.
    jobs/<id>/progress.json  how far it is, replaced as it goes on; by the trainer
    jobs/<id>/trained.json   what came of it; by the trainer, after the version is published
    jobs/<id>/done.json      the final Job, once the engine serves the version; by the server

    jobs/turn.json           share_gpu only: the job that the engines rest for; by the server, removed when it is done

A process killed between two files finds the job again at its next start and goes on from the last one. Taking a job up
twice is harmless: the version that it makes is published under the job's id, once.
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
    """job.json: exactly one of `spec` (kind create) and `request` (kinds step and sft) is set."""

    id: str
    kind: JobKind
    policy: str
    created: float
    spec: PolicySpec | None = None
    request: StepRequest | SFTRequest | None = None

    @property
    def completions(self) -> list[str]:
        """Ids that it needs from the ledger."""
        if isinstance(self.request, SFTRequest):
            trajectories = self.request.trajectories
        else:
            groups = self.request.groups if self.request else ()
            trajectories = [one for group in groups for one in group.trajectories]
        return [one for trajectory in trajectories for one in trajectory.completions]

    @property
    def versions(self) -> set[tuple[str, int]]:
        """(policy, version) pairs that it names."""
        if self.spec and self.spec.fork_of:
            return {(self.spec.fork_of.policy, self.spec.fork_of.version)}
        config = self.request.config if isinstance(self.request, StepRequest) else None
        return {(self.policy, config.reference_version)} if config and config.beta > 0 else set()


class Trained(BaseModel):
    """trained.json: how the trainer's part ended. `error` set: failed, and no version was made."""

    result: StepResult | None = None
    error: str | None = None
    cancelled: bool = False
    """The trainer did not take the job up; `error` says why."""
    seconds: float = Field(default=0.0, description="wall time in the trainer")


CANCELLED = Trained(
    cancelled=True,
    error="A client cancelled this job before the trainer took it up. The policy stays at the version it had; to train "
    "after all, send the request again under another idempotency key.",
)


class JobBoard:
    """The directory `jobs/`. Every method reads the files; no state that could go stale."""

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
        """Writes a job down, durably; when this returns, the job cannot be lost. One at a time: jobs are done in the
        order of their ids, so a later one must not be there before an earlier one. Raises ConfigError for what could
        not be read again."""
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
        except ValueError as error:  # half a surrogate pair, an infinite number: requests may hold them, JSON may not
            raise ConfigError(f"the request cannot be written down and read again: {error}") from None
        faults.point("accepting")
        write_atomic(self.root / file.id / "job.json", text)
        with suppress(OSError):  # the job is there; this only has it seen at once
            os.utime(self.root)
        faults.point("accepted")
        return file

    def _next(self) -> int:
        """What an id begins with: the time in ns, and more than that of any job before, wherever the clock was set."""
        if self._last is None:
            self._last = max((int(found[1]) for one in self.ids() if (found := _ID.match(one))), default=0)
        self._last = max(self._last + 1, time.time_ns())
        return self._last

    def changed(self) -> float:
        """When a job was accepted last, to the resolution of the file system's clock; 0 before the first. Costs
        nothing, however many jobs there have been."""
        return self.root.stat().st_mtime if self.root.exists() else 0.0

    def ids(self) -> list[str]:
        """All jobs, oldest first."""
        return sorted(path.parent.name for path in self.root.glob("*/job.json"))

    def file(self, job_id: str) -> JobFile:
        """Raises TrainingError for one that is damaged."""
        try:
            return JobFile.model_validate_json((self.root / job_id / "job.json").read_text())
        except ValueError as error:
            raise TrainingError(f"jobs/{job_id}/job.json in the server's home cannot be read: {error}") from None

    def write_rows(self, job_id: str, rows: Demonstrations) -> None:
        """What a warm start imitates: from then on the trainer may take it up."""
        write_atomic(self.root / job_id / "rows.json", rows.model_dump_json())

    def rows(self, job_id: str) -> Demonstrations | None:
        path = self.root / job_id / "rows.json"
        return Demonstrations.model_validate_json(path.read_text()) if path.exists() else None

    def ready(self, job_id: str) -> bool:
        """Whether there is all that the trainer needs. Asked many times while a large request is rendered: it is not
        read each time."""
        if job_id not in self._kinds:
            self._kinds[job_id] = self.file(job_id).kind
        return self._kinds[job_id] != "sft" or (self.root / job_id / "rows.json").exists()

    def give_turn(self, job_id: str) -> None:
        """From now on the trainer may use the GPUs that it shares with the engines, for this job."""
        write_atomic(self.root / _TURN, json.dumps({"job": job_id}))

    def has_turn(self, job_id: str) -> bool:
        try:
            return bool(json.loads((self.root / _TURN).read_text())["job"] == job_id)
        except FileNotFoundError:
            return False

    def end_turn(self) -> None:
        (self.root / _TURN).unlink(missing_ok=True)

    def start(self, job_id: str) -> bool:
        """Takes a job up for the trainer; the same job may be taken up again after a kill.

        Returns:
            False for a job that was cancelled before.
        """
        mine = create_exclusive(self.root / job_id / "started.json", json.dumps({"time": time.time()}))
        return mine or not self.cancelled(job_id)

    def cancel(self, job_id: str) -> bool:
        """Cancels a job that nobody has taken up.

        Returns:
            False for a job that the trainer took up before.
        """
        claim = {"time": time.time(), "cancelled": True}
        if not create_exclusive(self.root / job_id / "started.json", json.dumps(claim)):
            return False
        self.report(job_id, CANCELLED)
        return True

    def started(self, job_id: str) -> bool:
        """Whether the trainer took the job up."""
        return (self.root / job_id / "started.json").exists() and not self.cancelled(job_id)

    def cancelled(self, job_id: str) -> bool:
        """Whether the job was cancelled before the trainer took it up."""
        path = self.root / job_id / "started.json"
        try:
            return bool(json.loads(path.read_text()).get("cancelled"))
        except (FileNotFoundError, ValueError):  # not taken up; or damaged, and then as if the trainer had
            return False

    def progress(self, job_id: str, share: float) -> None:
        """How much of a running job is done, 0 to 1."""
        write_atomic(self.root / job_id / "progress.json", json.dumps({"share": share}))

    def report(self, job_id: str, trained: Trained) -> None:
        """The last word on a job before it is served: the trainer's; the server's when there is nothing to give it. A
        job that was cancelled stays cancelled, whatever it is said to have come to."""
        if self.cancelled(job_id):
            trained = CANCELLED
        write_atomic(self.root / job_id / "trained.json", trained.model_dump_json())

    def trained(self, job_id: str) -> Trained | None:
        path = self.root / job_id / "trained.json"
        try:
            return Trained.model_validate_json(path.read_text()) if path.exists() else None
        except ValueError as error:
            return Trained(error=f"jobs/{job_id}/trained.json in the server's home cannot be read: {error}")

    def finish(self, job: Job) -> None:
        """The server's last word on a job."""
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
        """Jobs without a final word, oldest first."""
        return [job_id for job_id in self.ids() if not (self.root / job_id / "done.json").exists()]
