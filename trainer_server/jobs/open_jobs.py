"""The jobs that have not ended: in their order, with their files in memory, and a signal when one ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from trainer_server.engines.slots import Key
from trainer_server.jobs.job_files import JobFile
from trainer_server.jobs.queue import JobQueue
from trainer_server.ledger.base import Ledger
from trainer_server.policies.retention import Needs
from trainer_server.wire import TrainingError

log = logging.getLogger("trainer_server")


class OpenJobs:
    """Ids of the open jobs, oldest first. The first one is that which ends next.

    Args:
        queue: Where their files are. A job whose file is damaged is logged and left out.
        ledger: Tells which versions sampled the completions that they need.

    Attributes:
        end_count: How many jobs have ended since the server started.
    """

    def __init__(self, queue: JobQueue, ledger: Ledger) -> None:
        self._ledger = ledger
        self._files: dict[str, JobFile] = {}
        self.end_count = 0
        self._added, self._changed = asyncio.Event(), asyncio.Condition()
        for job_id in queue.open_ids():
            try:
                self._files[job_id] = queue.file(job_id)
            except TrainingError as error:
                log.error("left out: %s", error)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._files))

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._files

    @property
    def first(self) -> str | None:
        """The oldest open job; None: there is no open job."""
        return next(iter(self._files), None)

    def file(self, job_id: str) -> JobFile:
        """The file of an open job. Raises KeyError for any other job."""
        return self._files[job_id]

    def files(self) -> list[JobFile]:
        """Files of the open jobs, oldest first."""
        return list(self._files.values())

    def add(self, file: JobFile) -> None:
        """A job was accepted, after all others."""
        self._files[file.id] = file
        self._added.set()

    async def remove(self, job_id: str) -> None:
        """A job has ended, or was deleted. Wakes `wait_for_end`."""
        self._files.pop(job_id, None)
        self.end_count += 1
        async with self._changed:
            self._changed.notify_all()

    async def wait_for_first(self) -> str:
        """The oldest open job, as soon as there is one."""
        while (first := self.first) is None:
            self._added.clear()
            await self._added.wait()
        return first

    async def wait_for_end(self, since: int, seconds: float) -> None:
        """Returns once more than `since` jobs have ended, or after `seconds`."""
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(lambda: self.end_count > since), seconds)
            except TimeoutError:
                pass

    def needs(self) -> Needs:
        """The versions that open jobs need now, so that retention does not delete them."""
        files = self.files()

        def versions() -> set[Key]:
            ids = [completion_id for file in files for completion_id in file.completions]
            return {key for file in files for key in file.versions} | self._ledger.sampled_versions(ids)

        return Needs(tuple(file.id for file in files), versions)

    def completions(self) -> set[str]:
        """Ids of the completions that open jobs need. They are never purged."""
        return {completion_id for file in self.files() for completion_id in file.completions}
