"""Training jobs in a server: accepted, run one after another, put into service, cancelled, and looked up.

A step comes by `server/routes/training.py`, is a file of the queue (`queue.py`), is computed by the loop of the trainer
process (`training/worker.py`), and its version goes into service by `policies/deployment.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from trainer_server.common import tracing
from trainer_server.common.gen_ai import record_job
from trainer_server.jobs.job_files import BROKEN_OFF, CANCELLED, JobFile, TrainingOutcome, digest
from trainer_server.jobs.open_jobs import OpenJobs
from trainer_server.jobs.queue import JobQueue
from trainer_server.jobs.runner import JobRunner
from trainer_server.jobs.teaching import Teachers
from trainer_server.jobs.trainer_process import TrainerProcess, TrainerSettings
from trainer_server.ledger.base import Ledger
from trainer_server.policies.deployment import Deployment
from trainer_server.policies.retention import Retention
from trainer_server.process import faults
from trainer_server.process.files import may_pass
from trainer_server.process.tasks import PeriodicTask
from trainer_server.wire import (
    ConfigError,
    Conflict,
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
    wrong_reward,
)

log = logging.getLogger("trainer_server")

JOB_TIME_LIMIT = 86400.0
"""Seconds that the trainer may take for a job, unless an option or a request sets another time."""
_RETRY = 1.0
"""Seconds until a file that could not be written is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """How a server treats jobs.

    Args:
        keep_versions: Versions of a policy that are kept; None: all.
        engine_wait: Seconds to wait for an engine that is starting or restarting.
        time_limit: Seconds that the trainer may take for a job. A request may ask for less.
        teacher_urls: Addresses of other vLLM servers that steps may name as teachers.
        teacher_api_key: Key of the servers there.
        on_job_end: Called with each job that has ended, once this is written to disk. It must not raise or wait.
    """

    keep_versions: int | None = None
    engine_wait: float = 180.0
    time_limit: float = JOB_TIME_LIMIT
    teacher_urls: tuple[str, ...] = ()
    teacher_api_key: str | None = field(default=None, repr=False)
    on_job_end: Callable[[Job], None] = lambda job: None


