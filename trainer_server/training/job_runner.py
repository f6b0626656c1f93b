"""Computes a job in the trainer, by its kind: create a policy or fork one, take a GRPO step, take a warm start."""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from trainer_server.jobs.job_files import JobFile, Progress
from trainer_server.jobs.queue import JobQueue
from trainer_server.ledger.base import Ledger
from trainer_server.ledger.step_tokens import write_step_tokens
from trainer_server.policies.store import OPTIMIZER, AdapterStore
from trainer_server.process import faults
from trainer_server.process.files import no_space
from trainer_server.training.grpo.batch import Origin, gather_batch
from trainer_server.training.grpo.loss import check_config
from trainer_server.training.grpo.step import optimise
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.optimizer import load_state, make_optimizer, save_state
from trainer_server.training.ranks import Ranks
from trainer_server.training.sft.warm_start import warm_start
from trainer_server.wire import (
    BASE_TEACHER,
    Fork,
    GRPOConfig,
    PolicySpec,
    SFTRequest,
    StepRequest,
    StepResult,
    TrainingError,
    Version,
)

log = logging.getLogger("trainer")

_PROGRESS_EVERY = 0.5
"""Seconds between two writes of a job's progress."""


class JobRunner:
    """Does one job from its file to its published version. Holds no state between jobs that is not on disk.

    Args:
        queue: Where the files of jobs are.
        store: Versions on disk.
        ledger: Where completions are read.
        model: The base model with the LoRA that is trained.
        origin: Completions of others are skipped; versions carry its revision.
        ranks: The processes that compute a step together.
    """

    def __init__(
        self, queue: JobQueue, store: AdapterStore, ledger: Ledger, model: PolicyModel, origin: Origin, ranks: Ranks
    ) -> None:
        self._queue, self._store, self._ledger, self._model = queue, store, ledger, model
        self._origin, self._ranks = origin, ranks
        self._publisher = Publisher(store, model, origin.revision)
        self._kinds = {"create": self._create, "step": self._step, "sft": self._sft}

    def do(self, job: JobFile) -> StepResult:
        """Does a job; one that an earlier process has done already, and not reported, is not done again.

        Raises:
            TrainingError: It cannot be done.
            OSError: The disk is full, or a file cannot be read.
        """
        return self._publisher.published_by(job) or self._kinds[job.kind](job)

    def compute(self, job_id: str, version: int) -> tuple[dict[str, Any], torch.optim.AdamW | None]:
        """Takes a step, or a warm start, on top of a version, on every rank; leaves the new weights in place.

        Returns:
            The metrics, and the optimizer with its new state; None: the next step begins with a fresh one.

        Raises:
            ARTError: It cannot be done; raised by all ranks.
            OSError: A file cannot be read; of a single process.
            RankFailed: This rank failed, and the others wait for it.
            RankLost: Another rank is gone.
        """
        with self._ranks.step():
            with self._ranks.share_errors():
                job = self._queue.file(job_id)
            if job.kind == "sft":
                return self._compute_warm_start(job, version), None
            return self._compute_step(job, version)

    def _compute_step(self, job: JobFile, version: int) -> tuple[dict[str, Any], torch.optim.AdamW]:
        with self._ranks.share_errors():
            request, spec = job.request, self._store.spec(job.policy)
            if not isinstance(request, StepRequest) or spec is None:
                raise TrainingError(f"{job.id} has no request for a step")
            check_config(request.config)  # before anything is loaded
            batch = gather_batch(
                request.groups,
                self._ledger.read(job.completions),
                request.config,
                policy=job.policy,
                version=version,
                origin=self._origin,
                teaching=self._queue.teaching(job.id),
                evaluations=job.evaluations,
            )
            directory = self._store.directory(job.policy, version)
            self._model.load(spec, directory)
            optimizer = make_optimizer(self._model, request.config)
            if state_problem := load_state(directory, self._model, optimizer):
                torch.manual_seed(spec.seed + version)  # the same for all ranks, and however often the job is taken up
            faults.point("gathered")

        @contextmanager
        def with_version(other: int) -> Iterator[bool]:
            with self._ranks.share_errors():
                problem = self._store.problem(job.policy, other)
            if self._ranks.broadcast(problem):  # of the first rank: all do the same
                yield False
                return
            with self._ranks.share_errors():
                self._model.load(spec, self._store.directory(job.policy, other))
            yield True
            with self._ranks.share_errors():  # not after an error: others may be in the middle of computing
                self._model.load(spec, directory)

        @contextmanager
        def with_teacher() -> Iterator[str]:
            with self._ranks.share_errors():
                teacher = self._teacher(request.config)
            name = self._ranks.broadcast(teacher)  # the newest version that the first rank sees
            with self._ranks.share_errors():
                policy, at, number = str(name).partition("@")
                if not at:
                    self._model.initialise(spec)  # a LoRA that adds nothing
                elif teacher_spec := self._store.spec(policy):
                    self._model.load(teacher_spec, self._store.directory(policy, int(number)), beside=True)
                else:
                    raise TrainingError(f"teacher {name}: there is no such policy any more")
            yield str(name)
            with self._ranks.share_errors():
                self._model.load(spec, directory)

        metrics = optimise(self._model, optimizer, batch, request.config, with_version, with_teacher, self._ranks)
        if state_problem and "skipped" not in metrics:
            log.warning("%s: %s", job.policy, state_problem)
            metrics["optimizer"] = state_problem
        return metrics, optimizer

    def _teacher(self, config: GRPOConfig) -> str:
        """The teacher that is computed here: `policy@version`, or the base model. Raises TrainingError without one."""
        teacher = config.distill.version if config.distill else None
        if teacher is None:
            return BASE_TEACHER
        policy, version = teacher
        if version is None:
            version = self._store.promoted_version(policy)
        if not isinstance(version, int):
            version = self._store.newest(policy)
        if version is None:
            raise TrainingError(f"teacher={policy!r}: there is no such policy on this server")
        if problem := self._store.problem(policy, version):
            raise TrainingError(f"teacher={policy}@{version} cannot teach: {problem}")
        return f"{policy}@{version}"

    def _create(self, job: JobFile) -> StepResult:
        """Version 0: an untrained LoRA, or a copy of another policy's version."""
        if job.spec is None:
            raise TrainingError(f"{job.id} names no policy to create")
        if 0 in self._store.versions(job.policy):  # made for a request that was cut off and sent again
            return StepResult(version=0)
        if job.spec.fork_of:
            return self._fork(job, job.spec, job.spec.fork_of)
        self._model.initialise(job.spec)
        torch.manual_seed(job.spec.seed)
        return self._publisher.publish(job, 0, {}, lambda staging: self._publisher.write(staging, None))

    def _fork(self, job: JobFile, spec: PolicySpec, source: Fork) -> StepResult:
        name = f"{source.policy}@{source.version}"
        if problem := self._store.problem(source.policy, source.version):
            raise TrainingError(f"{name} cannot be forked: {problem}")
        directory = self._store.directory(source.policy, source.version)
        state = ("trainer.json", OPTIMIZER) if source.optimizer else ()
        if not all((directory / file).exists() for file in state):
            state = ()
            log.warning("%s has no optimizer state any more: %s begins with a fresh one", name, job.policy)

        def copy(staging: Path) -> None:
            for file in ("adapter_config.json", "adapter_model.safetensors", *state):
                shutil.copyfile(directory / file, staging / file)
            if not state:
                torch.manual_seed(spec.seed)
                save_state(staging, self._model, None)

        metrics: dict[str, object] = {"fork_of": name, "optimizer": "copied" if state else "fresh"}
        return self._publisher.publish(job, 0, metrics, copy)

    def _step(self, job: JobFile) -> StepResult:
        """The next version by policy gradient, or none where there is nothing to learn from."""
        _, newest = self._publisher.newest(job.policy)
        version = self._begins_from(job, newest)
        metrics, optimizer = self._together(job, version)
        tokens = metrics.pop("tokens")
        with suppress(OSError):  # for the dashboard only
            write_step_tokens(self._queue.root / job.id, tokens)
        trajectories = metrics["trajectories_trained"]
        self._queue.use(job.id, trajectories)  # before the version: a process killed after it does not step again
        metrics["trajectories_trained"] = len(trajectories)
        if "skipped" in metrics:
            return StepResult(version=newest, metrics=metrics)
        return self._publisher.publish_weights(job, metrics, optimizer, made_from=version)

    def _together(self, job: JobFile, version: int) -> tuple[dict[str, Any], torch.optim.AdamW | None]:
        """Computes a job on all ranks; the first rank calls it."""
        if self._ranks.count > 1:
            self._ranks.order(json.dumps({"job": job.id, "version": version}))
        return self.compute(job.id, version)

    def _begins_from(self, job: JobFile, newest: int) -> int:
        """The version that a step goes on from. Raises TrainingError where the one that it names cannot be used."""
        version = job.request.from_version if isinstance(job.request, StepRequest) else None
        if version is None:
            return newest
        if problem := self._store.problem(job.policy, version):
            raise TrainingError(f"from_version={version}: {job.policy}@{version} cannot be trained: {problem}")
        return version

    def _sft(self, job: JobFile) -> StepResult:
        """The next version by imitation of demonstrations, or none where there is nothing to imitate."""
        _, version = self._publisher.newest(job.policy)
        metrics, _ = self._together(job, version)
        if "skipped" in metrics:
            return StepResult(version=version, metrics=metrics)
        return self._publisher.publish_weights(job, metrics, None, made_from=version)

    def _compute_warm_start(self, job: JobFile, version: int) -> dict[str, Any]:
        with self._ranks.share_errors():
            demonstrations, request = self._queue.rows(job.id), job.request
            spec = self._store.spec(job.policy)
            if demonstrations is None or spec is None or not isinstance(request, SFTRequest):
                raise TrainingError(f"{job.id} has no demonstrations")
            self._model.load(spec, self._store.directory(job.policy, version))
        last_write = -math.inf

        def write_progress(share: float, measurements: dict[str, float]) -> None:
            nonlocal last_write
            if self._ranks.first and time.monotonic() - last_write >= _PROGRESS_EVERY:
                with suppress(OSError):  # a full disk: a progress bar is not worth the warm start
                    self._queue.progress(job.id, Progress(share=share, measured=measurements))
                last_write = time.monotonic()

        return warm_start(self._model, demonstrations, request.config, progress=write_progress, ranks=self._ranks)


