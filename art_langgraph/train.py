"""The story in one loop: scenarios → rollouts → rewards → step."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from art_langgraph.client import TrainerClient
from art_langgraph.credit import RetryCredit
from art_langgraph.rewards import GroupReward, RewardFunction
from art_langgraph.rollout import Graph, ScenarioLike, gather
from art_langgraph.trajectory import TrajectoryGroup
from trainer_server.wire import ConfigError, GRPOConfig, StepResult


@dataclass(slots=True)
class StepRecord:
    """What one turn of the loop did. seconds: `rollout`, `train`, `swap`."""

    step: int
    result: StepResult
    groups: list[TrajectoryGroup]
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def reward(self) -> float | None:
        """Mean over all trajectories that have a reward."""
        found: float | None = self.result.metrics.get("reward_mean")
        return found


async def train(
    graph: Graph,
    scenarios: Sequence[ScenarioLike],
    *,
    policy: str,
    reward: RewardFunction | None = None,
    group_reward: GroupReward | None = None,
    steps: int,
    client: TrainerClient,
    groups_per_step: int = 4,
    n: int = 8,
    config: GRPOConfig | Callable[[int], GRPOConfig] | None = None,
    nodes: Sequence[str] | None = None,
    retry_credit: RetryCredit = "drop",
    max_concurrency: int = 32,
    temperature: float | None = 1.0,
    shuffle: bool = True,
    seed: int = 0,
    run: str = "",
    first_step: int = 1,
    progress: bool = True,
) -> AsyncIterator[StepRecord]:
    """Trains a policy on a graph, yielding after each step.

    Step i always takes the same scenarios for a seed, so that a run which goes on at `first_step` sees what it would
    have seen. shuffle: whether they are drawn in random order, or taken in the order given, where you have arranged
    what belongs in one step. reward scores single runs, group_reward the runs of a scenario together (`Ruler`); one of
    them is needed. config: of every step, or a function of its number, for schedules. nodes, retry_credit: see
    TrainerClient.train. run: names the run; its steps are then idempotent, and one that was accepted before a crash is
    not taken again: its record has no groups. Raises ConfigError for fewer scenarios than groups_per_step, and without
    any reward.
    """
    if reward is None and group_reward is None:
        raise ConfigError("train() needs reward=… or group_reward=…: without one there is nothing to learn from")
    if len(scenarios) < groups_per_step:
        raise ConfigError(f"{len(scenarios)} scenarios are fewer than groups_per_step={groups_per_step}")
    for step in range(first_step, steps + 1):
        key = f"{run}-step-{step}" if run else None
        groups: list[TrajectoryGroup] = []
        started = time.monotonic()
        job = await client.find_step(policy, key) if key else None
        if job is None:
            chosen = pick(scenarios, groups_per_step, step, seed if shuffle else None)
            groups = await gather(
                graph, chosen, n, reward, group_reward=group_reward, max_concurrency=max_concurrency,
                temperature=temperature, progress=f"step {step}: rollouts" if progress else False,
            )  # fmt: skip
        rolled = time.monotonic()
        if job is None:
            settings = config(step) if callable(config) else config
            result = await client.train(
                policy, groups, settings, nodes=nodes, retry_credit=retry_credit, idempotency_key=key
            )
        else:
            result = await client.result(job)
        phases = result.metrics["job"]["seconds"]
        yield StepRecord(
            step, result, groups,
            {"rollout": rolled - started, "train": phases.get("train", 0.0), "swap": phases.get("swap", 0.0)},
        )  # fmt: skip


def pick(scenarios: Sequence[ScenarioLike], count: int, step: int, seed: int | None) -> list[ScenarioLike]:
    """The scenarios of a step, each once per pass: in seeded shuffles, or in their order for None."""
    chosen: list[ScenarioLike] = []
    for position in range((step - 1) * count, step * count):
        epoch, at = divmod(position, len(scenarios))
        if seed is not None:
            at = random.Random(f"{seed}-{epoch}").sample(range(len(scenarios)), len(scenarios))[at]
        chosen.append(scenarios[at])
    return chosen
