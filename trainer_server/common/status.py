"""The state of a server, as `GET /api/status` answers it: what it works on now, how fast, and what is wrong."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from trainer_server.wire.steps import Job

JobPhase = Literal["queued", "prepare", "train", "load"]
"""Phase of a job that has not ended: it waits for the trainer; an engine renders or a teacher is asked; the trainer
computes; the engines load the version."""
PHASES: tuple[JobPhase, ...] = ("queued", "prepare", "train", "load")
"""In their order."""


EngineState = Literal["ready", "resting", "not ready"]
"""A resting engine has left its GPU to the trainer for a step."""


class EngineStatus(BaseModel):
    """An engine."""

    url: str
    state: EngineState
    requests: int
    """Requests that it works on."""
    restarts: int
    adapters: list[str] = Field(default_factory=list)
    """The versions that it holds, as `agent@3`."""
    error: str | None = None


class LineStatus(BaseModel):
    """Chat requests at engines and in line."""

    running: int
    """At engines."""
    waiting: int
    """In line."""
    most: int
    """Requests that the server takes at once. One more is refused."""
    refused: int
    """Since the start of the server."""


class OpenJob(BaseModel):
    """A job that has not ended."""

    job: Job
    phase: JobPhase
    words: str
    """What the phase means."""
    since: float
    """When it was accepted, or when the trainer took it up. Unix time, seconds."""

    @property
    def phases(self) -> list[tuple[JobPhase, Literal["done", "now", "later"]]]:
        """All phases, with where the job is."""
        at = PHASES.index(self.phase)
        return [
            (name, "done" if place < at else "now" if place == at else "later") for place, name in enumerate(PHASES)
        ]


class RunsOutcome(BaseModel):
    """What the rewarded runs of one version came to."""

    version: int
    runs: int
    mean: float
    """Mean reward."""
    success: float
    """Share of runs with a reward of at least 1."""


class PolicyStatus(BaseModel):
    """A policy."""

    name: str
    newest: int
    promoted: int | None = None
    """None: the name means the newest version."""
    candidate: int | None = None
    """The version that is tried beside the promoted one."""
    share: float | None = None
    """The candidate's share of the new rollouts."""
    held_out: RunsOutcome | None = None
    """The newest version that was evaluated; None: none was."""
    training: RunsOutcome | None = None
    """The newest version whose training runs have rewards."""
    score: float | None = None
    """The score of the newest version; None: it has none."""
    groups: int = 0
    """Groups of training runs of the last versions."""
    dead_groups: int = 0
    """Of those, the groups in which all runs got the same reward. They teach nothing."""
    last_step: Job | None = None
    """The newest step or warm start that has ended."""


class Traffic(BaseModel):
    """What a policy answers now. An answer's tokens are counted when it ends."""

    policy: str | None
    """None: the base model."""
    running: int = 0
    """Chat requests at engines and in line."""
    total: int = 0
    """Completions since the start of the server."""
    completions: float = 0.0
    """Per second, in the last minute."""
    tokens: float = 0.0
    """Sampled tokens per second, in the last minute."""
    tokens_now: float = 0.0
    """Sampled tokens per second, in the last ten seconds."""
    prompt_tokens: float = 0.0
    """Tokens of prompts per second, in the last minute."""


class GPUMemory(BaseModel):
    """Memory of a GPU in bytes."""

    used: int
    total: int


class MemoryStatus(BaseModel):
    """Memory in bytes."""

    parts: dict[str, int] = Field(default_factory=dict)
    """Resident memory of the processes of this server: `server`, `trainer`, and the engines that it started."""
    used: int | None = None
    """Main memory of the machine that is in use; None: the system does not say."""
    total: int
    gpus: list[GPUMemory] = Field(default_factory=list)


class Problem(BaseModel):
    """Something that is wrong, and what to do."""

    what: str
    remedy: str


class ServerStatus(BaseModel):
    """What `GET /api/status` answers."""

    time: float
    """When it was put together. Unix time, seconds."""
    started: float
    """When the server was started. Unix time, seconds."""
    model: str
    """The base model."""
    ready: bool
    """Whether completions can be answered."""
    trainer: bool
    """Whether the trainer process runs."""
    engines: list[EngineStatus]
    line: LineStatus
    jobs: list[OpenJob]
    """Oldest first."""
    policies: list[PolicyStatus]
    traffic: list[Traffic]
    """Of the policies that answer now or did so in the last minute, busiest first."""
    memory: MemoryStatus
    problems: list[Problem]

    @property
    def tokens(self) -> float:
        """Sampled tokens per second, in the last minute."""
        return sum(policy.tokens for policy in self.traffic)


class Curve(BaseModel):
    """A figure of a policy by version. `GET /api/policies/{name}/curves` answers curves by name: `held-out success`,
    `reward of runs`, `success of runs`, `reward of node NODE` where a reward function returned `NodeRewards`, `score`,
    and each metric of the steps. With `?scenario=ID`: those of the runs of one scenario only."""

    x: list[int]
    """Versions."""
    y: list[float]
    low: list[float] | None = None
    """Lower ends of the 95 % interval; None: it is not known."""
    high: list[float] | None = None
    runs: list[int] | None = None
    """How many runs each value was measured on."""


HELD_OUT, REWARD, SUCCESS = "held-out success", "reward of runs", "success of runs"
"""Names of the curves that come from runs."""
NODE = "reward of node "
"""The name of a curve of a node begins so."""
