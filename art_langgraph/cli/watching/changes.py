"""What happened in a training between two looks at the server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from trainer_server.common.status import OpenJob, PolicyStatus, ServerStatus
from trainer_server.wire import Job

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
        calm: Seconds without anything that happens, after which it is told that nothing does.
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
    """None: nobody looked yet."""
    quiet_since: float = 0.0
    """When something happened last: a job was open, or a request under way. By the server's clock."""
    last_look: float = 0.0
    """When the last look was. By the server's clock."""
    _answered: int = 0
    """Completions of the policy until the last look."""
    _shares: dict[str, float] = field(default_factory=dict)

    @property
    def quiet(self) -> float:
        """Seconds for which nothing has happened; 0 while something does."""
        return self.last_look - self.quiet_since

    def look(self, status: ServerStatus) -> tuple[list[Change], list[str]]:
        """Takes a look. Returns what changed, and the ids of jobs that are not open any more."""
        before, known = self.open, self.status
        self.open = [open_job for open_job in status.jobs if open_job.job.policy == self.policy]
        if self.only is not None:
            self.open = [open_job for open_job in self.open if open_job.job.id == self.only]
        self.status = next((policy for policy in status.policies if policy.name == self.policy), None)
        traffic = next((load for load in status.traffic if load.policy == self.policy), None)
        self.running, self.tokens = (traffic.running, traffic.tokens_now) if traffic else (0, 0.0)
        still = {open_job.job.id for open_job in self.open}
        answered = traffic.total if traffic else self._answered
        busy = self.running > 0 or (answered != self._answered and self.activity is not None)
        self._answered = answered
        changes = [*self._jobs(before), *self._policy(known), *self._activity(status.time, busy)]
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
            yield Change(
                "held_out",
                f"held-out success of {self.policy}@{outcome.version}: {outcome.success:.3f} ({outcome.runs} runs)",
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
            at_it = f"{self.running} requests under way" if self.running else f"{self.tokens:,.0f} tokens/s"
            yield Change("rollouts", f"rollouts: {self.policy} answers, {at_it}", {"requests": self.running})
        elif self.activity == "idle":
            yield Change("idle", f"nothing happens: no job of {self.policy} is open, and nobody asks for it")


def describe_end(job: Job) -> Change:
    """The change that a job has ended.

    Args:
        job: In its final state.
    """
    facts: dict[str, Any] = {"job": job.id, "status": job.status.value, "seconds": job.seconds}
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in job.seconds.items())
    if job.result is None:
        return Change("ended", f"{_name(job)} {job.status.value}: {job.error}", {**facts, "error": job.error})
    metrics = job.result.metrics
    numbers = {
        name: metrics[name] for name in ("reward_mean", "loss", "entropy") if isinstance(metrics.get(name), float)
    }
    facts |= {"version": job.result.version, "metrics": numbers}
    if why := metrics.get("skipped"):
        return Change("ended", f"{_name(job)} learnt nothing: {why}", {**facts, "skipped": why})
    told = ", ".join(f"{name.removesuffix('_mean')} {value:.3f}" for name, value in numbers.items())
    return Change("ended", f"{_name(job)} made {job.policy}@{job.result.version}: {told or 'done'} ({spent})", facts)


def _name(job: Job) -> str:
    return f"{job.kind} {job.id[-8:]}"
