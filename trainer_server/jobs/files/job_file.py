"""What job.json holds: an accepted job."""

from __future__ import annotations

from pydantic import BaseModel

from trainer_server.wire import Job, JobKind, JobStatus, PolicySpec, SFTRequest, StepRequest


class JobFile(BaseModel):
    """Content of job.json. Exactly one of `spec` (kind create) and `request` (kinds step and sft) is set.

    Attributes:
        id: Id of the job; ids sort by time of acceptance.
        kind: What the job makes.
        policy: Name of the policy.
        created: Unix time, seconds.
        spec: The policy to create.
        request: The step or the warm start.
    """

    id: str
    kind: JobKind
    policy: str
    created: float
    spec: PolicySpec | None = None
    request: StepRequest | SFTRequest | None = None
    evaluations: frozenset[str] = frozenset()
    """Ids of those completions of a step whose rollouts evaluate a version, as the list of runs had it when the job was
    accepted. They are not trained."""
    trace: str | None = None
    """The value of `traceparent` of the request that made the job; None: it belongs to no trace."""

    @property
    def key(self) -> str | None:
        """The idempotency key of the request; None: it has none."""
        return self.request.idempotency_key if self.request else None

    def as_accepted(self) -> Job:
        """The job as clients see it before anything was done."""
        return Job(id=self.id, kind=self.kind, policy=self.policy, created=self.created, status=JobStatus.queued)

    @property
    def completions(self) -> list[str]:
        """Ids of the completions that the job needs from the ledger."""
        if isinstance(self.request, SFTRequest):
            trajectories = self.request.trajectories + self.request.validation_trajectories
        else:
            groups = self.request.groups if self.request else ()
            trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        return [completion_id for trajectory in trajectories for completion_id in trajectory.completions]

    @property
    def needs_teaching(self) -> bool:
        """Whether the step needs something of an engine before the trainer can compute it."""
        if not isinstance(self.request, StepRequest):
            return False
        distill = self.request.config.distill
        return (distill is not None and distill.url is not None) or bool(self.request.hints)

    @property
    def versions(self) -> set[tuple[str, int]]:
        """(policy, version) pairs that the job's request names: the source of a fork, the version that a step goes on
        from, the reference version, and the version that teaches."""
        if self.spec and self.spec.fork_of:
            return {(self.spec.fork_of.policy, self.spec.fork_of.version)}
        if not isinstance(self.request, StepRequest):
            return set()
        config = self.request.config
        named = {(self.policy, config.reference_version)} if config.beta > 0 else set()
        if self.request.from_version is not None:
            named.add((self.policy, self.request.from_version))
        teacher = config.distill.version if config.distill else None
        if teacher is not None and isinstance(teacher.version, int):
            named.add((teacher.policy, teacher.version))
        return named
