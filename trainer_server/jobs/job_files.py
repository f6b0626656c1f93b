"""What the files of `jobs/` hold: an accepted job, its progress, its outcome, idempotency keys, and jobs that ended."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, Field

from trainer_server.process.files import write_atomic
from trainer_server.wire import Job, JobKind, JobStatus, PolicySpec, SFTRequest, StepRequest, StepResult

log = logging.getLogger("trainer_server")

_WITHOUT_JOB = 3600.0
"""Seconds for which a key may be there without its job, which is written after it."""


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
    evaluations: frozenset[str] = frozenset()
    """Ids of those completions of a step whose rollouts evaluate a version, as the list of runs had it when the job was
    accepted. They are not trained."""
    trace: str | None = None
    """The value of `traceparent` of the request that made the job; None: it belongs to no trace."""

    def as_accepted(self) -> Job:
        """The job as clients see it before anything was done."""
        return Job(id=self.id, kind=self.kind, policy=self.policy, created=self.created, status=JobStatus.queued)

    @property
    def completions(self) -> list[str]:
        """Ids of the completions that the job needs from the ledger."""
        if isinstance(self.request, SFTRequest):
            trajectories = self.request.trajectories + self.request.validation_trajectories
        else:
            groups = self.request.groups if self.request else ()
            trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        return [completion_id for trajectory in trajectories for completion_id in trajectory.completions]

    @property
    def needs_teaching(self) -> bool:
        """Whether the step needs something of an engine before the trainer can compute it."""
        if not isinstance(self.request, StepRequest):
            return False
        distill = self.request.config.distill
        return (distill is not None and distill.url is not None) or bool(self.request.hints)

    @property
    def versions(self) -> set[tuple[str, int]]:
        """(policy, version) pairs that the job's request names: the source of a fork, the version that a step goes on
        from, the reference version, and the version that teaches."""
        if self.spec and self.spec.fork_of:
            return {(self.spec.fork_of.policy, self.spec.fork_of.version)}
        if not isinstance(self.request, StepRequest):
            return set()
        config = self.request.config
        versions = {(self.policy, config.reference_version)} if config.beta > 0 else set()
        if self.request.from_version is not None:
            versions.add((self.policy, self.request.from_version))
        teacher = config.distill.version if config.distill else None
        if teacher is not None and isinstance(teacher.version, int):
            versions.add((teacher.policy, teacher.version))
        return versions


class Progress(BaseModel):
    """Content of progress.json: how far the trainer is with a running job. The fields are those of Job."""

    share: float | None = None
    measured: dict[str, float] = Field(default_factory=dict)


class TrainingOutcome(BaseModel):
    """Content of trained.json: how the trainer's part of a job ended."""

    result: StepResult | None = None
    """What the job made; None where it failed or was cancelled."""
    error: str | None = None
    """Why the job failed or was cancelled; None otherwise."""
    cancelled: bool = False
    """Whether a client cancelled the job; `error` has the moment."""
    seconds: float = Field(default=0.0, description="wall time in the trainer")


CANCELLED = TrainingOutcome(
    cancelled=True,
    error="A client cancelled this job before the trainer took it up. The policy stays at the version it had; to train "
    "after all, send the request again under another idempotency key.",
)
BROKEN_OFF = TrainingOutcome(
    cancelled=True,
    error="A client cancelled this job while the trainer was at it. No version was made, and the policy stays at the "
    "version it had; to train after all, send the request again under another idempotency key.",
)


class Teaching(BaseModel):
    """Content of teaching.json. What an engine refused is missing here; the trainer counts it as skipped."""

    scores: dict[str, list[float | None]] = Field(default_factory=dict)
    """By id of a completion: the teacher's log-probability of each sampled token. None: it gave none."""
    prompts: dict[str, dict[str, list[int]]] = Field(default_factory=dict)
    """By hint and id of a completion: the completion's prompt with the hint in it, as token ids."""
    seconds: float = Field(default=0.0, description="wall time of the requests to engines")


class KeyFile(BaseModel):
    """Content of keys/<digest>.json.

    Attributes:
        job: Id of the job that was accepted under the key.
        request: Digest of its request.
    """

    job: str
    request: str


class IdempotencyKeys:
    """The directory `jobs/keys/`: which job a key made, so that a request that is sent again makes no second one.

    Args:
        jobs: The directory `jobs/`.
    """

    def __init__(self, jobs: Path) -> None:
        self._jobs = jobs

    def write(self, file: JobFile) -> None:
        """Writes which job a key makes; does nothing for a job without a key. Call it before the job is written."""
        if file.request and (key := file.request.idempotency_key):
            entry = KeyFile(job=file.id, request=digest(file.request))
            write_atomic(self._path(file.policy, key), entry.model_dump_json())

    def find(self, policy: str, key: str) -> KeyFile | None:
        """The job that was accepted under a key; None: there is none, or it was deleted."""
        try:
            entry = KeyFile.model_validate_json(self._path(policy, key).read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            log.error("a damaged file in jobs/keys is left out, for key %r of %s: %s", key, policy, error)
            return None
        return entry if (self._jobs / entry.job / "job.json").exists() else None

    def prune(self) -> None:
        """Deletes the keys of jobs that are gone, or were never written."""
        for path in (self._jobs / "keys").glob("*.json"):
            with suppress(OSError, ValueError):
                entry = KeyFile.model_validate_json(path.read_text())
                if path.stat().st_mtime < time.time() - _WITHOUT_JOB and not (self._jobs / entry.job).is_dir():
                    path.unlink()

    def _path(self, policy: str, key: str) -> Path:
        name = hashlib.sha256(json.dumps([policy, key]).encode()).hexdigest()
        return self._jobs / "keys" / f"{name}.json"


def digest(request: StepRequest | SFTRequest) -> str:
    """Digest of a request: two requests with one idempotency key must be equal."""
    return hashlib.sha256(request.model_dump_json().encode()).hexdigest()


class EndedJobs:
    """The file `jobs/ended.jsonl`: the outcomes of jobs whose directories were deleted. A job may have two lines there
    if a process was killed while it deleted the job.

    Args:
        jobs: The directory `jobs/`.
    """

    def __init__(self, jobs: Path) -> None:
        self._path = jobs / "ended.jsonl"

    def add(self, line: str) -> None:
        """Adds the line of a job, and waits until it is on disk. A line that a full disk tore stays a line of its own.

        Args:
            line: As `line_of` returns it.

        Raises:
            OSError: It could not be written.
        """
        with self._path.open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":
                    file.write(b"\n")
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    def erase(self, policy: str) -> None:
        """Deletes the lines of a policy, and those that cannot be read: they may be of it."""
        if self._path.exists():
            lines = self._path.read_text(encoding="utf-8", errors="replace").split("\n")
            write_atomic(self._path, "".join(f"{line}\n" for line in lines if line and not _may_be_of(line, policy)))


def line_of(done_file: Path) -> str:
    """The line of ended.jsonl for a job, with its metrics and without its trajectories.

    Args:
        done_file: The job's done.json. Of a damaged one, the line has the text.

    Raises:
        OSError: It cannot be read.
    """
    text = done_file.read_text(encoding="utf-8", errors="replace")
    try:
        return Job.model_validate_json(text).without_trajectories().model_dump_json() + "\n"
    except ValueError:
        return json.dumps({"id": done_file.parent.name, "damaged": text}) + "\n"


def _may_be_of(line: str, policy: str) -> bool:
    """Whether a line is of a policy. One that cannot be read may be of any: an interrupted write tore it."""
    try:
        return bool(json.loads(line).get("policy") == policy)
    except (ValueError, AttributeError):
        return True
