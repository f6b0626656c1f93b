"""The queue between server and trainer process: a directory of files, each written in one atomic step.

    File                     Written by  Content
    jobs/<id>/job.json       server      the accepted job; written before the server answers 202
    jobs/<id>/rows.json      server      sft only: the rows to imitate, as token ids
    jobs/<id>/teaching.json  server      step only, where it needs an engine: log-probs of another vLLM for the sampled
                                         tokens, and prompts with hints in them
    jobs/<id>/started.json   both        the trainer started the job, or the server cancelled it. Created once, by the
                                         first of the two: a job is either started or cancelled.
    jobs/<id>/progress.json  trainer     how much of the job is done; replaced while it runs
    jobs/<id>/used.json      trainer     step only: ids of the trajectories that are trained; written before the version
    jobs/<id>/trained.json   trainer     the outcome; written after the version is published
                             server      of a job that was cancelled, or took too long, while no trainer runs
    jobs/<id>/done.json      server      the final Job; written once the engine serves the version

    jobs/keys/<digest>.json  server      the job that an idempotency key made, and a digest of its request
    jobs/turn.json           server      share_gpu only: the job for which the engines rest; removed after it
    jobs/ended.jsonl         server      results of jobs whose directories were deleted, a line each; see `prune`

A process that was killed between two files reads them at its next start and continues after the last one. Starting a
job twice is harmless: its version is published once, under the job's id.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from trainer_server.jobs.demonstrations import Demonstrations
from trainer_server.jobs.job_files import (
    CANCELLED,
    EndedJobs,
    IdempotencyKeys,
    JobFile,
    Progress,
    Teaching,
    TrainingOutcome,
    line_of,
)
from trainer_server.process import faults
from trainer_server.process.files import create_exclusive, may_pass, write_atomic
from trainer_server.wire import (
    ConfigError,
    Job,
    JobKind,
    JobStatus,
    PolicySpec,
    SFTRequest,
    StepRequest,
    TrainingError,
)

log = logging.getLogger("trainer_server")

M = TypeVar("M", bound=BaseModel)

_TURN = "turn.json"
_ROWS, _TEACHING = "rows.json", "teaching.json"
_RECENT = 3600.0
"""Seconds after its end in which a client may still ask for a job, or send its request again."""
_ID = re.compile(r"job-(\d{19})-")


class JobQueue:
    """The directory `jobs/`. Methods read the files on every call, so that server and trainer see the same state.

    What cannot change any more is remembered: that a directory holds a job, and that a job has ended.

    Args:
        root: The directory.

    Attributes:
        keys: The idempotency keys of its jobs.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.keys = IdempotencyKeys(root)
        self._deleted = EndedJobs(root)
        self._needs: dict[str, str | None] = {}
        self._jobs: set[str] = set()
        """Directories that hold a job."""
        self._ended: dict[str, JobStatus | None] = {}
        """Jobs with a done.json; their final status, once it was read."""
        self._unwritten: dict[str, Job] = {}
        """Jobs that have ended, and whose done.json cannot be written."""
        self._accepted: dict[str, Job] = {}
        """Open jobs that somebody asked about, as they were accepted: to read a warm start's job.json takes 0.1 s, and
        a progress bar asks once a second."""
        self._last: int | None = None

    def accept(
        self,
        kind: JobKind,
        policy: str,
        *,
        spec: PolicySpec | None = None,
        request: StepRequest | SFTRequest | None = None,
        evaluations: frozenset[str] = frozenset(),
        trace: str | None = None,
    ) -> JobFile:
        """Writes a job to disk. Once this returns, the job survives a crash.

        Call it for one job at a time: jobs run in the order of their ids, so a job must not be visible before an
        earlier one.

        Args:
            kind: What the job makes.
            policy: Name of the policy.
            spec: For kind create, the policy to create.
            request: For kinds step and sft, the request.
            evaluations: See `JobFile.evaluations`.
            trace: See `JobFile.trace`.

        Raises:
            ConfigError: The request holds a value that JSON cannot express.
            OSError: A file could not be written.
        """
        file = JobFile(
            id=f"job-{self._next():019d}-{secrets.token_hex(4)}",
            kind=kind,
            policy=policy,
            created=time.time(),
            spec=spec,
            request=request,
            evaluations=evaluations,
            trace=trace,
        )
        try:
            text = file.model_dump_json()
            if JobFile.model_validate_json(text) != file:
                raise ValueError("it holds NaN or infinity, which are no numbers of JSON: send finite numbers")
        except ValueError as error:  # half a surrogate pair or an infinite number: JSON cannot express them
            raise ConfigError(f"the request cannot be written down and read again: {error}") from None
        faults.point("accepting")
        self.keys.write(file)  # before the job: else a request that is sent again after a crash makes another
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

    def changed_at(self) -> float:
        """When a job was last accepted: the directory's modification time in Unix seconds; 0 if there is no directory.

        Takes the same time however many jobs there are.
        """
        return self.root.stat().st_mtime if self.root.exists() else 0.0

    def ids(self) -> list[str]:
        """Ids of all jobs, oldest first. Looks into new directories only."""
        try:
            names = set(os.listdir(self.root))
        except FileNotFoundError:
            names = set()
        new = (name for name in names - self._jobs if name.startswith("job-"))
        jobs = (self._jobs & names) | {name for name in new if (self.root / name / "job.json").exists()}
        self._jobs = jobs
        return sorted(jobs)

    def exists(self, job_id: str) -> bool:
        """Whether the job's directory is there: somebody may have deleted it by hand."""
        return (self.root / job_id).is_dir()

    def file(self, job_id: str) -> JobFile:
        """The content of a job's job.json.

        Raises:
            TrainingError: The file is gone, damaged, or may not be read.
            OSError: The file cannot be read now; see `may_pass`.
        """
        name = f"jobs/{job_id}/job.json in the server's home"
        try:
            return JobFile.model_validate_json((self.root / job_id / "job.json").read_text())
        except OSError as error:
            if may_pass(error):
                raise
            raise TrainingError(f"{name} cannot be read: {error}") from None
        except ValueError as error:
            raise TrainingError(f"{name} cannot be read: {error}") from None

    def write_rows(self, job_id: str, rows: Demonstrations) -> None:
        """Writes the rows that a warm start imitates. From then on the trainer may start the job."""
        write_atomic(self.root / job_id / _ROWS, rows.model_dump_json())

    def rows(self, job_id: str) -> Demonstrations | None:
        """The rows that a warm start imitates; None while they are not rendered, and for other jobs."""
        return self._read(job_id, _ROWS, Demonstrations)

    def write_teaching(self, job_id: str, teaching: Teaching) -> None:
        """Writes what a step needs of engines. From then on the trainer may start the job."""
        write_atomic(self.root / job_id / _TEACHING, teaching.model_dump_json())

    def teaching(self, job_id: str) -> Teaching | None:
        """What a step needs of engines; None while it is not written, and for jobs that need nothing."""
        return self._read(job_id, _TEACHING, Teaching)

    def ready(self, job_id: str) -> bool:
        """Whether the trainer has all files that it needs for a job. Reads job.json only once for each job."""
        if job_id not in self._needs:
            file = self.file(job_id)
            teaching = _TEACHING if file.needs_teaching else None
            self._needs[job_id] = _ROWS if file.kind == "sft" else teaching
        name = self._needs[job_id]
        return name is None or (self.root / job_id / name).exists()

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
        success = create_exclusive(self.root / job_id / "started.json", json.dumps({"time": time.time()}))
        return success or not self.cancelled(job_id)

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

    def started_at(self, job_id: str) -> float | None:
        """When the trainer first started the job, Unix time; None: it has not, or the file does not say."""
        claim = self._claim(job_id)
        try:
            return None if claim.get("cancelled") else float(claim["time"])
        except (TypeError, ValueError, KeyError):
            return None

    def cancelled(self, job_id: str) -> bool:
        """Whether the job was cancelled before the trainer started it."""
        return bool(self._claim(job_id).get("cancelled"))

    def _claim(self, job_id: str) -> dict[str, Any]:
        """The content of started.json; empty where there is none, or a damaged one, which counts as started."""
        try:
            claim = json.loads((self.root / job_id / "started.json").read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return claim if isinstance(claim, dict) else {}

    def progress(self, job_id: str, progress: Progress) -> None:
        """Records how much of a running job is done."""
        write_atomic(self.root / job_id / "progress.json", progress.model_dump_json())

    def use(self, job_id: str, trajectories: Sequence[str]) -> None:
        """Records which trajectories a step trains. The trainer calls this before it publishes the version."""
        write_atomic(self.root / job_id / "used.json", json.dumps(list(trajectories)))

    def used_trajectories(self, job_id: str) -> list[str] | None:
        """Ids of the trajectories that a step trained; None: that was not written down."""
        try:
            return [str(trajectory) for trajectory in json.loads((self.root / job_id / "used.json").read_text())]
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def report(self, job_id: str, outcome: TrainingOutcome) -> None:
        """Writes trained.json. The trainer calls this at its end of a job; the server to fail or cancel a job.

        A job that was cancelled stays cancelled, whatever is reported of it. A job whose directory was deleted stays
        deleted.
        """
        if not self.exists(job_id):
            log.error("jobs/%s was deleted: nobody is told how it ended (%s)", job_id, outcome.error or "well")
            return
        if self.cancelled(job_id):
            outcome = CANCELLED
        write_atomic(self.root / job_id / "trained.json", outcome.model_dump_json())

    def training_outcome(self, job_id: str) -> TrainingOutcome | None:
        """How the trainer's part of a job ended; None while it has not. A damaged file counts as a failed job."""
        try:
            return self._read(job_id, "trained.json", TrainingOutcome)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and may_pass(error):
                raise
            return TrainingOutcome(error=f"jobs/{job_id}/trained.json in the server's home cannot be read: {error}")

    def put_in_service(self, job_id: str) -> None:
        """Records that the policy's name means the version of a job. The server calls this before it means it: a
        server that is started again must not answer with an older version."""
        write_atomic(self.root / job_id / "in_service.json", json.dumps({"time": time.time()}))

    def in_service(self, job_id: str) -> bool:
        """Whether the policy's name may have meant the version of an open job."""
        return (self.root / job_id / "in_service.json").exists()

    def finish(self, job: Job) -> None:
        """Writes done.json, the final state of a job."""
        faults.point("finishing")
        write_atomic(self.root / job.id / "done.json", job.model_dump_json())
        self._accepted.pop(job.id, None)
        faults.point("done")

    def remember(self, job: Job) -> None:
        """Keeps in memory how a job ended whose done.json cannot be written: clients that wait must learn it."""
        self._unwritten[job.id] = job

    def job(self, job_id: str) -> Job | None:
        """The job as clients see it; None when there is no such job, or it is damaged."""
        if job_id in self._unwritten:
            return self._unwritten[job_id].model_copy()
        try:
            if (job := self._read(job_id, "done.json", Job)) is not None:
                self._ended[job_id] = job.status
                return job
            job_before = self._accepted.get(job_id) if self.exists(job_id) else None
            if job_before is None:
                job_before = self._accepted[job_id] = self.file(job_id).as_accepted()
            progress = self._read(job_id, "progress.json", Progress) or Progress()
            outcome = self.training_outcome(job_id)
        except OSError as error:
            if may_pass(error):
                raise
            return None
        except (ValueError, TypeError, KeyError, TrainingError):
            return None
        state: dict[str, Any] = {"progress": progress.share, "measured": progress.measured}
        if self.cancelled(job_id):
            state |= {"status": JobStatus.cancelled, "error": CANCELLED.error}
        elif outcome and outcome.cancelled:
            state |= {"status": JobStatus.cancelled, "error": outcome.error}
        elif self.started(job_id):
            state["status"] = JobStatus.running
        return job_before.model_copy(update=state)

    def _read(self, job_id: str, name: str, model: type[M]) -> M | None:
        """The content of a file of a job; None where there is none. Raises ValueError for a damaged one, or OSError."""
        try:
            return model.model_validate_json((self.root / job_id / name).read_text())
        except FileNotFoundError:
            return None

    def final_status(self, job_id: str) -> JobStatus | None:
        """The status of a job that has ended; None: it has not, or that was not read yet. Reads no file."""
        return self._ended.get(job_id)

    def open_ids(self) -> list[str]:
        """Ids of the jobs without done.json, oldest first. Reads nothing of jobs that have ended."""
        ids = self.ids()
        for job_id in ids:
            if job_id not in self._ended and (self.root / job_id / "done.json").exists():
                self._ended[job_id] = None
        return [job_id for job_id in ids if job_id not in self._ended]

    def prune(self, days: float, most_bytes: int | None = None, lag: float = 0.0) -> int:
        """Deletes the directories of jobs that ended long ago, and their idempotency keys. Open jobs stay.

        Their outcome stays: a line of ended.jsonl is the Job, with its metrics.

        Args:
            days: Jobs that ended longer ago than this are deleted.
            most_bytes: Size of all jobs above which those that ended first are deleted before their time, but for those
                of the last hour, whose clients may still ask for them; None: there is no limit.
            lag: Days by which the system's clock is ahead (`RetentionClock.lag`): all ages are less by so much.

        Returns:
            How many were deleted.
        """
        for path in self.root.glob(".deleted-*"):
            shutil.rmtree(path, ignore_errors=True)
        ends: list[tuple[float, str]] = []
        for job_id in self.ids():
            try:
                ends.append(((self.root / job_id / "done.json").stat().st_mtime, job_id))
            except FileNotFoundError:  # it has not ended
                continue
            except OSError as error:
                log.error("jobs/%s in the server's home is left there, it cannot be read: %s", job_id, error)
        now = time.time() - lag * 86400
        before = now - days * 86400
        count = sum(self._pruned(job_id) for moment, job_id in ends if moment < before)
        if most_bytes is not None:
            sizes = {job_id: _size(self.root / job_id) for job_id in self.ids()}
            excess = sum(sizes.values()) - most_bytes
            for moment, job_id in sorted(ends):
                if moment < now - _RECENT and excess > 0 and job_id in sizes and self._pruned(job_id):
                    excess -= sizes[job_id]
                    count += 1
        self.keys.prune()
        return count

    def _pruned(self, job_id: str) -> bool:
        """Deletes the directory of a job that has ended. Returns whether it could."""
        try:
            line = line_of(self.root / job_id / "done.json")
        except FileNotFoundError:  # deleted meanwhile
            return False
        except OSError as error:
            log.error("jobs/%s in the server's home is left there, it cannot be read: %s", job_id, error)
            return False
        self._delete(job_id, line)
        return True

    def ended_jobs(self, policy: str | None, completions: Set[str]) -> list[str]:
        """Ids of the jobs that have ended and were of a policy, or used completions. Reads the file of each job.

        Args:
            policy: Name of the policy; None: of none.
            completions: Ids of completions.
        """
        job_ids, open_ids = [], set(self.open_ids())
        for job_id in self.ids():
            try:
                file = self.file(job_id)
            except TrainingError as error:
                log.error("left there, it may have what is deleted elsewhere: %s", error)
                continue
            if job_id not in open_ids and (file.policy == policy or not completions.isdisjoint(file.completions)):
                job_ids.append(job_id)
        return job_ids

    def erase(self, job_ids: Sequence[str], policy: str | None = None) -> None:
        """Deletes the directories of jobs that have ended; their outcome stays, as after `prune`.

        Args:
            job_ids: Ids of the jobs.
            policy: A policy whose lines in ended.jsonl are deleted too; None: of none.
        """
        for job_id in job_ids:
            with suppress(FileNotFoundError):  # pruned meanwhile
                self._delete(job_id, line_of(self.root / job_id / "done.json"))
        if policy is not None:
            self._deleted.erase(policy)
        self.keys.prune()

    def _delete(self, job_id: str, line: str) -> None:
        """Deletes a job's directory, after its outcome was written down."""
        self._deleted.add(line)
        aside = self.root / f".deleted-{job_id}"
        (self.root / job_id).rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
        self._ended.pop(job_id, None)
        self._accepted.pop(job_id, None)
        self._needs.pop(job_id, None)


def _size(directory: Path) -> int:
    """Bytes of the files in a directory. Those that are deleted meanwhile have none."""
    size = 0
    for path in directory.rglob("*"):
        with suppress(OSError):
            size += path.stat().st_size
    return size
