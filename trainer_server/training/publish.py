"""New versions of policies: written into a staging directory, then made visible in one step."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError

from trainer_server.jobs.job_files import JobFile
from trainer_server.policies.store import AdapterStore
from trainer_server.process import faults
from trainer_server.process.files import no_space
from trainer_server.training.checkpoint import save_state
from trainer_server.training.model.policy import PolicyModel
from trainer_server.wire import PolicySpec, StepResult, TrainingError, Version


def remedy(error: Exception) -> str:
    """What to do about a file that could not be written or read."""
    full = isinstance(error, OSError) and no_space(error)
    full = full or "No space left" in str(error)  # what safetensors makes of it
    see = "there is space on the disk" if full else "the server can read and write its home"
    return (
        f"The policy stays at the version it had: see that {see}, and send the job again under another idempotency key."
    )


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
            TrainingError: There is none; or it was damaged or deleted by hand. That fails one job, whose sender is
                told: the next one goes on from the version before.
        """
        if broken := self._store.broken_newest(policy):
            told = [self._store.quarantine(policy, number, why) for number, why in broken.items()]
            raise TrainingError(f"{' '.join(told)} This job changed nothing: send it again to go on from there.")
        spec, versions = self._store.spec(policy), self._store.versions(policy)
        if spec is None or not versions:
            raise TrainingError(f"there is no policy {policy!r} to train")
        return spec, versions[-1]

    def published_by(self, job: JobFile) -> StepResult | None:
        """What a job has published already, in a process that was killed afterwards."""
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