class JobService:
    """Everything about jobs that lives as long as the server does. Jobs run one after another.

    Args:
        settings: How the trainer process is started.
        queue: The queue between this server and the trainer process.
        deployment: Puts versions into service.
        ledger: Holds the completions that warm starts imitate.
        options: The rest.

    Attributes:
        open: The jobs that have not ended.
        process: The trainer process.
        runner: Runs a job.
        retention: Deletes old versions.
        acceptance: Held while a job is accepted. Whoever holds it sees all jobs in `open`, and no other comes.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        queue: JobQueue,
        deployment: Deployment,
        ledger: Ledger,
        options: JobOptions = JobOptions(),
    ) -> None:
        store, names = deployment.store, deployment.names
        self.queue, self.deployment, self._options = queue, deployment, options
        self.open = OpenJobs(queue, ledger)
        self.process = TrainerProcess(settings, queue=queue, store=store, open_ids=self.open)
        self._teachers = Teachers(store, names, urls=options.teacher_urls, api_key=options.teacher_api_key)
        self.runner = JobRunner(
            queue,
            self.process,
            deployment.engines,
            ledger,
            self._teachers,
            tokenizer=settings.tokenizer,
            share_gpu=settings.share_gpu,
            engine_wait=options.engine_wait,
        )
        self.retention = Retention(
            keep=options.keep_versions, store=store, slots=deployment.slots, names=names, needs=self.open.needs
        )
        self._idle_marks = dict[str, float]()
        """`idle_seconds` of the engines at the end of the last step of each policy."""
        self.acceptance = asyncio.Lock()  # a key that is sent twice at the same time makes one job; see JobQueue.accept
        self._task = PeriodicTask("the end of jobs", self.end_next)

    # --- The life of the service ---

    @property
    def failure(self) -> str | None:
        """What keeps jobs from being computed or ended, or old versions from being deleted; None: nothing."""
        return self.process.failure or self._task.failure or self.retention.failure

    async def start(self) -> None:
        """Starts the trainer process and the tasks that end jobs and delete old versions."""
        self.queue.end_turn()  # removes the turn that an earlier server gave: its engines are gone
        await asyncio.to_thread(self._fail_unserved)
        await self.process.start()
        self._task.start()
        self.retention.start()

    async def stop(self) -> None:
        """Ends the trainer process. The job that it was working on stays queued on disk."""
        await asyncio.gather(self._task.stop(), self.retention.stop())
        await self.process.stop()

    def served_version(self, policy: str) -> int | None:
        """The newest version that was put into service, which a policy's name means when the server starts; None: none.

        Its job may still be open: a server may have been killed after it answered with the version. A version that no
        engine has taken yet is not meant before its job has ended.
        """
        store = self.deployment.store
        for number in reversed(store.versions(policy)):
            record = store.version(policy, number)
            job_id = record.job_id if record else None
            if record and (job_id is None or job_id not in self.open or self.queue.in_service(job_id)):
                return number
        return None

    def _fail_unserved(self) -> None:
        """Fails open jobs of policies that this server does not serve: it would train them on another base model.

        A job whose version was made before is not failed.
        """
        store, unserved_policies = self.deployment.store, self.deployment.names.unserved_policies
        for file in self.open.files():
            why = unserved_policies.get(file.policy)
            if why is None or self.queue.training_outcome(file.id) or store.made_by(file.policy, file.id):
                continue
            error = (
                "This job was not done, and changed nothing: send it again, under another idempotency key, once its "
                f"policy is served. {why}"
            )
            log.error("%s: %s", file.id, error)
            self.queue.report(file.id, TrainingOutcome(error=error))

    # --- Submission: each job is on disk before its client is answered ---

    async def create(self, spec: PolicySpec) -> Job:
        """Queues the job that makes a policy's version 0.

        Raises:
            Conflict: The policy that it is a fork of is being deleted.
            NotFound: That policy was deleted.
            Unprocessable: The specification cannot be written as JSON.
            NotStored: The job could not be written to disk, for example because the disk is full.
        """
        async with self.acceptance:
            if spec.fork_of:
                await self._check_policy(spec.fork_of.policy)
            return await self._accept(partial(self.queue.accept, "create", spec.name, spec=spec))

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
            Conflict: The key was used for another request, or the policy is not served.
            NotFound: The policy was deleted.
            Unprocessable: The request holds a value that JSON cannot express, a reward is too large, or its loss or its
                teacher is unknown.
            NotStored: The job could not be written to disk, for example because the disk is full.
        """
        async with self.acceptance:
            await self._check_policy(policy)
            if job := await self._find_earlier_job(policy, request):
                return job
            if isinstance(request, StepRequest):
                await self._check_step(request)
            kind: JobKind = "sft" if isinstance(request, SFTRequest) else "step"
            accept = partial(self.queue.accept, kind, policy, request=request, evaluations=evaluations)
            return await self._accept(accept)

    def find(self, policy: str, idempotency_key: str) -> Job | None:
        """The step or warm start that was accepted under an idempotency key, or None."""
        entry = self.queue.keys.find(policy, idempotency_key)
        return self.queue.job(entry.job) if entry else None

    def creation(self, policy: str) -> Job | None:
        """The open job that creates a policy, or None."""
        job_ids = (file.id for file in self.open.files() if file.kind == "create" and file.policy == policy)
        return next(filter(None, map(self.queue.job, job_ids)), None)

    async def _check_policy(self, policy: str) -> None:
        """Raises Conflict or NotFound for a policy whose deletion began since the request was checked."""
        if why := self.deployment.names.unserved_policies.get(policy):
            raise Conflict(why, code="policy_unserved", param="name")
        if await asyncio.to_thread(self.deployment.store.deleted, policy):
            raise NotFound(f"policy {policy!r} was deleted", code="not_found")

    async def _find_earlier_job(self, policy: str, request: StepRequest | SFTRequest) -> Job | None:
        """The job that an equal request with the same key made. Raises Conflict where that request was another."""
        if not request.idempotency_key:
            return None
        entry = await asyncio.to_thread(self.queue.keys.find, policy, request.idempotency_key)
        if entry is None:
            return None
        same = entry.request == await asyncio.to_thread(digest, request)
        if not same and not await asyncio.to_thread(self._equal, entry.job, request):
            raise Conflict(
                f"idempotency key {request.idempotency_key!r} was used for another request ({entry.job})",
                code="idempotency_key_reused",
                param="idempotency_key",
            )
        return await asyncio.to_thread(self.queue.job, entry.job)

    def _equal(self, job_id: str, request: StepRequest | SFTRequest) -> bool:
        """Whether a job was accepted for an equal request, as this release reads it: an earlier one that knew fewer
        settings wrote another digest."""
        try:
            earlier = self.queue.file(job_id).request
        except TrainingError:
            return False
        return earlier is not None and digest(earlier) == digest(request)

    async def _check_step(self, request: StepRequest) -> None:
        """Raises Unprocessable for a reward that is too large, an unknown loss, or an unknown teacher.

        While the trainer is still starting, or waits for the first job, its losses are not known here. It then checks
        the loss when it takes the job up.
        """
        if request.config.rewards_count and (message := wrong_reward(request.groups)):
            raise Unprocessable(message, code="invalid_reward", param="groups")
        name, losses = request.config.loss_type, self.process.losses()
        if losses and name not in losses:
            raise Unprocessable(
                f"loss_type={name!r} is not known to this server's trainer, which knows {', '.join(losses)}; "
                "`art-langgraph serve --loss NAME=MODULE:ATTRIBUTE` registers another",
                code="unknown_loss",
                param="config.loss_type",
            )
        await asyncio.to_thread(self._teachers.check, request.config)

    async def _accept(self, accept: partial[JobFile]) -> Job:
        """Writes a job to disk, and wakes the trainer."""
        try:
            file = await asyncio.to_thread(accept, trace=tracing.current())
        except OSError as error:
            raise NotStored(f"the job could not be written down: {error}", code="disk") from None
        except ConfigError as error:
            raise Unprocessable(str(error), code="invalid_request") from None
        self.open.add(file)
        self.process.wake()
        job = self.queue.job(file.id)
        assert job is not None
        return job

    # --- Look-up ---

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
            end_count = self.open.end_count  # read first: the job may end while its files are read
            job = await asyncio.to_thread(self.queue.job, job_id)
            seconds_left = deadline - time.monotonic()
            if job is None or job.status.final or seconds_left <= 0:
                return job
            await self.open.wait_for_end(end_count, seconds_left)

    def newest(self, limit: int = 100, status: JobStatus | None = None) -> list[Job]:
        """The jobs of this server, newest first. Reads files: the more, the rarer the status is.

        Args:
            limit: How many at most.
            status: Only jobs with this status; None: all.

        Returns:
            The jobs, without the ids of their trajectories.
        """
        jobs: list[Job] = []
        for job_id in reversed(self.queue.ids()):
            if len(jobs) >= limit:
                break
            if status is not None and self.queue.final_status(job_id) not in (None, status):
                continue
            job = self.queue.job(job_id)
            if job is not None and status in (None, job.status):
                jobs.append(job.without_trajectories())
        return jobs

    # --- Cancellation ---

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
        job = await asyncio.to_thread(self.queue.job, job_id)
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
            if await asyncio.to_thread(self.queue.cancel, job_id):
                await self._end_unstarted(job_id)
            else:
                await self.process.break_off(job_id, BROKEN_OFF)
        except OSError as error:
            message = f"it could not be written down that {job_id} is cancelled: {error}; cancel it again"
            raise NotStored(message, code="disk") from None
        job = await asyncio.to_thread(self.queue.job, job_id) or job
        if job.status != JobStatus.cancelled:
            raise _end_conflict(job)
        return job

    async def _end_unstarted(self, job_id: str) -> None:
        """Ends a job that was cancelled before the trainer started it."""
        if self.open.first == job_id:  # `end_next` waits for it, and ends it now
            self.runner.stop_preparation()
            return
        job = await asyncio.to_thread(self.queue.job, job_id)
        if job is not None:
            await asyncio.to_thread(self.queue.finish, _cancelled_job(job, CANCELLED))
        await self.open.remove(job_id)

    # --- The end of jobs: one after another, once the engines serve the version, whatever becomes of one ---

    async def end_next(self) -> None:
        """Ends the oldest open job; waits for one if there is none."""
        job_id = await self.open.wait_for_first()
        job: Job | None = None
        try:
            job = await self.outcome(job_id)
            if job:
                await asyncio.to_thread(self.queue.finish, job)
                await asyncio.to_thread(self._record_spans, job)
        except OSError as error:
            if may_pass(error):  # nothing is lost, and what is done stays done
                log.error("%s cannot be ended now, and is tried again: %s", job_id, error)
                await asyncio.sleep(_RETRY)
                return
            log.error("%s is left out: how it ended cannot be written down: %s", job_id, error)
            if job:
                self.queue.remember(job)
        await self.open.remove(job_id)
        if job:
            self.retention.later(job.policy)
            self._options.on_job_end(job)

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
            if not self.queue.exists(job_id):
                log.error("jobs/%s in the server's home was deleted: the job is left out", job_id)
                return None
            log.exception("%s could not be ended", job_id)
            why = f"{type(error).__name__}: {error}"
        if self.queue.training_outcome(job_id) is None:
            await asyncio.to_thread(self.queue.report, job_id, TrainingOutcome(error=why))  # the trainer then skips it
        if (job := self.queue.job(job_id)) is None:
            return None
        if job.status == JobStatus.cancelled:
            return _cancelled_job(job, TrainingOutcome(error=job.error))
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
        file = self.open.file(job_id)
        limit = min(self._options.time_limit, (file.request and file.request.time_limit) or self._options.time_limit)
        outcome = await self.runner.run(file, limit)
        job = await asyncio.to_thread(self.queue.job, job_id)
        if job is None:
            raise TrainingError(f"jobs/{job_id} in the server's home cannot be read any more")
        if outcome.cancelled:
            return _cancelled_job(job, outcome)
        rows = await asyncio.to_thread(self.queue.rows, job_id)
        teaching = await asyncio.to_thread(self.queue.teaching, job_id)
        inputs = {"render": rows, "teacher": teaching}
        job.seconds = {phase: content.seconds for phase, content in inputs.items() if content}
        job.seconds["train"] = outcome.seconds
        job.status, job.result, job.error = JobStatus.succeeded, outcome.result, outcome.error
        if job.result is not None:
            if job.kind == "step":
                job.result.trajectories = await asyncio.to_thread(self.queue.used_trajectories, job_id)
            faults.point("swapping")
            try:
                if job.kind == "create":
                    await self.deployment.clear(job.policy)
                key = job.policy, job.result.version
                job.seconds["swap"] = await self.deployment.deploy(key, lambda: self.queue.put_in_service(job_id))
            except TrainingError as error:
                job.error = str(error)
            faults.point("swapped")
            await asyncio.to_thread(self.retention.credit, job.policy, job.id, job.result.metrics)
        if job.error or job.result is None:
            job.status, job.result = JobStatus.failed, None
            self.deployment.names.step_back(job.policy)
        if job.kind == "step":
            idle = self.deployment.engines.idle_seconds
            if (before := self._idle_marks.get(job.policy)) is not None:
                job.seconds["engines_idle"] = idle - before
            self._idle_marks[job.policy] = idle
        job.finished = time.time()
        return job

    def _record_spans(self, job: Job) -> None:
        """Records the spans of a job, while traces are on."""
        if not tracing.on():
            return
        try:
            record_job(job, parent=self.open.file(job.id).trace, start_time=self.queue.started_at(job.id))
        except Exception as error:  # a trace must not keep a job from its end
            log.warning("%s is in no trace: %s", job.id, error)


def _cancelled_job(job: Job, outcome: TrainingOutcome) -> Job:
    """The final state of a job that was cancelled."""
    job.status, job.error, job.finished = JobStatus.cancelled, outcome.error, job.finished or time.time()
    return job


def _end_conflict(job: Job) -> Conflict:
    how = f"has {job.status} already" if job.status.final else "has just ended, or made its version"
    return Conflict(f"{job.id} {how}: only a queued or running job can be cancelled", code="job_ended")
