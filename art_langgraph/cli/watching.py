"""What `watch` is asked to watch, the looks at it, and what has changed between two of them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from art_langgraph.cli.options import several, unless_missing
from trainer_server.common.status import Curve, OpenJob, PolicyStatus, ServerStatus
from trainer_server.wire import ConfigError, Job
from trainer_server.wire.text import quantity

if TYPE_CHECKING:
    from art_langgraph.client.client import TrainerClient


_JOBS_SEARCHED = 1000
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
    jobs = {job.id: job for job in await trainer.jobs(limit=_JOBS_SEARCHED) if job.id.startswith(name)}
    if len(jobs) > 1 and name not in jobs:
        raise ConfigError(several(name, list(jobs)))
    if jobs:
        job = jobs.get(name) or next(iter(jobs.values()))
        return Target(job.policy, job=job.id)
    runs = [Target(policy, run=name) for policy in policies]
    for run in runs:
        await run.number_steps(trainer)
    if candidates := [run for run in runs if run.steps]:
        return max(candidates, key=lambda run: max(run.steps))  # ids of jobs sort by time
    raise ConfigError(
        f"{name!r} is no policy, no job and no training run of this server. Its policies: "
        f"{', '.join(policies) or 'none'}. `art-langgraph jobs list` shows its jobs; a training run has a name with "
        "train(run=…) or `train --run`, and is known once its first step was accepted"
    )


Activity = Literal["rollouts", "job", "between", "idle"]
"""What a policy does: it answers requests; a job of it is open; nothing for a moment; nothing for longer."""
_STEP = 0.1
"""Share of a job's progress that is worth a line."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened."""

    kind: str
    """`rollouts`, `idle`, `job`, `phase`, `progress`, `ended`, `held_out` or `promoted`."""
    text: str
    """In words."""
    facts: dict[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)

    def __str__(self) -> str:
        return f"{time.strftime('%H:%M:%S', time.localtime(self.time))} {self.text}"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"time": self.time, "kind": self.kind, "text": self.text, **self.facts}


@dataclass(slots=True)
class Training:
    """A training as its server shows it, look by look.

    Args:
        policy: Name of the policy.
        only: The one job that is looked at; None: all of the policy.
        calm: Seconds without anything that happens, after which the change `idle` says so.
    """

    policy: str
    only: str | None = None
    calm: float = 10.0
    status: PolicyStatus | None = None
    """The policy at the last look."""
    open: list[OpenJob] = field(default_factory=list)
    """Its open jobs at the last look, oldest first."""
    running: int = 0
    """Its requests at the last look."""
    tokens: float = 0.0
    """Its sampled tokens per second at the last look."""
    activity: Activity | None = None
    """None before the first look."""
    quiet_since: float = 0.0
    """When something happened last: a job was open, or a request under way. By the server's clock."""
    last_look: float = 0.0
    """When the last look was. By the server's clock."""
    _completions: int = 0
    """Completions of the policy until the last look."""
    _shares: dict[str, float] = field(default_factory=dict)

    @property
    def quiet(self) -> float:
        """Seconds for which nothing has happened; 0 while something does."""
        return self.last_look - self.quiet_since

    def look(self, status: ServerStatus) -> tuple[list[Change], list[str]]:
        """Takes a look. Returns what changed, and the ids of jobs that are not open any more."""
        before, previous = self.open, self.status
        self.open = [open_job for open_job in status.jobs if open_job.job.policy == self.policy]
        if self.only is not None:
            self.open = [open_job for open_job in self.open if open_job.job.id == self.only]
        self.status = next((policy for policy in status.policies if policy.name == self.policy), None)
        traffic = next((load for load in status.traffic if load.policy == self.policy), None)
        self.running, self.tokens = (traffic.running, traffic.tokens_now) if traffic else (0, 0.0)
        still = {open_job.job.id for open_job in self.open}
        total = traffic.total if traffic else self._completions
        busy = self.running > 0 or (total != self._completions and self.activity is not None)
        self._completions = total
        changes = [*self._jobs(before), *self._policy(previous), *self._activity(status.time, busy)]
        self.last_look = status.time
        return changes, [open_job.job.id for open_job in before if open_job.job.id not in still]

    def _jobs(self, before: list[OpenJob]) -> Iterator[Change]:
        phases = {open_job.job.id: open_job.phase for open_job in before}
        for open_job in self.open:
            job, facts = open_job.job, {"job": open_job.job.id, "phase": open_job.phase}
            if job.id not in phases:
                yield Change("job", f"{_name(job)}: {open_job.phase}, {open_job.words}", facts)
            elif phases[job.id] != open_job.phase:
                yield Change("phase", f"{_name(job)}: {open_job.phase}, {open_job.words}", facts)
            share = job.progress or 0.0
            if open_job.phase == "train" and share - self._shares.get(job.id, 0.0) >= _STEP:
                self._shares[job.id] = share
                yield Change("progress", f"{_name(job)}: {share:.0%}", {**facts, "progress": share})

    def _policy(self, previous: PolicyStatus | None) -> Iterator[Change]:
        now = self.status
        if now is None or previous is None or self.only is not None:
            return
        if now.held_out is not None and now.held_out != previous.held_out:
            outcome = now.held_out
            runs = quantity(outcome.runs, "run")
            yield Change(
                "held_out",
                f"held-out success of {self.policy}@{outcome.version}: {outcome.success:.3f} ({runs})",
                outcome.model_dump(),
            )
        if now.promoted != previous.promoted:
            means = "its newest version" if now.promoted is None else f"{self.policy}@{now.promoted}"
            yield Change("promoted", f"the name {self.policy} means {means}", {"version": now.promoted})

    def _activity(self, now: float, busy: bool) -> Iterator[Change]:
        before = self.activity
        if self.open or busy or before is None:
            self.quiet_since = now
        if self.open:
            self.activity = "job"
        elif busy:
            self.activity = "rollouts"
        elif before in (None, "idle") or now - self.quiet_since >= self.calm:
            self.activity = "idle"
        elif before == "job":
            self.activity = "between"
        if self.activity == before or self.only is not None:
            return
        if self.activity == "rollouts":
            at_it = f"{quantity(self.running, 'request')} under way" if self.running else f"{self.tokens:,.0f} tokens/s"
            yield Change("rollouts", f"rollouts: {self.policy} answers, {at_it}", {"requests": self.running})
        elif self.activity == "idle":
            yield Change("idle", f"nothing happens: no job of {self.policy} is open, and nobody asks for it")


