"""Ends every job that was accepted: one after another, once the engines serve its version, whatever becomes of one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from trainer_server.common import tracing
from trainer_server.common.gen_ai import record_job
from trainer_server.engines.base import AdapterRefused
from trainer_server.engines.pool import Engines
from trainer_server.engines.slots import NoFreeSlot, Slots
from trainer_server.jobs.board import JobBoard
from trainer_server.jobs.cancellation import Cancellation, mark_cancelled
from trainer_server.jobs.files.training_outcome import TrainingOutcome
from trainer_server.jobs.open_jobs import OpenJobs
from trainer_server.jobs.preparation import Preparation
from trainer_server.jobs.supervisor import TrainerProcess
from trainer_server.ledger.base import LedgerError
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.retention import Retention
from trainer_server.policies.store import AdapterStore
from trainer_server.process import faults
from trainer_server.process.files import may_pass
from trainer_server.process.tasks import PeriodicTask
from trainer_server.wire import EngineError, Job, JobStatus, TrainingError

log = logging.getLogger("trainer_server")

_POLL = 0.02
"""Seconds between two reads of the board while a job is open."""
_RETRY = 1.0
"""Seconds until a file that could not be written is tried again."""
_HEALTH_CHECK_DELAY = 1.5
"""Seconds to wait after an engine refused an adapter. Engines are checked every second, so a dead one is noticed."""
_MAX_REFUSALS = 3
"""Refusals by healthy engines after which a version is quarantined."""


class JobCompleter:
    """Waits for the trainer, puts the version into service, and writes how the job ended.

    Args:
        board: Where jobs are.
        open_jobs: The jobs to end.
        process: The trainer.
        cancellation: Breaks off jobs that take too long.
        preparation: Renders warm starts, and asks the teachers of steps.
        store: Versions on disk.
        names: The version that each policy's name currently means.
        slots: The cache of adapters on the engines.
        engines: They serve versions. Where they share GPUs with the trainer, they rest during steps.
        retention: Deletes old versions after a job.
        share_gpu: Whether engines and trainer use the same GPUs by turns.
        engine_wait: Seconds to wait for an engine that is starting or restarting.
        time_limit: Seconds that the trainer may take for a job. Its request may ask for less.
        on_job_end: Told of each job that has ended, once this is written down. It must not raise or wait.
    """

    def __init__(
        self,
        board: JobBoard,
        open_jobs: OpenJobs,
        *,
        process: TrainerProcess,
        cancellation: Cancellation,
        preparation: Preparation,
        store: AdapterStore,
        names: PolicyNames,
        slots: Slots,
        engines: Engines,
        retention: Retention,
        share_gpu: bool,
        engine_wait: float,
        time_limit: float,
        on_job_end: Callable[[Job], None] = lambda job: None,
    ) -> None:
        self._board, self._open = board, open_jobs
        self._process, self._cancellation, self._preparation = process, cancellation, preparation
        self._store, self._names, self._slots, self._engines = store, names, slots, engines
        self._retention, self._ended = retention, on_job_end
        self._share_gpu, self._engine_wait, self._time_limit = share_gpu, engine_wait, time_limit
        self._task = PeriodicTask("the end of jobs", self.end_next)

    @property
    def failure(self) -> str | None:
        """Why jobs cannot be ended; None where they can."""
        return self._task.failure

    def start(self) -> None:
        """Starts the task that ends jobs."""
        self._task.start()

    async def stop(self) -> None:
        """Ends the task. Jobs stay as they are on disk."""
        await self._task.stop()

    async def end_next(self) -> None:
        """Ends the oldest open job; waits for one if there is none."""
        job_id = await self._open.wait_for_first()
        job: Job | None = None
        try:
            job = await self.outcome(job_id)
            if job:
                await asyncio.to_thread(self._board.finish, job)
                await asyncio.to_thread(self._record, job)
        except OSError as error:
            if may_pass(error):  # nothing is lost, and what is done stays done
                log.error("%s cannot be ended now, and is tried again: %s", job_id, error)
                await asyncio.sleep(_RETRY)
                return
            log.error("%s is left out: how it ended cannot be written down: %s", job_id, error)
            if job:
                self._board.remember(job)
        await self._open.remove(job_id)
        if job:
            self._retention.later(job.policy)
            self._ended(job)

    def _record(self, job: Job) -> None:
        """Records the spans of a job, while traces are on."""
        if not tracing.on():
            return
        try:
            record_job(job, parent=self._open.file(job.id).trace, start_time=self._board.started_at(job.id))
        except Exception as error:  # a trace must not keep a job from its end
            log.warning("%s is in no trace: %s", job.id, error)

    async def outcome(self, job_id: str) -> Job | None:
        """Brings a job to its end, and turns any error into a failed job, but for OSErrors that may pass.

        Returns:
            The job as it ended; None where its files are damaged or gone.

        Raises:
            OSError: A file cannot be written or read now, see `may_pass`. The job stays open.
        """
        try:
            return await self._end(job_id)
        except Exception as error:  # recorded in the job, which the client reads; later jobs go on
            if isinstance(error, OSError) and may_pass(error):
                raise
            if not self._board.exists(job_id):
                log.error("jobs/%s in the server's home was deleted: the job is left out", job_id)
                return None
            log.exception("%s could not be ended", job_id)
            why = f"{type(error).__name__}: {error}"
        if self._board.training_outcome(job_id) is None:
            await asyncio.to_thread(self._board.report, job_id, TrainingOutcome(error=why))  # the trainer then skips it
        if (job := self._board.job(job_id)) is None:
            return None
        if job.status == JobStatus.cancelled:
            return mark_cancelled(job, TrainingOutcome(error=job.error))
        job.status, job.error, job.finished = JobStatus.failed, why, time.time()
        return job

    async def _end(self, job_id: str) -> Job:
        """Waits for the trainer, then for the engines to serve the version.

        Returns:
            How the job ended.

        Raises:
            TrainingError: The job's directory or record is gone.
            OSError: A file cannot be written or read.
        """
        if not self._board.ready(job_id):
            await self._preparation.prepare(job_id)
        async with self._turn(job_id):
            trained = await self._wait_for_outcome(job_id)
        self._process.consecutive_restarts = 0
        job = await asyncio.to_thread(self._board.job, job_id)
        if job is None:
            raise TrainingError(f"jobs/{job_id} in the server's home cannot be read any more")
        if trained.cancelled:
            return mark_cancelled(job, trained)
        rows = await asyncio.to_thread(self._board.rows, job_id)
        teaching = await asyncio.to_thread(self._board.teaching, job_id)
        asked = {"render": rows, "teacher": teaching}
        job.seconds = {phase: made.seconds for phase, made in asked.items() if made} | {"train": trained.seconds}
        job.status, job.result, job.error = JobStatus.succeeded, trained.result, trained.error
        if trained.result is not None:
            if job.kind == "step":
                trained.result.trajectories = await asyncio.to_thread(self._board.used_trajectories, job_id)
            faults.point("swapping")
            try:
                if job.kind == "create":
                    self._names.forget(job.policy)
                    await self._share()
                    await self._slots.drop(job.policy)
                job.seconds["swap"] = await self._swap(job, trained.result.version)
            except TrainingError as error:
                job.error = str(error)
            faults.point("swapped")
            await asyncio.to_thread(self._retention.credit, job.policy, job.id, trained.result.metrics)
        if job.error or job.result is None:
            job.status, job.result = JobStatus.failed, None
            self._names.step_back(job.policy)
        job.finished = time.time()
        return job

    async def _wait_for_outcome(self, job_id: str) -> TrainingOutcome:
        """How the trainer's part of a job ended, as soon as it has. Breaks a job off that takes too long."""
        request = self._open.file(job_id).request
        limit = min(self._time_limit, (request.time_limit if request else None) or self._time_limit)
        deadline: float | None = None
        while (trained := self._board.training_outcome(job_id)) is None:
            if not self._board.exists(job_id):
                raise TrainingError(f"jobs/{job_id} in the server's home was deleted")
            if deadline is None and self._process.ready and self._board.started(job_id):  # its loading is not counted
                deadline = time.monotonic() + limit
            if deadline is not None and time.monotonic() > deadline:
                why = (
                    f"the trainer was at this job for more than {limit:g} s, and was broken off. The policy stays at "
                    "the version it had: send smaller batches, or raise `time_limit` of the request or "
                    "--job-time-limit of `serve`"
                )
                await self._cancellation.break_off(job_id, TrainingOutcome(error=why, seconds=limit))
                deadline = None
            await asyncio.sleep(_POLL)
        return trained

    @asynccontextmanager
    async def _turn(self, job_id: str) -> AsyncIterator[None]:
        """Gives the trainer the GPUs while a job is computed, if it shares them with the engines.

        The engines do not rest for a job that was computed already, nor for one that creates an untrained policy.
        """
        computes = self._open.file(job_id).kind != "create" and self._board.training_outcome(job_id) is None
        if not (self._share_gpu and computes):
            yield
            return
        async with self._engines.rest():
            try:
                await asyncio.to_thread(self._board.give_turn, job_id)
                yield
            finally:
                self._board.end_turn()
        with suppress(EngineError):
            await self._engines.wait_ready(self._engine_wait)

    async def _share(self) -> None:
        """Returns once all servers know what names mean: a client that is told of a version may ask any of them."""
        while True:
            try:
                await self._names.announce()
                return
            except LedgerError as error:
                log.error("the other servers are told again what policies' names mean: %s", error)
                await asyncio.sleep(_RETRY)

    async def _swap(self, job: Job, version: int) -> float:
        """Puts the version of a job into service. Waits for the engines for as long as they take.

        A version that healthy engines refuse several times is quarantined, and nowhere else: the version was made just
        now, and the same engines serve the version before it. Refusals while an engine is down do not count.

        Returns:
            Seconds until the version was served.

        Raises:
            TrainingError: The engines refuse the version, or its files are damaged or gone.
            OSError: That it is in service cannot be written down.
        """
        policy = job.policy
        started, refusals = time.monotonic(), 0
        while self._names.newest.get(policy, -1) < version:
            if reason := self._store.quarantine_reasons(policy).get(version):
                raise TrainingError(reason)
            if (
                policy in self._names.unserved_policies
            ):  # made by an earlier server; a server on its base model will serve it
                break
            engines = self._engines.live
            try:
                async with self._slots.use((policy, version)):
                    await asyncio.to_thread(self._board.put_in_service, job.id)
                    self._names.serve((policy, version))
                await self._share()
            except (EngineError, LedgerError, NoFreeSlot) as error:
                log.warning("%s@%d waits for the engine: %s", policy, version, error)
                restarts = [engine.restarts for engine in engines]
                await asyncio.sleep(_HEALTH_CHECK_DELAY)
                healthy = all(engine.ready for engine in engines)
                restarted = restarts != [engine.restarts for engine in engines]
                if isinstance(error, AdapterRefused) and healthy and not restarted:
                    refusals += 1
                why = await asyncio.to_thread(self._store.problem, policy, version)
                if why is None and refusals == _MAX_REFUSALS:
                    why = f"the engine does not take it ({error})"
                if why:
                    raise TrainingError(await asyncio.to_thread(self._store.quarantine, policy, version, why)) from None
        return time.monotonic() - started
