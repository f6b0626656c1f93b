"""The server's side of training, put together: jobs are accepted, computed by the trainer process, ended, and kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from trainer_server.engines.pool import Engines
from trainer_server.engines.slots import Slots
from trainer_server.jobs.board import JobBoard
from trainer_server.jobs.cancellation import Cancellation
from trainer_server.jobs.completer import JobCompleter
from trainer_server.jobs.files.training_outcome import TrainingOutcome
from trainer_server.jobs.open_jobs import OpenJobs
from trainer_server.jobs.preparation import Preparation
from trainer_server.jobs.status import Status
from trainer_server.jobs.submitter import JobSubmitter
from trainer_server.jobs.supervisor import TrainerProcess, TrainerSettings
from trainer_server.jobs.teaching import Teachers
from trainer_server.ledger.base import Ledger
from trainer_server.policies.names import PolicyNames
from trainer_server.policies.retention import Retention
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import Job

log = logging.getLogger("trainer_server")

JOB_TIME_LIMIT = 86400.0
"""Seconds that the trainer may take for a job, where nobody says less or more."""


class JobService:
    """Everything about jobs that lives as long as the server does. Jobs run one after another.

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
        time_limit: Seconds that the trainer may take for a job.
        teacher_urls: Addresses of other vLLM servers that steps may name as teachers.
        teacher_api_key: Key of the servers there.
        on_job_end: Called with each job that has ended, once this is written to disk. It must not raise or wait.

    Attributes:
        open: The jobs that have not ended.
        process: The trainer process.
        submitter: Accepts jobs.
        status: Answers questions about jobs.
        cancellation: Cancels jobs.
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
        time_limit: float = JOB_TIME_LIMIT,
        teacher_urls: Sequence[str] = (),
        teacher_api_key: str | None = None,
        on_job_end: Callable[[Job], None] = lambda job: None,
    ) -> None:
        self.board, self._store, self._names = board, store, names
        self.open = OpenJobs(board, ledger)
        self.process = TrainerProcess(settings, board=board, store=store, open_ids=self.open)
        teachers = Teachers(store, names, urls=teacher_urls, api_key=teacher_api_key)
        self.submitter = JobSubmitter(board, self.open, self.process, teachers)
        self.status = Status(board, self.open)
        self.retention = Retention(keep=keep_versions, store=store, slots=slots, names=names, needs=self.open.needs)
        preparation = Preparation(
            board, engines, ledger, teachers, tokenizer=settings.tokenizer, engine_wait=engine_wait
        )
        self.cancellation = Cancellation(board, self.open, self.process, store, stop_preparing=preparation.stop)
        self.completer = JobCompleter(
            board,
            self.open,
            process=self.process,
            cancellation=self.cancellation,
            preparation=preparation,
            store=store,
            names=names,
            slots=slots,
            engines=engines,
            retention=self.retention,
            share_gpu=settings.share_gpu,
            engine_wait=engine_wait,
            time_limit=time_limit,
            on_job_end=on_job_end,
        )

    @property
    def failure(self) -> str | None:
        """What keeps jobs from being computed or ended, or old versions from being deleted; None: nothing."""
        return self.process.failure or self.completer.failure or self.retention.failure

    async def start(self) -> None:
        """Starts the trainer process and the tasks that end jobs and delete old versions."""
        self.board.end_turn()  # removes the turn that an earlier server gave: its engines are gone
        await asyncio.to_thread(self._fail_unserved)
        await self.process.start()
        self.completer.start()
        self.retention.start()

    async def stop(self) -> None:
        """Ends the trainer process. The job that it was working on stays queued on disk."""
        await asyncio.gather(self.completer.stop(), self.retention.stop())
        await self.process.stop()

    def prune(self, days: float, most_bytes: int | None = None, lag: float = 0.0) -> int:
        """Deletes the directories of jobs that ended more than `days` ago, and the oldest where all have more than
        `most_bytes`; see JobBoard.prune."""
        return self.board.prune(days, most_bytes, lag)

    def served_version(self, policy: str) -> int | None:
        """The newest version that was put into service, which a policy's name means when the server starts; None: none.

        Its job may still be open: a server may have been killed after it answered with the version. A version that no
        engine has taken yet is not meant before its job has ended.
        """
        for number in reversed(self._store.versions(policy)):
            record = self._store.version(policy, number)
            job_id = record.job_id if record else None
            if record and (job_id is None or job_id not in self.open or self.board.in_service(job_id)):
                return number
        return None

    def _fail_unserved(self) -> None:
        """Fails open jobs of policies that this server does not serve: it would train them on another base model.

        A job whose version was made before is not failed.
        """
        for file in self.open.files():
            why = self._names.unserved_policies.get(file.policy)
            if why is None or self.board.training_outcome(file.id) or self._store.made_by(file.policy, file.id):
                continue
            error = (
                "This job was not done, and changed nothing: send it again, under another idempotency key, once its "
                f"policy is served. {why}"
            )
            log.error("%s: %s", file.id, error)
            self.board.report(file.id, TrainingOutcome(error=error))
