"""The story in one loop: scenarios → rollouts → rewards → step."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from art_langgraph.client.client import TrainerClient
from art_langgraph.credit import RetryCredit
from art_langgraph.loop.batches import Rolled, ahead, informative_groups, pick, spares
from art_langgraph.loop.rollout import Graph, ScenarioLike, gather
from art_langgraph.rewards import GroupReward, RewardFunction
from art_langgraph.trajectory import TrajectoryGroup
from trainer_server.wire import ConfigError, GRPOConfig, StepResult


@dataclass(slots=True)
class StepRecord:
    """What one turn of the loop did. seconds: `rollout`, `train`, `swap`. replaced: groups that were added for others
    that teach nothing."""

    step: int
    result: StepResult
    groups: list[TrajectoryGroup]
    seconds: dict[str, float] = field(default_factory=dict)
    replaced: int = 0

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
    dynamic_sampling: int = 0,
    max_staleness: int = 0,
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
    them is needed. config: of every step, or a function of its number, for schedules. dynamic_sampling: rounds in which
    scenarios whose runs all got the same reward, which teaches nothing, are made up for by others. max_staleness: how
    many versions a step's completions may be behind; 0 takes turns, with more the rollouts of later steps go on while
    one trains, which pays where the engine and the trainer do not share a processor. nodes, retry_credit: as those
    of TrainerClient.train_step. run: names the run; its steps are then idempotent, and one that was accepted before a
    crash is not taken again: its record has no groups. Raises ConfigError for fewer scenarios than
    groups_per_step, without any reward, and for a negative max_staleness.
    """
    if reward is None and group_reward is None:
        raise ConfigError("train() needs reward=… or group_reward=…: without one there is nothing to learn from")
    if len(scenarios) < groups_per_step:
        raise ConfigError(f"{len(scenarios)} scenarios are fewer than groups_per_step={groups_per_step}")
    if max_staleness < 0 or dynamic_sampling < 0:
        raise ConfigError(f"max_staleness={max_staleness} and dynamic_sampling={dynamic_sampling} must be 0 or more")

    async def run_all(some: Sequence[ScenarioLike], label: str) -> list[TrajectoryGroup]:
        return await gather(
            graph, some, n, reward, group_reward=group_reward, max_concurrency=max_concurrency,
            temperature=temperature, progress=f"{label}: rollouts" if progress else False,
        )  # fmt: skip

    async def roll(step: int) -> Rolled:
        if run and (job := await client.find_step(policy, _key(run, step))):
            return Rolled(step, job=job)
        chosen = pick(scenarios, groups_per_step, step, seed if shuffle else None)
        groups, replaced = await informative_groups(
            lambda some: run_all(some, f"step {step}"), chosen, spares(scenarios, chosen, step, seed), dynamic_sampling
        )
        return Rolled(step, groups, replaced=replaced)

    async with aclosing(ahead(range(first_step, steps + 1), roll, max_staleness)) as batches:
        async for rolled in batches:
            if rolled.job is None:
                settings = config(rolled.step) if callable(config) else config
                result = await client.train_step(
                    policy, rolled.groups, settings, nodes=nodes, retry_credit=retry_credit,
                    idempotency_key=_key(run, rolled.step) if run else None,
                )  # fmt: skip
            else:
                result = await client.result(rolled.job)
            phases = result.metrics["job"]["seconds"]
            seconds = {"rollout": rolled.seconds, "train": phases.get("train", 0.0), "swap": phases.get("swap", 0.0)}
            yield StepRecord(rolled.step, result, rolled.groups, seconds, rolled.replaced)


def _key(run: str, step: int) -> str:
    return f"{run}-step-{step}"
