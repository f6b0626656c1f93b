"""What clients ask about jobs: one job, now or when it has ended, and the list of all."""

from __future__ import annotations

import asyncio
import time

from trainer_server.jobs.board import JobBoard
from trainer_server.jobs.open_jobs import OpenJobs
from trainer_server.wire import Job, JobStatus


class Status:
    """Answers questions about jobs; changes nothing.

    Args:
        board: Where jobs are.
        open_jobs: Tells when one of them ends.
    """

    def __init__(self, board: JobBoard, open_jobs: OpenJobs) -> None:
        self._board, self._open = board, open_jobs

    async def wait(self, job_id: str, seconds: float) -> Job | None:
        """Waits for a job to end.

        Args:
            job_id: Id of the job.
            seconds: How long to wait at most.

        Returns:
            The job once it is final, or its state after `seconds`. None: there is no such job.
        """
        deadline = time.monotonic() + seconds
        while True:
            ended = self._open.end_count  # read first: the job may end while its files are read
            job = await asyncio.to_thread(self._board.job, job_id)
            left = deadline - time.monotonic()
            if job is None or job.status.final or left <= 0:
                return job
            await self._open.wait_for_end(ended, left)

    def jobs(self, limit: int = 100, status: JobStatus | None = None) -> list[Job]:
        """The jobs of this server, newest first. Reads files: the more, the rarer the status is.

        Args:
            limit: How many at most.
            status: Only jobs with this status; None: all.

        Returns:
            The jobs, without the ids of their trajectories.
        """
        listed: list[Job] = []
        for job_id in reversed(self._board.ids()):
            if len(listed) >= limit:
                break
            if status is not None and self._board.final_status(job_id) not in (None, status):
                continue
            job = self._board.job(job_id)
            if job is not None and status in (None, job.status):
                listed.append(job.without_trajectories())
        return listed
