"""The server's side of training: keeps the trainer process alive, and puts what it made into service."""

from __future__ import annotations

import asyncio
import logging
import sys
import time

from trainer_server.config import ServerConfig
from trainer_server.jobs import JobBoard, JobFile
from trainer_server.models import BaseModel
from trainer_server.openai_errors import APIError
from trainer_server.process import Child
from trainer_server.slots import NoFreeSlot, Slots
from trainer_server.wire import EngineError, Job, JobStatus, PolicySpec, StepRequest

log = logging.getLogger("trainer_server")

_POLL = 0.02
"""Seconds between looks at the board while a job is open."""


class Trainer:
    """Accepts jobs, and finishes each once the engine serves its version. Jobs of one server run one after another."""

    def __init__(self, config: ServerConfig, base: BaseModel, tokenizer: str, board: JobBoard, slots: Slots) -> None:
        self._board, self._slots = board, slots
        self._open: list[str] = board.open_ids()
        self._keys: dict[tuple[str, str], JobFile] = {}
        for job_id in board.ids():
            self._remember(board.file(job_id))
        self._changed = asyncio.Condition()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        line = [
            sys.executable, "-m", "trainer_server.training.worker", "--home", str(config.home.root),
            "--model", base.path, "--base-model", base.name, "--tokenizer", tokenizer, *config.trainer_args,
        ]  # fmt: skip
        self.child = Child("trainer", line, config.home.logs)
        self.restarts = 0

    async def start(self) -> None:
        await self.child.start()
        self._tasks = [
            asyncio.create_task(self._supervise(), name="trainer-supervisor"),
            asyncio.create_task(self._finish_jobs(), name="job-finisher"),
        ]

    async def stop(self) -> None:
        """Ends the trainer process. What it was working on stays queued on disk."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.child.stop()

    async def create(self, spec: PolicySpec) -> Job:
        """Queues the making of a policy's version 0."""
        return await self._accept("create", spec.name, spec=spec)

    async def step(self, policy: str, request: StepRequest) -> Job:
        """Queues a step, or answers the job that the same idempotency key made before. Raises APIError 409."""
        if request.idempotency_key and (known := self._keys.get((policy, request.idempotency_key))):
            if known.request != request:
                raise APIError(
                    409,
                    f"idempotency key {request.idempotency_key!r} was used for another step ({known.id})",
                    code="idempotency_key_reused",
                    param="idempotency_key",
                )
            return self._job(known.id)
        return await self._accept("step", policy, request=request)

    def find(self, policy: str, idempotency_key: str) -> Job | None:
        """The step that was accepted under a key, if any."""
        known = self._keys.get((policy, idempotency_key))
        return self._job(known.id) if known else None

    async def wait(self, job_id: str, seconds: float) -> Job | None:
        """The job once it is final, or as it stands after `seconds`."""
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

    def jobs(self, limit: int = 100) -> list[Job]:
        """The newest jobs first."""
        return [self._job(job_id) for job_id in reversed(self._board.ids()[-limit:])]

    def named_completions(self) -> set[str]:
        """Completions that open jobs need: never purged."""
        files = [self._board.file(job_id) for job_id in self._open]
        groups = [group for file in files if file.request for group in file.request.groups]
        return {one for group in groups for trajectory in group.trajectories for one in trajectory.completions}

    def _remember(self, file: JobFile) -> None:
        if file.request and file.request.idempotency_key:
            self._keys[file.policy, file.request.idempotency_key] = file

    def _job(self, job_id: str) -> Job:
        job = self._board.job(job_id)
        assert job is not None
        return job

    async def _accept(
        self, kind: str, policy: str, *, spec: PolicySpec | None = None, request: StepRequest | None = None
    ) -> Job:
        assert kind in ("create", "step")
        try:
            if spec is not None:
                file = await asyncio.to_thread(self._board.accept, "create", policy, spec=spec)
            else:
                file = await asyncio.to_thread(self._board.accept, "step", policy, request=request)
        except OSError as error:
            raise APIError(507, f"the job could not be written down: {error}", code="disk") from None
        self._remember(file)
        self._open.append(file.id)
        self._wake.set()
        return self._job(file.id)

    async def _supervise(self) -> None:
        while True:
            status = await self.child.wait()
            self.restarts += 1
            log.warning("the trainer ended with status %s (restart %d); its log is %s", status, self.restarts,
                        self.child.log)  # fmt: skip
            await self.child.stop()
            await asyncio.sleep(min(30.0, 0.5 * self.restarts))
            await self.child.start()

    async def _finish_jobs(self) -> None:
        while True:
            if not self._open:
                self._wake.clear()
                await self._wake.wait()
            job_id = self._open[0]
            trained = self._board.trained(job_id)
            if trained is None:
                await asyncio.sleep(_POLL)
                continue
            job = self._job(job_id)
            job.seconds = {"train": trained.seconds}
            if trained.error or trained.result is None:
                job.status, job.error = JobStatus.failed, trained.error
            else:
                job.status, job.result = JobStatus.succeeded, trained.result
                job.seconds["swap"] = await self._swap(job.policy, trained.result.version)
            job.finished = time.time()
            await asyncio.to_thread(self._board.finish, job)
            self._open.pop(0)
            async with self._changed:
                self._changed.notify_all()

    async def _swap(self, policy: str, version: int) -> float:
        """Puts a version into service, however long the engine takes to be there; returns the seconds it took."""
        started = time.monotonic()
        while self._slots.newest.get(policy, -1) < version:
            try:
                await self._slots.publish((policy, version))
            except (EngineError, NoFreeSlot) as error:
                log.warning("%s@%d waits for the engine: %s", policy, version, error)
                await asyncio.sleep(1.0)
        return time.monotonic() - started
