"""Ends jobs before they are done: because a client cancels them, or because they take too long."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from trainer_server.jobs.board import JobBoard
from trainer_server.jobs.files.training_outcome import BROKEN_OFF, CANCELLED, TrainingOutcome
from trainer_server.jobs.open_jobs import OpenJobs
from trainer_server.jobs.supervisor import TrainerProcess
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import Conflict, Job, JobStatus, NotFound, NotStored

log = logging.getLogger("trainer_server")


class Cancellation:
    """Cancels queued and running jobs.

    Args:
        board: Where jobs are.
        open_jobs: The jobs that can be cancelled.
        process: The trainer, which is ended to break off its job.
        store: Tells whether a job has published its version.
        stop_preparing: Stops the preparation of the job that is prepared now. Does nothing if there is none.
    """

    def __init__(
        self,
        board: JobBoard,
        open_jobs: OpenJobs,
        process: TrainerProcess,
        store: AdapterStore,
        *,
        stop_preparing: Callable[[], None],
    ) -> None:
        self._board, self._open, self._process, self._store = board, open_jobs, process, store
        self._stop_preparing = stop_preparing

    async def cancel(self, job_id: str) -> Job:
        """Cancels a queued or running step or warm start. A job that is cancelled already is returned as it is.

        A queued job never starts. For a running one the trainer process is ended and started again; the policy stays at
        the version that it had.

        Args:
            job_id: Id of the job.

        Returns:
            The cancelled job.

        Raises:
            NotFound: There is no such job.
            Conflict: The job has ended or made its version, or it makes a policy.
            NotStored: The cancellation could not be written down. The job goes on.
        """
        job = await asyncio.to_thread(self._board.job, job_id)
        if job is None:
            raise NotFound(f"there is no job {job_id!r}", code="not_found")
        if job.status == JobStatus.cancelled:
            return job
        if job.status.final:
            raise _end_conflict(job)
        if job.kind == "create":
            raise Conflict(
                f"{job_id} makes the policy {job.policy!r}, for which a client waits: only steps and warm starts can "
                "be cancelled. It ends by itself.",
                code="job_not_cancellable",
            )
        try:
            if await asyncio.to_thread(self._board.cancel, job_id):
                await self._settle(job_id)
            else:
                await self.break_off(job_id, BROKEN_OFF)
        except OSError as error:
            message = f"it could not be written down that {job_id} is cancelled: {error}; cancel it again"
            raise NotStored(message, code="disk") from None
        job = await asyncio.to_thread(self._board.job, job_id) or job
        if job.status != JobStatus.cancelled:
            raise _end_conflict(job)
        return job

    async def break_off(self, job_id: str, outcome: TrainingOutcome) -> None:
        """Ends the trainer while it works on a job, and reports an outcome for the job. Does nothing to a job that has
        an outcome, or has published its version: the trainer may be at the next job.

        Args:
            job_id: A job that was started.
            outcome: What to report.

        Raises:
            OSError: The outcome could not be written down. The trainer starts the job again.
        """

        def decided() -> bool:
            return self._decided(job_id)

        def decide() -> None:
            if not decided():  # the trainer may have come to its end meanwhile
                self._board.report(job_id, outcome)
                log.warning("%s was broken off: %s", job_id, outcome.error)

        await self._process.break_off(decided, decide)

    def _decided(self, job_id: str) -> bool:
        """Whether a job has an outcome, or its version is there, which makes one."""
        if self._board.training_outcome(job_id) is not None:
            return True
        return self._store.made_by(self._board.file(job_id).policy, job_id) is not None

    async def _settle(self, job_id: str) -> None:
        """Ends a job that was cancelled before the trainer started it."""
        if self._open.first == job_id:  # the completer waits for it, and ends it now
            self._stop_preparing()
            return
        job = await asyncio.to_thread(self._board.job, job_id)
        if job is not None:
            await asyncio.to_thread(self._board.finish, mark_cancelled(job, CANCELLED))
        await self._open.remove(job_id)


def mark_cancelled(job: Job, outcome: TrainingOutcome) -> Job:
    """The final state of a job that was cancelled."""
    job.status, job.error, job.finished = JobStatus.cancelled, outcome.error, job.finished or time.time()
    return job


def _end_conflict(job: Job) -> Conflict:
    how = f"has {job.status} already" if job.status.final else "has just ended, or made its version"
    return Conflict(f"{job.id} {how}: only a queued or running job can be cancelled", code="job_ended")
