"""The server's side of training: accepts jobs, hands them to the trainer process, and serves the versions they make."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import islice

from trainer_server.engines.base import AdapterRefused
from trainer_server.engines.pool import Engines
from trainer_server.engines.slots import Key, NoFreeSlot, Slots
from trainer_server.jobs.board import CANCELLED, JobBoard, JobFile, Trained
from trainer_server.jobs.rendering import Renderer
from trainer_server.jobs.supervisor import TrainerProcess, TrainerSettings
from trainer_server.ledger.base import Ledger
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.retention import Needs, Retention
from trainer_server.policies.store import AdapterStore
from trainer_server.process import faults
from trainer_server.wire import (
    ConfigError,
    Conflict,
    EngineError,
    Job,
    JobKind,
    JobStatus,
    NotFound,
    NotStored,
    PolicySpec,
    SFTRequest,
    StepRequest,
    TrainingError,
    Unprocessable,
)

log = logging.getLogger("trainer_server")

_POLL = 0.02
"""Seconds between two reads of the board while a job is open."""
_HEALTH_CHECK_DELAY = 1.5
"""Seconds to wait after an engine refused an adapter. Engines are checked every second, so a dead one is noticed."""
_MAX_REFUSALS = 3
"""Refusals by healthy engines after which a version is quarantined."""


class JobService:
    """Accepts jobs, and finishes each job once the engines serve its version. Jobs run one after another.

    Args:
        settings: How the trainer process is started.
        board: The queue between this server and the trainer process.
        store: Versions on disk.
        names: The version that each policy's name currently means.
        slots: The cache of adapters on the engines.
        engines: They render warm starts. Where they share GPUs with the trainer, they rest during steps.
        ledger: Holds the completions that warm starts imitate.
        keep_versions: Versions of a policy that are kept; None: all.
        engine_wait: Seconds to wait for an engine that is starting or restarting.

    Attributes:
        process: The trainer process.
        retention: Deletes old versions.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        *,
        board: JobBoard,
        store: AdapterStore,
        names: PolicyNames,
        slots: Slots,
        engines: Engines,
        ledger: Ledger,
        keep_versions: int | None = None,
        engine_wait: float = 180.0,
    ) -> None:
        self._settings, self._board, self._store = settings, board, store
        self._names, self._slots, self._engines = names, slots, engines
        self._ledger, self._engine_wait = ledger, engine_wait
        board.end_turn()  # removes the turn that an earlier server gave: its engines are gone
        self._open: list[str] = board.open_ids()
        self._keys: dict[tuple[str, str], tuple[str, str]] = {}  # (policy, key) → id of the job, digest of its request
        for job_id in board.ids():
            try:
                self._remember(board.file(job_id))
            except TrainingError as error:  # the job's file is damaged: it is logged, and the other jobs go on
                log.error("left out: %s", error)
                if job_id in self._open:
                    self._open.remove(job_id)
        self._accepting = asyncio.Lock()  # a key that is sent twice at the same time makes one job; see JobBoard.accept
        self._changed = asyncio.Condition()
        self._wake = asyncio.Event()
        self._finisher: asyncio.Task[None] | None = None
        self._rendering: asyncio.Task[None] | None = None
        """Of the first open job, while it is a warm start that is not rendered yet."""
        self.process = TrainerProcess(settings, board=board, store=store, open_ids=self._open)
        self.retention = Retention(keep=keep_versions, store=store, slots=slots, names=names, needs=self.needs)

    async def start(self) -> None:
        """Starts the trainer process and the task that finishes jobs."""
        await asyncio.to_thread(self._fail_unserved)
        await self.process.start()
        self._finisher = asyncio.create_task(self._finish_jobs(), name="job-finisher")

    async def stop(self) -> None:
        """Ends the trainer process. The job that it was working on stays queued on disk."""
        if self._finisher:
            self._finisher.cancel()
            await asyncio.gather(self._finisher, return_exceptions=True)
        await self.process.stop()

    def creation(self, policy: str) -> Job | None:
        """The open job that creates a policy, or None."""
        job_ids = (file.id for file in self.open_files() if file.kind == "create" and file.policy == policy)
        return next(map(self._job, job_ids), None)

    async def create(self, spec: PolicySpec) -> Job:
        """Queues the job that makes a policy's version 0.

        Raises:
            Unprocessable: The specification cannot be written as JSON.
            NotStored: The job could not be written to disk, for example because the disk is full.
        """
        async with self._accepting:
            return await self._accept("create", spec.name, spec=spec)

    async def train(self, policy: str, request: StepRequest | SFTRequest) -> Job:
        """Queues a step or a warm start.

        Args:
            policy: Name of the policy to train.
            request: The step or the warm start.

        Returns:
            The new job, or the job that an earlier request with the same idempotency key made.

        Raises:
            Conflict: The key was used for another request.
            Unprocessable: The request holds a value that JSON cannot express, or its loss is unknown.
            NotStored: The job could not be written to disk, for example because the disk is full.
        """
        async with self._accepting:
            return await self._train(policy, request)

    async def _train(self, policy: str, request: StepRequest | SFTRequest) -> Job:
        if request.idempotency_key and (known := self._keys.get((policy, request.idempotency_key))):
            job_id, digest = known
            if digest != _digest(request):
                raise Conflict(
                    f"idempotency key {request.idempotency_key!r} was used for another request ({job_id})",
                    code="idempotency_key_reused",
                    param="idempotency_key",
                )
            return self._job(job_id)
        if isinstance(request, StepRequest):
            self._check_loss(request.config.loss_type)
        return await self._accept("sft" if isinstance(request, SFTRequest) else "step", policy, request=request)

    def _check_loss(self, name: str) -> None:
        """Raises Unprocessable for a `loss_type` that the trainer does not know.

        While the trainer is still starting, its losses are not known here. It then checks the loss when it takes the
        job up.
        """
        known = self.process.losses()
        if known and name not in known:
            raise Unprocessable(
                f"loss_type={name!r} is not known to this server's trainer, which knows {', '.join(known)}; "
                "`art-langgraph serve --loss NAME=MODULE:ATTRIBUTE` registers another",
                code="unknown_loss",
                param="config.loss_type",
            )

    def find(self, policy: str, idempotency_key: str) -> Job | None:
        """The step or warm start that was accepted under an idempotency key, or None."""
        known = self._keys.get((policy, idempotency_key))
        return self._job(known[0]) if known else None

    async def wait(self, job_id: str, seconds: float) -> Job | None:
        """Waits for a job to end.

        Args:
            job_id: Id of the job.
            seconds: How long to wait at most.

        Returns:
            The job once it is final, or its state after `seconds`. None: there is no such job.
        """
        deadline = time.monotonic() + seconds
        while (job := self._board.job(job_id)) and not job.status.final:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            async with self._changed:
                try:
                    await asyncio.wait_for(self._changed.wait(), left)
                except TimeoutError:
                    pass
        return job

    def jobs(self, limit: int = 100, status: JobStatus | None = None) -> list[Job]:
        """The jobs of this server, newest first.

        Args:
            limit: How many at most.
            status: Only jobs with this status; None: all.
        """
        jobs = (job for job_id in reversed(self._board.ids()) if (job := self._board.job(job_id)))
        return list(islice((job for job in jobs if status in (None, job.status)), limit))

    async def cancel(self, job_id: str) -> Job:
        """Cancels a queued job. A job that is cancelled already is returned as it is.

        Args:
            job_id: Id of the job.

        Returns:
            The cancelled job.

        Raises:
            NotFound: There is no such job.
            Conflict: The trainer has taken the job up, or it has ended, or it makes a policy.
            NotStored: The disk is full, for example.
        """
        job = self._board.job(job_id)
        if job is None:
            raise NotFound(f"there is no job {job_id!r}", code="not_found")
        if job.status == JobStatus.cancelled:
            return job
        if job.status.final:
            message = f"{job_id} has {job.status} already: only a queued job can be cancelled"
            raise Conflict(message, code="job_not_queued")
        if job.kind == "create":
            raise Conflict(
                f"{job_id} makes the policy {job.policy!r}, for which a client waits: only steps and warm starts can "
                "be cancelled. It ends by itself.",
                code="job_not_cancellable",
            )
        try:
            return await self._cancel(job)
        except OSError as error:
            message = (
                f"it could not be written down that {job_id} is cancelled: {error}; free space, and cancel it again"
            )
            raise NotStored(message, code="disk") from None

    async def _cancel(self, job: Job) -> Job:
        job_id = job.id
        if not await asyncio.to_thread(self._board.cancel, job_id):
            raise Conflict(
                f"{job_id} is running, and the trainer cannot break off in the middle of a job: only a queued job can "
                f"be cancelled. It ends by itself; the versions before it of {job.policy!r} stay available.",
                code="job_not_queued",
            )
        job = _cancelled(self._job(job_id))
        if self._open[:1] == [job_id]:  # `_finish_jobs` looks at it now, and finishes it
            if self._rendering:
                self._rendering.cancel()
        else:
            await asyncio.to_thread(self._board.finish, job)
            if job_id in self._open[1:]:
                self._open.remove(job_id)
        async with self._changed:
            self._changed.notify_all()
        return job

    def open_files(self) -> list[JobFile]:
        """Files of the jobs that have not ended, oldest first. Files that are missing or damaged are left out."""
        files = []
        for job_id in self._open:
            with suppress(OSError, TrainingError):
                files.append(self._board.file(job_id))
        return files

    def needs(self) -> Needs:
        """The versions that open jobs need now, so that retention does not delete them."""
        files = self.open_files()

        def versions() -> set[Key]:
            ids = [completion_id for file in files for completion_id in file.completions]
            return {key for file in files for key in file.versions} | self._ledger.sampled_versions(ids)

        return Needs(tuple(file.id for file in files), versions)

    def named_completions(self) -> set[str]:
        """Ids of the completions that open jobs need. They are never purged."""
        return {completion_id for file in self.open_files() for completion_id in file.completions}

    def served(self, policy: str) -> int | None:
        """The newest version whose job has ended, which a policy's name means when the server starts; None: none."""
        for number in reversed(self._store.versions(policy)):
            record = self._store.version(policy, number)
            if record and record.job_id not in self._open:
                return number
        return None

    def _fail_unserved(self) -> None:
        """Fails open jobs of policies that this server does not serve: it would train them on another base model.

        A job whose version was made before is not failed.
        """
        for file in self.open_files():
            why = self._names.unserved.get(file.policy)
            if why is None or self._board.trained(file.id) or self._store.made_by(file.policy, file.id):
                continue
            error = (
                "This job was not done, and changed nothing: send it again, under another idempotency key, once its "
                f"policy is served. {why}"
            )
            log.error("%s: %s", file.id, error)
            self._board.report(file.id, Trained(error=error))

    def _remember(self, file: JobFile) -> None:
        if file.request and file.request.idempotency_key:
            self._keys[file.policy, file.request.idempotency_key] = file.id, _digest(file.request)

    def _job(self, job_id: str) -> Job:
        job = self._board.job(job_id)
        assert job is not None
        return job

    async def _accept(
        self,
        kind: JobKind,
        policy: str,
        *,
        spec: PolicySpec | None = None,
        request: StepRequest | SFTRequest | None = None,
    ) -> Job:
        try:
            file = await asyncio.to_thread(self._board.accept, kind, policy, spec=spec, request=request)
        except OSError as error:
            raise NotStored(f"the job could not be written down: {error}", code="disk") from None
        except ConfigError as error:
            raise Unprocessable(str(error), code="invalid_request") from None
        self._remember(file)
        self._open.append(file.id)
        self._wake.set()
        return self._job(file.id)

    async def _finish_jobs(self) -> None:
        while True:
            if not self._open:
                self._wake.clear()
                await self._wake.wait()
            job_id = self._open[0]
            try:
                job = await self._outcome(job_id)
                if job:
                    await asyncio.to_thread(self._board.finish, job)
            except OSError as error:  # a full disk: nothing is lost, and what is done stays done
                log.error("%s cannot be finished until there is space on the disk: %s", job_id, error)
                await asyncio.sleep(1.0)
                continue
            if job_id in self._open:
                self._open.remove(job_id)
            async with self._changed:
                self._changed.notify_all()
            if job:
                await self.retention.sweep(job.policy)

    async def _outcome(self, job_id: str) -> Job | None:
        """Finishes a job, and turns any error but OSError into a failed job.

        Returns:
            The job as it ended; None where its files are damaged.

        Raises:
            OSError: A file could not be written or read. The job stays open.
        """
        try:
            return await self._finish(job_id)
        except OSError:
            raise
        except Exception as error:  # recorded in the job, which the client reads; later jobs go on
            log.exception("%s could not be finished", job_id)
            why = f"{type(error).__name__}: {error}"
        if self._board.trained(job_id) is None:
            await asyncio.to_thread(self._board.report, job_id, Trained(error=why))  # the trainer then skips it
        if (job := self._board.job(job_id)) is None:
            return None
        if job.status == JobStatus.cancelled:
            return _cancelled(job)
        job.status, job.error, job.finished = JobStatus.failed, why, time.time()
        return job

    async def _finish(self, job_id: str) -> Job:
        """Waits for the trainer, then for the engines to serve the version.

        Returns:
            How the job ended.
        """
        if not self._board.ready(job_id):
            await self._rendered(job_id)
        async with self._turn(job_id):
            while (trained := self._board.trained(job_id)) is None:
                await asyncio.sleep(_POLL)
        self.process.in_vain = 0
        job = self._job(job_id)
        if trained.cancelled:
            return _cancelled(job)
        rows = await asyncio.to_thread(self._board.rows, job_id)
        job.seconds = {**({"render": rows.seconds} if rows else {}), "train": trained.seconds}
        job.status, job.result, job.error = JobStatus.succeeded, trained.result, trained.error
        if trained.result is not None:
            faults.point("swapping")
            try:
                if job.kind == "create":
                    self._names.forget(job.policy)
                    await self._slots.drop(job.policy)
                job.seconds["swap"] = await self._swap(job.policy, trained.result.version)
            except TrainingError as error:
                job.error = str(error)
            faults.point("swapped")
        if job.error or job.result is None:
            job.status, job.result = JobStatus.failed, None
            self._names.step_back(job.policy)
        job.finished = time.time()
        return job

    @asynccontextmanager
    async def _turn(self, job_id: str) -> AsyncIterator[None]:
        """Lets the engines rest while the trainer computes on the GPUs that they share.

        The engines do not rest for a job that was computed already, nor for one that creates an untrained policy.
        """
        computes = self._board.file(job_id).kind != "create" and self._board.trained(job_id) is None
        if not (self._settings.share_gpu and computes):
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

    async def _rendered(self, job_id: str) -> None:
        """Returns once a warm start is rendered, or cannot be, or is cancelled."""
        rendering = self._rendering = asyncio.create_task(self._render(job_id), name=f"render-{job_id}")
        try:
            await asyncio.wait({rendering})
            if not rendering.cancelled():
                rendering.result()
        finally:
            self._rendering = None
            rendering.cancel()  # where the server stops

    async def _render(self, job_id: str) -> None:
        """Writes the rows that a warm start imitates, as soon as an engine is ready.

        Where the rows cannot be made, reports the job as failed.
        """
        request = self._board.file(job_id).request
        assert isinstance(request, SFTRequest)
        while not self._board.ready(job_id) and self._board.trained(job_id) is None:
            engine = next((candidate for candidate in self._engines if candidate.ready), self._engines[0])
            try:
                await engine.wait_ready(self._engine_wait)
                renderer = Renderer(engine)
                rows = await renderer.demonstrations(request, self._ledger, self._settings.tokenizer)
                await asyncio.to_thread(self._board.write_rows, job_id, rows)
            except EngineError as error:
                log.warning("%s waits for the engine: %s", job_id, error)
                await asyncio.sleep(1.0)
            except TrainingError as error:
                log.error("%s failed: %s", job_id, error)
                await asyncio.to_thread(self._board.report, job_id, Trained(error=str(error)))
            except Exception as error:  # an engine that others run may raise anything: recorded; later jobs go on
                log.exception("%s failed", job_id)
                failed = Trained(error=f"{type(error).__name__}: {error}")
                await asyncio.to_thread(self._board.report, job_id, failed)

    async def _swap(self, policy: str, version: int) -> float:
        """Puts a version into service. Waits for the engines for as long as they take.

        A version that healthy engines refuse several times is quarantined, and nowhere else: the version was made just
        now, and the same engines serve the version before it. Refusals while an engine is down do not count.

        Returns:
            Seconds until the version was served.

        Raises:
            TrainingError: The engines refuse the version, or its files are damaged or gone.
        """
        started, refusals = time.monotonic(), 0
        while self._names.newest.get(policy, -1) < version:
            if reason := self._store.quarantined(policy).get(version):
                raise TrainingError(reason)
            if policy in self._names.unserved:  # made by an earlier server; a server on its base model will serve it
                break
            engines = self._engines.live
            try:
                async with self._slots.use((policy, version)):
                    self._names.serve((policy, version))
            except (EngineError, NoFreeSlot) as error:
                log.warning("%s@%d waits for the engine: %s", policy, version, error)
                restarts = [engine.restarts for engine in engines]
                await asyncio.sleep(_HEALTH_CHECK_DELAY)
                healthy = all(engine.ready for engine in engines)
                restarted = restarts != [engine.restarts for engine in engines]
                if isinstance(error, AdapterRefused) and healthy and not restarted:
                    refusals += 1
                why = self._store.problem(policy, version)
                if why is None and refusals == _MAX_REFUSALS:
                    why = f"the engine does not take it ({error})"
                if why:
                    raise TrainingError(await asyncio.to_thread(self._store.quarantine, policy, version, why)) from None
        return time.monotonic() - started


def _cancelled(job: Job) -> Job:
    job.status, job.error, job.finished = JobStatus.cancelled, CANCELLED.error, job.finished or time.time()
    return job


def _digest(request: StepRequest | SFTRequest) -> str:
    return hashlib.sha256(request.model_dump_json().encode()).hexdigest()
