"""How good a version is: runs that are measured and never trained on."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from art_langgraph.loop.intervals import mean_interval, wilson
from art_langgraph.loop.rollout import Graph, Resume, ScenarioLike, gather
from art_langgraph.rewards import RewardFunction
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Rewards of one version on scenarios. trajectories: all runs; those without a reward count in `failed` alone."""

    trajectories: list[Trajectory]

    @property
    def rewards(self) -> list[float]:
        return [one.reward for one in self.trajectories if one.reward is not None]

    @property
    def n(self) -> int:
        """Runs with a reward."""
        return len(self.rewards)

    @property
    def failed(self) -> int:
        """Runs that could not be scored."""
        return len(self.trajectories) - self.n

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.rewards) if self.rewards else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the mean: Wilson's for rewards of 0 and 1, else the normal approximation (n ≥ 2)."""
        rewards = self.rewards
        if rewards and set(rewards) <= {0.0, 1.0}:
            return wilson(int(sum(rewards)), len(rewards))
        return mean_interval(rewards)


async def evaluate(
    graph: Graph,
    scenarios: Sequence[ScenarioLike],
    reward: RewardFunction | None = None,
    *,
    version: int | Mapping[str, int] | None = None,
    n: int = 1,
    temperature: float | None = 0.0,
    max_concurrency: int = 16,
    timeout: float | None = None,
    store: TrajectoryStore | None = None,
    resume: Resume | None = None,
    progress: bool | str = True,
) -> Evaluation:
    """Runs a graph `n` times on each scenario under one version, at a temperature of its own.

    reward: None leaves the runs unscored, to look at. version: of the policies that ChatART asks, for all or by name;
    None: whatever the graph names. The trajectories are marked, and no training step takes them, whatever their
    temperature.
    """
    groups = await gather(
        graph, scenarios, n, reward, max_concurrency=max_concurrency, temperature=temperature, timeout=timeout,
        store=store, resume=resume, version=version, progress=progress, evaluation=True,
    )  # fmt: skip
    return Evaluation([one for group in groups for one in group.trajectories])
