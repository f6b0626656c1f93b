"""What `watch` was asked to watch: a policy, a job, or a training run by its name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from art_langgraph.cli.options import several
from trainer_server.wire import ConfigError

if TYPE_CHECKING:
    from art_langgraph.client.client import TrainerClient

_SEARCHED = 1000
"""How many of the newest jobs are searched for the first characters of an id."""


@dataclass(slots=True)
class Target:
    """What is watched.

    Args:
        policy: Name of the policy.
        job: Id of the one job that is watched; None: all of the policy.
        run: Name of the training run (`train(run=…)`); None: none was named.
        steps: Of a training run, by the ids of their jobs: the numbers of its steps.
    """

    policy: str
    job: str | None = None
    run: str | None = None
    steps: dict[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What to call it."""
        return self.job or (f"run {self.run} of {self.policy}" if self.run else self.policy)

    async def number_steps(self, trainer: TrainerClient) -> None:
        """Finds out which jobs are steps of the training run."""
        if self.run is None:
            return
        number = max(self.steps.values(), default=0) + 1
        while job := await trainer.find_step(self.policy, f"{self.run}-step-{number}"):
            self.steps[job.id] = number
            number += 1


async def find_target(trainer: TrainerClient, name: str) -> Target:
    """What a name means: a policy, the beginning of a job's id, or a training run; of several policies' runs of that
    name, the one with the newest step.

    Args:
        trainer: The server.
        name: Given by the user.

    Raises:
        ConfigError: The server knows nothing of that name, or several jobs.
    """
    policies = [policy.name for policy in await trainer.policies()]
    if name in policies:
        return Target(name)
    jobs = {job.id: job for job in await trainer.jobs(limit=_SEARCHED) if job.id.startswith(name)}
    if len(jobs) > 1 and name not in jobs:
        raise ConfigError(several(name, list(jobs)))
    if jobs:
        job = jobs.get(name) or next(iter(jobs.values()))
        return Target(job.policy, job=job.id)
    runs = [Target(policy, run=name) for policy in policies]
    for run in runs:
        await run.number_steps(trainer)
    if known := [run for run in runs if run.steps]:
        return max(known, key=lambda run: max(run.steps))  # ids of jobs sort by time
    raise ConfigError(
        f"{name!r} is no policy, no job and no training run of this server. Its policies: "
        f"{', '.join(policies) or 'none'}. `art-langgraph jobs list` shows its jobs; a training run has a name with "
        "train(run=…) or `train --run`, and is known once its first step was accepted"
    )
