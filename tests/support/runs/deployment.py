"""A deployment of a policy in small: a graph that people use, whose runs are stored and rewarded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART, TrainerClient, Trajectory, TrajectoryStore, rollout


def graph(policy: str) -> Any:
    """A graph that asks the policy once."""
    model = ChatART(policy=policy, max_tokens=30)

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()


@dataclass(slots=True)
class Deployment:
    """A policy in use.

    Args:
        policy: Its name.
        client: The trainer server.
        store: Where its runs are.
    """

    policy: str
    client: TrainerClient
    store: TrajectoryStore
    by_http: bool = False
    """Rewards are given to the rollouts of the server, instead of the runs of the store."""
    versions: list[int] = field(default_factory=list)
    """The versions that answered, in the order of the runs."""

    async def use(self, times: int, reward: Callable[[int, Trajectory], float | None]) -> None:
        """Runs the graph on new questions, and gives each run what `reward` says of its number and the run."""
        first = len(self.versions)
        questions = [f"say {number}" for number in range(first, first + times)]
        runs = await asyncio.gather(*(rollout(graph(self.policy), one, store=self.store) for one in questions))
        for number, run in enumerate(runs, first):
            assert run.error is None
            (version,) = run.versions[self.policy]
            self.versions.append(version)
            if (given := reward(number, run)) is None:
                continue
            if self.by_http:
                await self.client.reward_rollout(str(run.rollout_id), given)
            else:
                self.store.score(run.id, given)


def alternating(number: int, _run: Trajectory) -> float:
    """Every other run is liked."""
    return float(number % 2)
