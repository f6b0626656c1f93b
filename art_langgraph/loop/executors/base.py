"""What an executor is given, and what it returns: a task and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from langchain_core.runnables import RunnableConfig

from art_langgraph.background.release import Server
from art_langgraph.loop.graphs import GraphSource
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario, Trajectory
from trainer_server.common import Connection
from trainer_server.wire import VersionRef


class Question(list[Any]):
    """The question of an interrupt: a list of its value alone.

    Attributes:
        id: LangGraph's id of the interrupt; None: it has none, as from old LangGraph servers.
    """

    def __init__(self, value: Any, id: str | None = None) -> None:
        super().__init__([value])
        self.id = id


Resume = Callable[[Question], Any]
"""Answers an interrupt: takes its question, `[value]`, and returns the answer, or an awaitable of it. Where several
interrupts wait at once, it is called for each of them, in their order."""


@dataclass(frozen=True, slots=True)
class RolloutTask:
    """One rollout that shall run. The fields are arguments of `rollout`."""

    scenario: Scenario
    temperature: float | None = None
    version: int | Mapping[str, VersionRef] | None = None
    hints: Mapping[str, str] = field(default_factory=dict)
    config: RunnableConfig | None = None
    timeout: float | None = None
    resume: Resume | None = None
    evaluation: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    store: TrajectoryStore | None = None
    """Knows earlier runs of the thread that a run goes on with. An executor writes nothing into it."""


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """What came of a task, before it is scored, stored and reported.

    Args:
        trajectory: What the run did, with its error if it raised.
        kind: Class of the graph that ran, or `function`.
        servers: Address and key of each trainer server that the run asked.
        report_server: The server that gets the report where the run asked none; None: none does.
        reward: What the run set by `current_run().reward`; None: nothing.
        replaces: Ids of stored runs that this run contains: those of its remote graphs.
        problem: Why its answers are not those that were asked for (PinIgnored); None: they are.
    """

    trajectory: Trajectory
    kind: str
    servers: frozenset[Server] = frozenset()
    report_server: Connection | None = None
    reward: float | dict[str, float] | None = None
    replaces: tuple[str, ...] = ()
    problem: str | None = None


class Executor(Protocol):
    """Runs rollouts somewhere. One instance serves all rollouts of a `gather` or a `train`, many at once."""

    async def run(self, source: GraphSource, task: RolloutTask) -> RolloutResult:
        """Runs a graph, or a function that is the agent, once. Cancelling it ends the run, wherever it runs.

        Args:
            source: The graph or function. Its `kind` is set when this returns.
            task: The scenario, and how it is run.

        Raises:
            ConfigError: As `rollout`. What the graph raises is the trajectory's `error`.
        """
        ...
