"""Prepares the job that is next, where it needs an engine before the trainer: warm starts, and steps with a teacher."""

from __future__ import annotations

import asyncio
import logging
import time

from trainer_server.engines.base import TeacherLost
from trainer_server.engines.pool import Engines
from trainer_server.jobs.board import JobBoard
from trainer_server.jobs.files.training_outcome import TrainingOutcome
from trainer_server.jobs.rendering import Renderer
from trainer_server.jobs.teaching import Teachers
from trainer_server.ledger.base import Ledger
from trainer_server.wire import EngineError, SFTRequest, TrainingError

log = logging.getLogger("trainer_server")

_RETRY = 1.0
"""Seconds until an engine that went away is asked again."""


class Preparation:
    """Writes the rows that warm starts imitate, and what steps with a teacher need of engines.

    Args:
        board: Where the requests are and the rows go.
        engines: They render conversations.
        ledger: Holds the completions of trajectories.
        teachers: Asks the teachers of steps.
        tokenizer: Fingerprint of the tokenizer.
        engine_wait: Seconds to wait for an engine that is starting or restarting.
    """

    def __init__(
        self,
        board: JobBoard,
        engines: Engines,
        ledger: Ledger,
        teachers: Teachers,
        *,
        tokenizer: str,
        engine_wait: float,
    ) -> None:
        self._board, self._engines, self._ledger, self._teachers = board, engines, ledger, teachers
        self._tokenizer, self._engine_wait = tokenizer, engine_wait
        self._task: asyncio.Task[None] | None = None

    async def prepare(self, job_id: str) -> None:
        """Returns once a job is prepared, or cannot be, or the preparation is stopped."""
        task = self._task = asyncio.create_task(self._prepare(job_id), name=f"prepare-{job_id}")
        try:
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()
        finally:
            self._task = None
            task.cancel()  # where the server stops

    def stop(self) -> None:
        """Stops the preparation that is under way. Does nothing if there is none."""
        if self._task:
            self._task.cancel()

    async def _prepare(self, job_id: str) -> None:
        """Writes the job's file as soon as an engine is ready. Where it cannot be made, reports the job as failed."""
        request, began, reason = self._board.file(job_id).request, time.monotonic(), ""
        while not self._board.ready(job_id) and self._board.training_outcome(job_id) is None:
            engine = next((candidate for candidate in self._engines if candidate.ready), self._engines[0])
            try:
                await engine.wait_ready(self._engine_wait)
                if isinstance(request, SFTRequest):
                    rows = await Renderer(engine).demonstrations(request, self._ledger, self._tokenizer)
                    await asyncio.to_thread(self._board.write_rows, job_id, rows)
                elif request is not None:
                    teaching = await self._teachers.teaching(request, engine, self._ledger)
                    await asyncio.to_thread(self._board.write_teaching, job_id, teaching)
            except TeacherLost as error:
                if time.monotonic() - began > self._engine_wait:
                    why = f"the teacher did not answer for {self._engine_wait:g} s: {error}. No version was made"
                    log.error("%s failed: %s", job_id, why)
                    await asyncio.to_thread(self._board.report, job_id, TrainingOutcome(error=why))
                    return
                log.warning("%s waits for its teacher: %s", job_id, error)
                await asyncio.sleep(_RETRY)
            except EngineError as error:
                if reason != (reason := str(error)):  # the same one, try after try, is logged once
                    log.warning("%s waits for the engine: %s", job_id, error)
                await asyncio.sleep(_RETRY)
            except TrainingError as error:
                log.error("%s failed: %s", job_id, error)
                await asyncio.to_thread(self._board.report, job_id, TrainingOutcome(error=str(error)))
            except Exception as error:  # an engine that others run may raise anything: recorded; later jobs go on
                log.exception("%s failed", job_id)
                failed = TrainingOutcome(error=f"{type(error).__name__}: {error}")
                await asyncio.to_thread(self._board.report, job_id, failed)
