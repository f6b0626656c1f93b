"""Runs one job: writes what the trainer process needs of engines, gives it the GPUs, and waits for its outcome."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from trainer_server.engines.base import MalformedAnswer, TeacherLost
from trainer_server.engines.pool import Engines
from trainer_server.jobs.job_files import JobFile, TrainingOutcome
from trainer_server.jobs.queue import JobQueue
from trainer_server.jobs.rendering import Renderer
from trainer_server.jobs.teaching import Teachers
from trainer_server.jobs.trainer_process import TrainerProcess
from trainer_server.ledger.base import Ledger
from trainer_server.wire import EngineError, SFTRequest, TrainingError

log = logging.getLogger("trainer_server")

_POLL = 0.02
"""Seconds between two reads of the queue while a job is open."""
_RETRY = 1.0
"""Seconds until an engine that went away is asked again."""
_MOST_MALFORMED = 3
"""Answers of an engine that cannot be read, such as one that is too large, until the job fails: others wait for it."""


class JobRunner:
    """Runs jobs, one at a time.

    Warm starts need an engine that renders their conversations, and some steps need one for their teacher: both before
    the trainer takes the job.

    Args:
        queue: Where the files of jobs are.
        process: The trainer.
        engines: They render. Where they share GPUs with the trainer, they rest while it computes.
        ledger: Holds the completions of trajectories.
        teachers: They score steps.
        tokenizer: Fingerprint of the tokenizer.
        share_gpu: Whether engines and trainer use the same GPUs by turns.
        engine_wait: Seconds to wait for an engine that is starting or restarting.
    """

    def __init__(
        self,
        queue: JobQueue,
        process: TrainerProcess,
        engines: Engines,
        ledger: Ledger,
        teachers: Teachers,
        *,
        tokenizer: str,
        share_gpu: bool,
        engine_wait: float,
    ) -> None:
        self._queue, self._process, self._engines = queue, process, engines
        self._ledger, self._teachers = ledger, teachers
        self._tokenizer, self._share_gpu, self._engine_wait = tokenizer, share_gpu, engine_wait
        self._preparation: asyncio.Task[None] | None = None

    async def run(self, file: JobFile, time_limit: float) -> TrainingOutcome:
        """How the trainer's part of a job ended, as soon as it has.

        Args:
            file: The job.
            time_limit: Seconds after which the trainer is broken off.

        Raises:
            TrainingError: The job's directory or record is gone.
            OSError: A file cannot be written or read.
        """
        if not self._queue.ready(file.id):
            await self.prepare(file.id)
        async with self._turn(file):
            outcome = await self._wait_for_outcome(file.id, time_limit)
        self._process.consecutive_restarts = 0
        return outcome

    async def prepare(self, job_id: str) -> None:
        """Returns once a job is prepared, or cannot be, or the preparation is stopped."""
        task = self._preparation = asyncio.create_task(self._prepare(job_id), name=f"prepare-{job_id}")
        try:
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()
        finally:
            self._preparation = None
            task.cancel()  # where the server stops

    def stop_preparation(self) -> None:
        """Stops the preparation that is under way. Does nothing if there is none."""
        if self._preparation:
            self._preparation.cancel()

    async def _prepare(self, job_id: str) -> None:
        """Writes the job's file as soon as an engine is ready. Where it cannot be made, reports the job as failed."""
        request, start, reason, malformed = self._queue.file(job_id).request, time.monotonic(), "", 0
        while not self._queue.ready(job_id) and self._queue.training_outcome(job_id) is None:
            error_text: str | None = None
            try:
                await self._engines.wait_ready(self._engine_wait)
                engine = self._engines.live[0]
                if isinstance(request, SFTRequest):
                    rows = await Renderer(engine).demonstrations(request, self._ledger, self._tokenizer)
                    await asyncio.to_thread(self._queue.write_rows, job_id, rows)
                elif request is not None:
                    teaching = await self._teachers.teaching(request, engine, self._ledger)
                    await asyncio.to_thread(self._queue.write_teaching, job_id, teaching)
            except TeacherLost as error:
                if time.monotonic() - start > self._engine_wait:
                    error_text = f"the teacher did not answer for {self._engine_wait:g} s: {error}. No version was made"
                    log.error("%s failed: %s", job_id, error_text)
                else:
                    log.warning("%s waits for its teacher: %s", job_id, error)
                    await asyncio.sleep(_RETRY)
            except MalformedAnswer as error:
                malformed += 1
                if malformed < _MOST_MALFORMED:
                    await asyncio.sleep(_RETRY)
                else:
                    error_text = f"{error}. No version was made"
                    log.error("%s failed: %s", job_id, error_text)
            except EngineError as error:
                if reason != (reason := str(error)):  # the same one, try after try, is logged once
                    log.warning("%s waits for the engine: %s", job_id, error)
                await asyncio.sleep(_RETRY)
            except TrainingError as error:
                log.error("%s failed: %s", job_id, error)
                error_text = str(error)
            except Exception as error:  # an engine that others run may raise anything: recorded; later jobs go on
                log.exception("%s failed", job_id)
                error_text = f"{type(error).__name__}: {error}"
            if error_text is not None:
                await asyncio.to_thread(self._queue.report, job_id, TrainingOutcome(error=error_text))
                return

    async def _wait_for_outcome(self, job_id: str, time_limit: float) -> TrainingOutcome:
        """Waits for the trainer. Breaks a job off that takes too long."""
        deadline: float | None = None
        while (outcome := self._queue.training_outcome(job_id)) is None:
            if not self._queue.exists(job_id):
                raise TrainingError(f"jobs/{job_id} in the server's home was deleted")
            if deadline is None and self._process.ready and self._queue.started(job_id):  # its loading is not counted
                deadline = time.monotonic() + time_limit
            if deadline is not None and time.monotonic() > deadline:
                why = (
                    f"the trainer was at this job for more than {time_limit:g} s, and was broken off. The policy stays "
                    "at the version it had: send smaller batches, or raise `time_limit` of the request or "
                    "--job-time-limit of `serve`"
                )
                await self._process.break_off(job_id, TrainingOutcome(error=why, seconds=time_limit))
                deadline = None
            await asyncio.sleep(_POLL)
        return outcome

    @asynccontextmanager
    async def _turn(self, file: JobFile) -> AsyncIterator[None]:
        """Gives the trainer the GPUs while a job is computed, if it shares them with the engines.

        The engines do not rest for a job that was computed already, nor for one that creates an untrained policy.
        """
        if not self._share_gpu or file.kind == "create" or self._queue.training_outcome(file.id) is not None:
            yield
            return
        async with self._engines.rest():
            try:
                await asyncio.to_thread(self._queue.give_turn, file.id)
                yield
            finally:
                self._queue.end_turn()
        with suppress(EngineError):
            await self._engines.wait_ready(self._engine_wait)
