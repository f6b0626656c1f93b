"""What the trainer does for each kind of job: create a policy or fork one, take a GRPO step, take a warm start."""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from trainer_server.jobs.job_files import JobFile, Progress
from trainer_server.jobs.queue import JobQueue
from trainer_server.ledger.base import Ledger
from trainer_server.ledger.step_tokens import write_step_tokens
from trainer_server.policies.store import OPTIMIZER, AdapterStore
from trainer_server.process import faults
from trainer_server.training.checkpoint import load_state, make_optimizer, save_state
from trainer_server.training.grpo.batch import gather_batch
from trainer_server.training.grpo.loss import check_config
from trainer_server.training.grpo.step import optimise
from trainer_server.training.model.policy import PolicyModel
from trainer_server.training.publish import Publisher
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
)

log = logging.getLogger("trainer")

_PROGRESS_EVERY = 0.5
"""Seconds between two notes of how far a job is."""


class JobRunner:
    """Does one job from its file to its published version. Holds no state between jobs that is not on disk."""

    def __init__(
        self,
        *,
        board: JobQueue,
        store: AdapterStore,
        ledger: Ledger,
        model: PolicyModel,
        base_model: str,
        tokenizer: str,
        server_id: str | None,
        revision: str | None,
        ranks: Ranks,
    ) -> None:
        """base_model, tokenizer: name and fingerprint; completions of others are skipped. server_id: steps skip
        completions of other servers. revision: commit of a base model from the hub; versions carry it."""
        self._board, self._store, self._model = board, store, model
        self._ledger = ledger
        self._base_model, self._tokenizer, self._ranks = base_model, tokenizer, ranks
        self._server_id = server_id
        self._publisher = Publisher(store, model, revision)
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
                job = self._board.file(job_id)
            if job.kind == "sft":
                return self._compute_warm_start(job, version), None
            return self._compute_step(job, version)

    def _compute_step(self, job: JobFile, version: int) -> tuple[dict[str, Any], torch.optim.AdamW]:
        with self._ranks.share_errors():
            request, spec = job.request, self._store.spec(job.policy)
            if not isinstance(request, StepRequest) or spec is None:
                raise TrainingError(f"{job.id} says nothing about a step")
            check_config(request.config)  # before anything is loaded
            batch = gather_batch(
                request.groups,
                self._ledger.read(job.completions),
                request.config,
                policy=job.policy,
                version=version,
                base_model=self._base_model,
                tokenizer=self._tokenizer,
                server_id=self._server_id,
                teaching=self._board.teaching(job.id),
                evaluations=job.evaluations,
            )
            directory = self._store.directory(job.policy, version)
            self._model.load(spec, directory)
            optimizer = make_optimizer(self._model, request.config)
            if lost := load_state(directory, self._model, optimizer):
                torch.manual_seed(spec.seed + version)  # the same for all ranks, and however often the job is taken up
            faults.point("gathered")

        @contextmanager
        def with_version(other: int) -> Iterator[bool]:
            with self._ranks.share_errors():
                problem = self._store.problem(job.policy, other)
            if self._ranks.broadcast(problem):  # what the first rank sees: all do the same
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
        if lost and "skipped" not in metrics:
            log.warning("%s: %s", job.policy, lost)
            metrics["optimizer"] = lost
        return metrics, optimizer

    def _teacher(self, config: GRPOConfig) -> str:
        """The teacher that is computed here: `policy@version`, or the base model. Raises TrainingError without one."""
        asked = config.distill.version if config.distill else None
        if asked is None:
            return BASE_TEACHER
        version = asked.version
        if version is None:
            version = self._store.promoted_version(asked.policy)
        if not isinstance(version, int):
            version = self._store.newest(asked.policy)
        if version is None:
            raise TrainingError(f"teacher={asked.policy!r}: there is no such policy on this server")
        if problem := self._store.problem(asked.policy, version):
            raise TrainingError(f"teacher={asked.policy}@{version} cannot teach: {problem}")
        return f"{asked.policy}@{version}"

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
            write_step_tokens(self._board.root / job.id, tokens)
        trained = metrics["trajectories_trained"]
        self._board.use(job.id, trained)  # before the version: a process that is killed after it does not step again
        metrics["trajectories_trained"] = len(trained)
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
        named = job.request.from_version if isinstance(job.request, StepRequest) else None
        if named is None:
            return newest
        if problem := self._store.problem(job.policy, named):
            raise TrainingError(f"from_version={named}: {job.policy}@{named} cannot be trained: {problem}")
        return named

    def _sft(self, job: JobFile) -> StepResult:
        """The next version by imitation of demonstrations, or none where there is nothing to imitate."""
        _, version = self._publisher.newest(job.policy)
        metrics, _ = self._together(job, version)
        if "skipped" in metrics:
            return StepResult(version=version, metrics=metrics)
        return self._publisher.publish_weights(job, metrics, None, made_from=version)

    def _compute_warm_start(self, job: JobFile, version: int) -> dict[str, Any]:
        with self._ranks.share_errors():
            demonstrations, request = self._board.rows(job.id), job.request
            spec = self._store.spec(job.policy)
            if demonstrations is None or spec is None or not isinstance(request, SFTRequest):
                raise TrainingError(f"{job.id} says nothing about demonstrations")
            self._model.load(spec, self._store.directory(job.policy, version))
        noted = -math.inf

        def note_progress(share: float, measurements: dict[str, float]) -> None:
            nonlocal noted
            if self._ranks.first and time.monotonic() - noted >= _PROGRESS_EVERY:
                with suppress(OSError):  # a full disk: a progress bar is not worth the warm start
                    self._board.progress(job.id, Progress(share=share, measured=measurements))
                noted = time.monotonic()

        return warm_start(self._model, demonstrations, request.config, progress=note_progress, ranks=self._ranks)