def describe_end(job: Job) -> Change:
    """The change that a job has ended.

    Args:
        job: In its final state.
    """
    facts: dict[str, Any] = {"job": job.id, "status": job.status.value, "seconds": job.seconds}
    times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in job.seconds.items())
    if job.result is None:
        return Change("ended", f"{_name(job)} {job.status.value}: {job.error}", {**facts, "error": job.error})
    metrics = job.result.metrics
    numbers = {
        name: metrics[name] for name in ("reward_mean", "loss", "entropy") if isinstance(metrics.get(name), float)
    }
    facts |= {"version": job.result.version, "metrics": numbers}
    if why := metrics.get("skipped"):
        return Change("ended", f"{_name(job)} learnt nothing: {why}", {**facts, "skipped": why})
    figures = ", ".join(f"{name.removesuffix('_mean')} {value:.3f}" for name, value in numbers.items())
    return Change("ended", f"{_name(job)} made {job.policy}@{job.result.version}: {figures or 'done'} ({times})", facts)


def _name(job: Job) -> str:
    return f"{job.kind} {job.id[-8:]}"


_MOST_CHANGES = 50
"""Changes that are kept."""


class Following:
    """A training that is looked at.

    Args:
        trainer: The server.
        target: What is watched.

    Attributes:
        training: As it was at the last look.
        curves: The learning curves of the policy.
        recent: The last changes, oldest first.
        last: The job that ended last while it was watched; None: none did.
    """

    def __init__(self, trainer: TrainerClient, target: Target) -> None:
        self._trainer, self.target = trainer, target
        self.training = Training(target.policy, only=target.job)
        self.curves: dict[str, Curve] = {}
        self.recent: deque[Change] = deque(maxlen=_MOST_CHANGES)
        self.last: Job | None = None
        self._drawn: object = None

    async def looks(self, *, idle: float, every: float) -> AsyncIterator[list[Change]]:
        """Looks until the end, and yields after each look what has changed.

        Args:
            idle: Seconds without anything that happens, after which a policy is not watched any more; 0: never.
            every: Seconds between two looks.
        """
        self.training.calm = min(self.training.calm, idle or self.training.calm)
        while True:
            changes = await self._look()
            over = self._over(idle)
            if over is not None:
                changes.append(over)
            self.recent.extend(changes)
            yield changes
            ended_alone = self.target.job is not None and any(change.kind == "ended" for change in changes)
            if over is not None or ended_alone:
                return
            await asyncio.sleep(every)

    async def _look(self) -> list[Change]:
        status = await self._trainer.status()
        changes, ended_ids = self.training.look(status)
        if self.target.job is not None and not self.training.open:
            ended_ids = [self.target.job]
        await self.target.number_steps(self._trainer)
        changes = [*[await self._describe_end(job_id) for job_id in ended_ids], *changes]
        status_now = self.training.status
        figures = status_now and (status_now.newest, status_now.held_out, status_now.training, status_now.score)
        if status_now is not None and (ended_ids or figures != self._drawn):
            self.curves, self._drawn = await self._trainer.curves(status_now.name), figures
        return changes

    async def _describe_end(self, job_id: str) -> Change:
        if (job := await unless_missing(self._trainer.job(job_id))) is None:
            return Change("ended", f"{job_id} is not there any more: it was deleted", {"job": job_id})
        self.last, change = job, describe_end(job)
        step = self.target.steps.get(job_id)
        if step is None:
            return change
        return Change(change.kind, f"step {step} of {self.target.run}: {change.text}", {**change.facts, "step": step})

    def _over(self, idle: float) -> Change | None:
        """The last change, where nothing has happened for so long that the training counts as ended."""
        if self.target.job is not None or not idle or self.training.quiet < idle:
            return None
        status = self.training.status
        newest = "is not there any more" if status is None else f"is at version {status.newest}"
        return Change("over", f"nothing has happened for {idle:g} s: {self.target.policy} {newest}")
