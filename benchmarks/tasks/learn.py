"""Teaches a policy a task by its recipe, and measures it on the held-out scenarios after each stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import Runnable

from art_langgraph import ChatART, Evaluation, Scenario, TrainerClient, TrajectoryGroup, evaluate, gather, train
from art_langgraph.rewards import GroupReward
from benchmarks.tasks.task import Recipe, Task

CONCURRENCY = 48
"""Largest number of runs at the same time."""


@dataclass(slots=True)
class Learned:
    """What a policy learned of a task.

    Args:
        task: Name of the task.
        seed: Seed of the task, the LoRA and the training.
        before: The untrained policy, on the held-out scenarios at temperature 0.
        warm: The same after the warm start. None: there was none.
        after: The same after the training.
        seconds: Wall time of each stage: before, warm_start, warm, training, after.
        tokens: Numbers of trained tokens: `warm_start` of the demonstrations, `training` of the policy's own.
        rewards: Mean reward of each training step. None: no run of the step has a reward.
        skipped: How many training steps made no version.
    """

    task: str
    seed: int
    before: Evaluation | None = None
    warm: Evaluation | None = None
    after: Evaluation | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    rewards: list[float | None] = field(default_factory=list)
    skipped: int = 0

    @property
    def total_seconds(self) -> float:
        """Wall time of all stages."""
        return sum(self.seconds.values())

    def as_json(self) -> dict[str, Any]:
        """The results as JSON."""
        return {
            "task": self.task,
            "seed": self.seed,
            **{name: _measured(getattr(self, name)) for name in ("before", "warm", "after")},
            "seconds": round(self.total_seconds, 1),
            "stages": {name: round(seconds, 1) for name, seconds in self.seconds.items()},
            "tokens": self.tokens,
            "rewards": [None if reward is None else round(reward, 4) for reward in self.rewards],
            "skipped": self.skipped,
        }


def _measured(evaluation: Evaluation | None) -> dict[str, Any] | None:
    """Success, its interval, and the mean of each part of the reward."""
    if evaluation is None:
        return None
    names = dict.fromkeys(name for run in evaluation.scored for name in run.metrics)
    return {
        "success": evaluation.success_rate,
        "interval": list(evaluation.success_interval),
        "n": evaluation.n,
        "failed": evaluation.failed,
        "mean": evaluation.mean,
        "parts": {name: evaluation.mean_of(lambda run, name=name: run.metrics.get(name, 0.0)) for name in names},  # type: ignore[misc]
    }


class Learning:
    """A policy that learns a task. Each method is a stage, and notes its result and its seconds in `learned`.

    Args:
        task: The task.
        seed: Seed of the policy's LoRA, the warm start and the order of the scenarios.
        client: Client of the trainer server.
        policy: Name of the policy, which `create` creates.
        tell: Called with a line of text after each stage and step.
    """

    def __init__(
        self, task: Task, seed: int, client: TrainerClient, policy: str, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        self.learned = Learned(task.name, seed)
        self._task, self._seed, self._client, self._policy, self._tell = task, seed, client, policy, tell

    async def create(self) -> None:
        """Creates the policy."""
        await self._client.create_policy(self._policy, rank=8, seed=self._seed)

    async def measure(self, stage: str) -> Evaluation:
        """Measures the newest version on the held-out scenarios at temperature 0. stage: before, warm or after."""
        started = time.monotonic()
        version = (await self._client.policy(self._policy)).latest
        evaluation = await evaluate(
            self._graph(),
            self._task.held_out,
            self._task.reward,
            version=version,
            success=self._task.success,
            max_concurrency=CONCURRENCY,
            progress=False,
        )
        self.learned.seconds[stage] = time.monotonic() - started
        setattr(self.learned, stage, evaluation)
        self._tell(f"{stage}: {evaluation}")
        return evaluation

    async def warm_start(self) -> None:
        """Imitates the demonstrations."""
        recipe = self._task.recipe
        assert recipe.warm_start is not None
        started = time.monotonic()
        config = recipe.warm_start.model_copy(update={"seed": self._seed})
        result = await self._client.sft(self._policy, self._task.demonstrations, config, progress=False)
        self.learned.seconds["warm_start"] = time.monotonic() - started
        self.learned.tokens["warm_start"] = result.metrics["tokens_trained"] * config.num_train_epochs
        self._tell(
            f"warm start: {len(self._task.demonstrations)} demonstrations, {result.metrics['loss_last']:.3f} loss"
        )

    async def gather(self, scenarios: Sequence[Scenario], n: int) -> list[TrajectoryGroup]:
        """Runs scenarios n times at temperature 1, and scores the runs. No step trains on them."""
        return await gather(
            self._graph(),
            scenarios,
            n,
            self._task.reward,
            temperature=1.0,
            max_concurrency=CONCURRENCY,
            evaluation=True,
            progress=False,
        )

    async def train(self, recipe: Recipe | None = None, group_reward: GroupReward | None = None) -> None:
        """Trains with GRPO.

        Args:
            recipe: Other settings than those of the task.
            group_reward: Scores the runs of a scenario together, in place of the task's reward.
        """
        recipe = recipe or self._task.recipe
        started = time.monotonic()
        trained = 0
        async for record in train(
            self._graph(),
            self._task.training,
            policy=self._policy,
            reward=None if group_reward else self._task.reward,
            group_reward=group_reward,
            steps=recipe.steps,
            client=self._client,
            groups_per_step=recipe.groups_per_step,
            n=recipe.n,
            config=recipe.config,
            max_concurrency=CONCURRENCY,
            seed=self._seed,
            progress=False,
        ):
            trained += record.result.metrics.get("tokens_trained", 0)
            self.learned.rewards.append(record.reward)
            self.learned.skipped += record.skipped is not None
            phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in record.seconds.items())
            self._tell(f"{record} ({phases})")
        self.learned.seconds["training"] = time.monotonic() - started
        self.learned.tokens["training"] = trained

    def _graph(self) -> Runnable[Any, Any]:
        server = self._client.connection
        options: dict[str, Any] = {
            "base_url": server.url,
            "api_key": server.api_key,
            "max_tokens": self._task.max_tokens,
        }
        return self._task.graph(ChatART(policy=self._policy, **options))


async def learn(
    task: Task, seed: int, client: TrainerClient, policy: str, tell: Callable[[str], None] = lambda line: None
) -> Learned:
    """Measures the untrained policy, warms it up, measures, trains it, and measures again.

    Args:
        task: The task.
        seed: As that of `Learning`.
        client: Client of the trainer server.
        policy: Name of the new policy.
        tell: As that of `Learning`.
    """
    learning = Learning(task, seed, client, policy, tell)
    await learning.create()
    await learning.measure("before")
    if task.recipe.warm_start is not None:
        await learning.warm_start()
        await learning.measure("warm")
    await learning.train()
    await learning.measure("after")
    return learning.learned
