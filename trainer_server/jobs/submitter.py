"""Accepts jobs: each is on disk before its client is answered, and an idempotency key makes one job."""

from __future__ import annotations

import asyncio
from typing import Any

from trainer_server.common import tracing
from trainer_server.jobs.board import JobBoard
from trainer_server.jobs.files.keys import digest
from trainer_server.jobs.open_jobs import OpenJobs
from trainer_server.jobs.supervisor import TrainerProcess
from trainer_server.jobs.teaching import Teachers
from trainer_server.wire import (
    ConfigError,
    Conflict,
    Job,
    JobKind,
    NotStored,
    PolicySpec,
    SFTRequest,
    StepRequest,
    TrainingError,
    Unprocessable,
    wrong_reward,
)


class JobSubmitter:
    """Takes requests for jobs.

    Args:
        board: Where jobs are written.
        open_jobs: Where accepted jobs are added.
        process: The trainer, which knows the names of its losses, and is woken by the first job.
        teachers: Which teachers steps may name.
    """

    def __init__(self, board: JobBoard, open_jobs: OpenJobs, process: TrainerProcess, teachers: Teachers) -> None:
        self._board, self._open, self._process, self._teachers = board, open_jobs, process, teachers
        self._accepting = asyncio.Lock()  # a key that is sent twice at the same time makes one job; see JobBoard.accept

    def creation(self, policy: str) -> Job | None:
        """The open job that creates a policy, or None."""
        job_ids = (file.id for file in self._open.files() if file.kind == "create" and file.policy == policy)
        return next(filter(None, map(self._board.job, job_ids)), None)

    async def create(self, spec: PolicySpec) -> Job:
        """Queues the job that makes a policy's version 0.

        Raises:
            Unprocessable: The specification cannot be written as JSON.
            NotStored: The job could not be written to disk, for example because the disk is full.
        """
        async with self._accepting:
            return await self._accept("create", spec.name, spec=spec)

    async def train(
        self, policy: str, request: StepRequest | SFTRequest, evaluations: frozenset[str] = frozenset()
    ) -> Job:
        """Queues a step or a warm start.

        Args:
            policy: Name of the policy to train.
            request: The step or the warm start.
            evaluations: Ids of a step's completions that are not trained, because their rollouts evaluate a version.

        Returns:
            The new job, or the job that an earlier request with the same idempotency key made.

        Raises:
            Conflict: The key was used for another request.
            Unprocessable: The request holds a value that JSON cannot express, a reward is too large, or its loss or its
                teacher is unknown.
            NotStored: The job could not be written to disk, for example because the disk is full.
        """
        async with self._accepting:
            return await self._find_earlier_job(policy, request) or await self._train(policy, request, evaluations)

    def find(self, policy: str, idempotency_key: str) -> Job | None:
        """The step or warm start that was accepted under an idempotency key, or None."""
        known = self._board.keys.find(policy, idempotency_key)
        return self._board.job(known.job) if known else None

    async def _find_earlier_job(self, policy: str, request: StepRequest | SFTRequest) -> Job | None:
        """The job that an equal request with the same key made. Raises Conflict where that request was another."""
        if not request.idempotency_key:
            return None
        known = await asyncio.to_thread(self._board.keys.find, policy, request.idempotency_key)
        if known is None:
            return None
        same = known.request == await asyncio.to_thread(digest, request)
        if not same and not await asyncio.to_thread(self._equal, known.job, request):
            raise Conflict(
                f"idempotency key {request.idempotency_key!r} was used for another request ({known.job})",
                code="idempotency_key_reused",
                param="idempotency_key",
            )
        return await asyncio.to_thread(self._board.job, known.job)

    def _equal(self, job_id: str, request: StepRequest | SFTRequest) -> bool:
        """Whether a job was accepted for an equal request, as this release reads it: an earlier one that knew fewer
        settings wrote another digest."""
        try:
            accepted = self._board.file(job_id).request
        except TrainingError:
            return False
        return accepted is not None and digest(accepted) == digest(request)

    async def _train(self, policy: str, request: StepRequest | SFTRequest, evaluations: frozenset[str]) -> Job:
        if isinstance(request, StepRequest):
            if request.config.rewards_count and (wrong := wrong_reward(request.groups)):
                raise Unprocessable(wrong, code="invalid_reward", param="groups")
            self._check_loss(request.config.loss_type)
            await asyncio.to_thread(self._teachers.check, request.config)
        kind: JobKind = "sft" if isinstance(request, SFTRequest) else "step"
        return await self._accept(kind, policy, request=request, evaluations=evaluations)

    def _check_loss(self, name: str) -> None:
        """Raises Unprocessable for a `loss_type` that the trainer does not know.

        While the trainer is still starting, or waits for the first job, its losses are not known here. It then checks
        the loss when it takes the job up.
        """
        known = self._process.losses()
        if known and name not in known:
            raise Unprocessable(
                f"loss_type={name!r} is not known to this server's trainer, which knows {', '.join(known)}; "
                "`art-langgraph serve --loss NAME=MODULE:ATTRIBUTE` registers another",
                code="unknown_loss",
                param="config.loss_type",
            )

    async def _accept(
        self,
        kind: JobKind,
        policy: str,
        *,
        spec: PolicySpec | None = None,
        request: StepRequest | SFTRequest | None = None,
        evaluations: frozenset[str] = frozenset(),
    ) -> Job:
        what: dict[str, Any] = {"spec": spec, "request": request, "evaluations": evaluations}
        try:
            file = await asyncio.to_thread(self._board.accept, kind, policy, **what, trace=tracing.current())
        except OSError as error:
            raise NotStored(f"the job could not be written down: {error}", code="disk") from None
        except ConfigError as error:
            raise Unprocessable(str(error), code="invalid_request") from None
        self._open.add(file)
        self._process.wake()
        job = self._board.job(file.id)
        assert job is not None
        return job