class Publisher:
    """Finds the version that a job goes on from, and publishes the version that it makes, once.

    Args:
        store: Where versions lie.
        model: The base model with the LoRA that is trained.
        revision: Commit of a base model from the hub.
    """

    def __init__(self, store: AdapterStore, model: PolicyModel, revision: str | None = None) -> None:
        self._store, self._model, self._revision = store, model, revision

    def newest(self, policy: str) -> tuple[PolicySpec, int]:
        """The shape of a policy and its newest version, which a job goes on from.

        Raises:
            TrainingError: There is none; or it was damaged or deleted by hand. That fails one job: the next one goes on
                from the version before.
        """
        if problems := self._store.broken_newest(policy):
            reasons = [self._store.quarantine(policy, number, why) for number, why in problems.items()]
            raise TrainingError(f"{' '.join(reasons)} This job changed nothing: send it again to go on from there.")
        spec, versions = self._store.spec(policy), self._store.versions(policy)
        if spec is None or not versions:
            raise TrainingError(f"there is no policy {policy!r} to train")
        return spec, versions[-1]

    def published_by(self, job: JobFile) -> StepResult | None:
        """The result of a job that an earlier process has published, and not reported; None: it has not."""
        record = self._store.made_by(job.policy, job.id)
        if record is None:
            return None
        self._store.note_highest(job.policy, record.version)  # the last thing that publishing does
        return StepResult(version=record.version, metrics=record.metrics)

    def publish_weights(
        self, job: JobFile, metrics: dict[str, object], optimizer: torch.optim.AdamW | None, *, made_from: int
    ) -> StepResult:
        """Publishes the weights that are in place as the next version of the job's policy.

        Args:
            job: That made them.
            metrics: Of the step or warm start.
            optimizer: Whose state the next step goes on from; None: it begins with a fresh one.
            made_from: The version that the job went on from.
        """
        number = self._store.next_number(job.policy)
        return self.publish(job, number, metrics, lambda staging: self.write(staging, optimizer), made_from=made_from)

    def publish(
        self,
        job: JobFile,
        version: int,
        metrics: dict[str, object],
        write: Callable[[Path], None],
        *,
        made_from: int | None = None,
    ) -> StepResult:
        """Publishes what `write` puts into a staging directory. Raises TrainingError when it cannot be written."""
        try:
            staging = self._store.staging(job.policy, version)
            write(staging)
            record = Version(
                policy=job.policy,
                version=version,
                created=time.time(),
                job_id=job.id,
                made_from=made_from,
                base_revision=self._revision,
                metrics=metrics,
            )
            self._store.publish(staging, record)
        except (OSError, SafetensorError) as error:
            self._store.clean()
            raise TrainingError(f"{job.policy}@{version} could not be written: {error}. {remedy(error)}") from error
        return StepResult(version=version, metrics=metrics)

    def write(self, staging: Path, optimizer: torch.optim.AdamW | None) -> None:
        """Writes the weights that are in place, and the state that the next step goes on from."""
        self._model.save(staging)
        faults.point("weights")
        save_state(staging, self._model, optimizer)
        faults.point("state")


def remedy(error: Exception) -> str:
    """What to do about a file that could not be written or read."""
    full = isinstance(error, OSError) and no_space(error)
    full = full or "No space left" in str(error)  # what safetensors makes of it
    see = "there is space on the disk" if full else "the server can read and write its home"
    return (
        f"The policy stays at the version it had: see that {see}, and send the job again under another idempotency key."
    )
