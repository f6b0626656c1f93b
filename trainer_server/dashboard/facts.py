"""The facts of a run: from the ledger, the repository of runs, and the training steps that contained it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer_server.common.run_tree import CallItem, Item, calls, tree
from trainer_server.dashboard.sources import Sources
from trainer_server.dashboard.step_history import StepOfRun, steps_of, why_never_sent
from trainer_server.dashboard.words import first_request, task_messages, task_words
from trainer_server.ledger.run_list import RunRow
from trainer_server.wire import Completion, GivenReward, NotFound, RolloutSpec, RunTrace

WORLD = "world"
"""Key of a run's metadata under which art_mcp keeps what the run changed in its world."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts of a run."""

    id: str
    row: RunRow | None
    """Its row in the list; None: the list has not come to it yet."""
    trace: RunTrace | None
    completions: Sequence[Completion]
    spec: RolloutSpec
    rewards: Sequence[GivenReward]
    versions: Sequence[tuple[str, int]]
    steps: Sequence[StepOfRun]

    @property
    def items(self) -> list[Item]:
        """The tree of its nodes and calls."""
        return tree(self.trace, self.completions)

    @property
    def calls(self) -> list[tuple[str, CallItem]]:
        """Its model calls with the path of their nodes."""
        return list(calls(self.items))

    @property
    def reward(self) -> float | None:
        """The reward that counts."""
        return self.row.reward if self.row else None

    @property
    def scenario_id(self) -> str | None:
        """Id of its scenario."""
        return self.row.scenario if self.row else None

    @property
    def task(self) -> Any:
        """The input of its scenario; None: it is not known."""
        scenario = self.trace.scenario if self.trace else self.spec.scenario
        return scenario.input if scenario else None

    @property
    def title(self) -> str:
        """The words of its task; its scenario or its id where the task is not known."""
        return task_words(self.task) or task_words(first_request(self.completions)) or self.scenario_id or self.id

    @property
    def messages(self) -> list[tuple[str, str]]:
        """Role and text of the messages of its task; of its first request where no task is known."""
        return task_messages(first_request(self.completions) if self.task is None else self.task)

    @property
    def answer(self) -> Any:
        """The text of its last completion; else its output."""
        for _, item in reversed(self.calls):
            if item.call.message and item.call.message.get("content"):
                return item.call.message["content"]
        return self.trace.output if self.trace else None

    @property
    def metrics(self) -> dict[str, float]:
        """Parts of its reward, the newest ones."""
        newest = self.rewards[-1].metrics if self.rewards else {}
        return {**(self.trace.metrics if self.trace else {}), **newest}

    @property
    def reasons(self) -> list[tuple[str, str]]:
        """Source and text of each explanation of its reward."""
        reasons = []
        if self.trace and self.trace.reward_reason:
            reasons.append((self.trace.reward_source or "judge", self.trace.reward_reason))
        if self.trace and self.trace.reward_error:
            reasons.append(("no reward", self.trace.reward_error))
        return reasons + [(reward.source, reward.reason) for reward in self.rewards if reward.reason]

    @property
    def metadata(self) -> dict[str, Any]:
        """The user's data."""
        return {**self.spec.metadata, **(self.trace.metadata if self.trace else {})}

    @property
    def world(self) -> list[dict[str, Any]] | None:
        """What it changed in its world; None: it worked in none, or its client did not say."""
        world = self.metadata.get(WORLD)
        changes = world.get("changes") if isinstance(world, dict) else None
        return [change for change in changes if isinstance(change, dict)] if isinstance(changes, list) else None

    @property
    def error(self) -> str | None:
        """The error that it raised, or the fault of an answer."""
        return (self.trace.error if self.trace else None) or (self.row.failed if self.row else None)

    @property
    def why_not_trained(self) -> str | None:
        """Why no step contains it; None: one does."""
        return None if self.steps else why_never_sent(self.row, self.completions)


def facts_of(sources: Sources, run_id: str) -> RunFacts:
    """Reads the facts of a run. Blocks.

    Args:
        sources: What pages read.
        run_id: Id of the rollout, or of its trajectory.

    Raises:
        NotFound: Ledger and repositories have nothing of it.
        LedgerError: The ledger cannot be read.
    """
    server, row = sources.server, sources.runs.run(run_id)
    run_id = row.id if row else run_id
    completions, spec = server.ledger.rollout(run_id), server.rollouts.spec(run_id)
    if row is None and not completions and spec is None:
        raise NotFound(
            f"there is no run {run_id!r:.200}: it is older than the ledger keeps it, or no request had its id",
            code="not_found",
        )
    number = row.number if row else -1
    return RunFacts(
        id=run_id,
        row=row,
        trace=server.runs.find_trace(run_id),
        completions=completions,
        spec=spec or RolloutSpec(),
        rewards=server.rollouts.rewards(run_id),
        versions=sources.runs.versions(number),
        steps=steps_of(server.jobs.queue, sources.runs.steps(number)),
    )
