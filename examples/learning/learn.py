"""Teaches a policy a task by its recipe, and measures it on the held-out scenarios after each stage."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from art_examples.learning.baselines import LiteLLMChat, PromptedChatART
from art_examples.learning.groups import GroupCounts, counted
from art_examples.learning.spent import run_costs
from art_examples.learning.task import Recipe, Task

from art_langgraph import (
    ChatART,
    DeadGroups,
    Evaluation,
    GRPOConfig,
    HeldOut,
    Scenario,
    TrainerClient,
    TrajectoryGroup,
    dead_groups,
    evaluate,
    gather,
    train,
)
from art_langgraph.costs import GPUPrice
from art_langgraph.loop.rollout import Graph
from art_langgraph.loop.watch.record import StepRecord
from art_langgraph.rewards import GroupReward

SERVER_ARGUMENTS = ("--max-rank", "8", "--no-trainer-low-priority")
"""Arguments of the trainer server. Rollouts and steps take turns here, so that the trainer need not give way."""
CONCURRENCY = 48
"""Largest number of runs at the same time on CPUs. On GPUs there are as many as the engines compute at once."""
MOST_GROUPS = 32
"""Groups of a step on GPUs, at most."""
LEAST_SHARE = 0.01
"""Of a learning rate that falls with the time: what is left of it at the end."""
ABLE = 0.05
"""Success of an untrained policy, alone or with demonstrations in its prompts, from which on it may learn without a
warm start."""
COLD_LR = 1e-4
"""Largest learning rate without a warm start. With a recipe's own, a policy of Qwen2.5-0.5B gave the same answer in all
runs after a few steps, long before it could do the task (docs/benchmarks/real-weights.md)."""


@dataclass(slots=True)
class Learned:
    """What a policy learned of a task.

    Args:
        task: Name of the task.
        seed: Seed of the task, the LoRA and the training.
        before: The untrained policy, on the held-out scenarios at temperature 0.
        prompted: The same with demonstrations in its prompts. None: not measured.
        models: Other models with these prompts, by name.
        warm: The policy after the warm start. None: there was none.
        after: The policy after the training.
        seconds: Wall time of each stage: before, prompted, the names of models, warm_start, warm, training, after.
        tokens: Numbers of trained tokens: `warm_start` of the demonstrations, `training` of the policy's own.
        rewards: Mean reward of each training step. None: no run of the step has a reward.
        skipped: How many training steps made no version.
        chosen: The version that the validation scenarios chose. None: there are none, and it is the last one.
        groups: What became of the groups of each training step.
        dead_groups: Which scenarios never taught anything, and why. None: there was no training.
        costs: What a run took, by stage, where the task asks for it: `run_costs`.
        judged: What a copy of the policy learned by a judge, as JSON (`Judged`). None: there is no copy.
        shots: How many demonstrations the policy had in its prompts while it was trained and measured in the end.
        fingerprint: `Task.fingerprint` of the task with the recipe that the policy was trained by. None: it has none.
    """

    task: str
    seed: int
    before: Evaluation | None = None
    prompted: Evaluation | None = None
    models: dict[str, Evaluation] = field(default_factory=dict)
    warm: Evaluation | None = None
    after: Evaluation | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    rewards: list[float | None] = field(default_factory=list)
    skipped: int = 0
    chosen: int | None = None
    groups: list[GroupCounts] = field(default_factory=list)
    dead_groups: DeadGroups | None = None
    costs: dict[str, dict[str, float | None]] = field(default_factory=dict)
    judged: dict[str, Any] | None = None
    shots: int = 0
    fingerprint: str | None = None

    @property
    def total_seconds(self) -> float:
        """Wall time of all stages."""
        return sum(self.seconds.values())

    def as_json(self) -> dict[str, Any]:
        """The results as JSON."""
        return {
            "task": self.task,
            "seed": self.seed,
            "steps": len(self.rewards),
            "fingerprint": self.fingerprint,
            **{name: as_measured(getattr(self, name)) for name in ("before", "prompted", "warm", "after")},
            "models": {name: as_measured(evaluation) for name, evaluation in self.models.items()},
            "seconds": round(self.total_seconds, 1),
            "stages": {name: round(seconds, 1) for name, seconds in self.seconds.items()},
            "tokens": self.tokens,
            "rewards": [None if reward is None else round(reward, 4) for reward in self.rewards],
            "skipped": self.skipped,
            **({"chosen": self.chosen} if self.chosen is not None else {}),
            "groups": [asdict(counts) for counts in self.groups],
            **({"shots": self.shots} if self.shots else {}),
            **({"costs": self.costs} if self.costs else {}),
            **({"judged": self.judged} if self.judged else {}),
        }


def as_measured(evaluation: Evaluation | None) -> dict[str, Any] | None:
    """Success, its interval, and the mean of each part of the reward, as JSON."""
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
    """A policy that learns a task, or one for each role of it. Each method is a stage, and notes its result and its
    seconds in `learned`.

    Args:
        task: The task.
        seed: Seed of the policy's LoRA, the warm start and the order of the scenarios.
        client: Client of the trainer server.
        policy: Name of the policy, which `create` creates. Policies of roles have the name of the role behind it.
        tell: Called with a line of text after each stage and step.
        shots: How many demonstrations are in its prompts.
    """

    def __init__(
        self,
        task: Task,
        seed: int,
        client: TrainerClient,
        policy: str,
        tell: Callable[[str], None] = lambda line: None,
        shots: int = 0,
    ) -> None:
        self.learned = Learned(task.name, seed, shots=shots)
        self._task, self._seed, self._client, self._tell = task, seed, client, tell
        self._policies = [f"{policy}-{role}" for role in task.roles] or [policy]

    async def create(self) -> None:
        """Creates the policy."""
        for policy in self._policies:
            await self._client.create_policy(policy, rank=8, seed=self._seed)

    async def fork(self, measured: Evaluation) -> None:
        """Creates the policy as a copy of the one that was measured, without the state of its optimizer."""
        assert isinstance(measured.version, Mapping)
        for (original, version), policy in zip(measured.version.items(), self._policies, strict=True):
            await self._client.fork(original, version, policy, optimizer=False)

    async def measure(self, stage: str) -> Evaluation:
        """Measures a policy on the held-out scenarios at temperature 0: the version that validation chose, or else the
        newest one. stage: before, warm or after."""
        chosen = {} if self.learned.chosen is None else dict.fromkeys(self._policies, self.learned.chosen)
        evaluation = await self._evaluate(stage, self._graph(), chosen or await self._latest())
        await self._note_costs(stage, evaluation)
        setattr(self.learned, stage, evaluation)
        return evaluation

    async def measure_prompted(self) -> None:
        """Measures the newest version with demonstrations in its prompts."""
        models = (self._model(policy, self._task.shots) for policy in self._policies)
        self.learned.prompted = await self._evaluate("prompted", self._task.graph(*models), await self._latest())
        await self._note_costs("prompted", self.learned.prompted)

    async def measure_model(self, name: str) -> None:
        """Measures another model with demonstrations in its prompts. name: as litellm knows it."""
        model = LiteLLMChat(model=name, demonstrations=self._task.demonstrations, shots=self._task.shots)
        evaluation = await self._evaluate(name, self._task.graph(*[model] * len(self._policies)), None)
        self.learned.models[name] = evaluation
        if self._task.costs:
            self.learned.costs[name] = run_costs(evaluation, model.usd, self._task.wrong)

    async def _note_costs(self, stage: str, evaluation: Evaluation) -> None:
        """Notes what a run of the policy took. Its dollars are those of the GPUs during the measurement."""
        if self._task.costs:
            price = GPUPrice.of(await self._client.health())
            usd = price.usd(self.learned.seconds[stage])
            self.learned.costs[stage] = run_costs(evaluation, usd, self._task.wrong)

    async def _evaluate(self, stage: str, graph: Graph, version: dict[str, int] | None) -> Evaluation:
        """Measures a graph on the held-out scenarios. version: of the policies that it asks; None: it asks none."""
        started = time.monotonic()
        evaluation = await evaluate(
            graph,
            self._task.held_out,
            self._task.reward,
            version=version,
            success=self._task.success,
            temperature=None if version is None else 0.0,
            max_concurrency=CONCURRENCY,
            progress=False,
        )
        self.learned.seconds[stage] = time.monotonic() - started
        self._tell(f"{stage}: {evaluation}")
        return evaluation

    async def warm_start(self) -> None:
        """Imitates the demonstrations."""
        recipe = self._task.recipe
        assert recipe.warm_start is not None
        started = time.monotonic()
        config = recipe.warm_start.model_copy(update={"seed": self._seed})
        trained = 0
        for policy, shown in zip(self._policies, self._task.demonstrations_by_role(), strict=True):
            result = await self._client.sft(policy, shown, config, progress=False)
            trained += result.metrics["tokens_trained"] * config.num_train_epochs
            self._tell(f"warm start: {len(shown)} demonstrations, {result.metrics['loss_last']:.3f} loss")
        self.learned.seconds["warm_start"] = time.monotonic() - started
        self.learned.tokens["warm_start"] = trained

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

    async def train(
        self,
        recipe: Recipe | None = None,
        group_reward: GroupReward | None = None,
        minutes: float | None = None,
    ) -> list[TrajectoryGroup]:
        """Trains with GRPO.

        Args:
            recipe: Other settings than those of the task.
            group_reward: Scores the runs of a scenario together, in place of the task's reward.
            minutes: Limit of time, in place of the recipe's number of steps. The step that reaches it is the last; a
                learning rate that falls has then fallen to 0. None: no limit.

        Returns:
            The groups that were made for the steps.
        """
        started, recipe = time.monotonic(), recipe or self._task.recipe
        self.learned.fingerprint = replace(self._task, recipe=recipe).fingerprint
        trained, groups = 0, list[TrajectoryGroup]()
        recipe, concurrency = await self._sizes(recipe)

        def config_of(step: int) -> GRPOConfig:
            if minutes is None:
                return recipe.config_of(step)
            share = (time.monotonic() - started) / (60 * minutes)
            return recipe.config_at(min(share, 1 - LEAST_SHARE))

        last = recipe.steps if minutes is None else sys.maxsize
        async for record in self._steps(recipe, last, concurrency, config_of, group_reward):
            trained += record.result.metrics.get("tokens_trained", 0)
            self.learned.rewards.append(record.reward)
            self.learned.skipped += record.skipped is not None
            self.learned.groups.append(counted(record, recipe.n, recipe.hints.success if recipe.hints else 1.0))
            groups += record.groups
            if record.best is not None:
                self.learned.chosen = record.best.version
            phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in record.seconds.items())
            self._tell(f"{record} ({phases})")
            if minutes is not None and time.monotonic() - started >= 60 * minutes:
                break
        self.learned.seconds["training"] = time.monotonic() - started
        self.learned.tokens["training"] = trained
        self.learned.dead_groups = dead_groups(groups, success=self._task.success)
        if self.learned.dead_groups.dead:
            self._tell(str(self.learned.dead_groups))
        return groups

    async def _sizes(self, recipe: Recipe) -> tuple[Recipe, int | None]:
        """The recipe with the groups of a step on this server, and the number of runs at once; None: as many as its
        engines compute."""
        health = await self._client.health()
        if not health["gpus"]:
            return recipe, CONCURRENCY
        groups = min((health["concurrency"] or CONCURRENCY) // recipe.n, MOST_GROUPS, len(self._task.training))
        return replace(recipe, groups_per_step=max(groups, recipe.groups_per_step)), None

    async def _steps(
        self,
        recipe: Recipe,
        last: int,
        concurrency: int | None,
        config_of: Callable[[int], GRPOConfig],
        group_reward: GroupReward | None,
    ) -> AsyncIterator[StepRecord]:
        """The training steps up to the last. Those of several roles take turns; in self-play the opponent changes
        between some."""
        size = last if len(self._policies) == 1 else 1
        size = size if self._task.self_play is None else recipe.steps_per_opponent
        validation = None
        if self._task.validation:
            validation = HeldOut(self._task.validation, reward=self._task.reward, success=self._task.success)
        for turn, first in enumerate(range(1, last + 1, size)):
            async for record in train(
                await self._training_graph(),
                self._task.training,
                policy=self._policies[turn % len(self._policies)],
                reward=self._task.reward,
                group_reward=group_reward,
                steps=min(first + size - 1, last),
                first_step=first,
                client=self._client,
                groups_per_step=recipe.groups_per_step,
                n=recipe.n,
                sampler=recipe.sampler,
                explore=recipe.explore,
                hints=recipe.hints,
                config=config_of,
                shuffle=recipe.shuffle,
                dynamic_sampling=recipe.dynamic_sampling,
                nodes=self._task.nodes,
                max_concurrency=concurrency,
                seed=self._seed,
                held_out=validation,
                evaluate_every=math.ceil(recipe.steps / 4) if validation else None,
                keep_best=validation is not None,
                progress=False,
            ):
                yield record

    async def _training_graph(self) -> Graph:
        """The graph of the next steps. In self-play the newest version is the opponent."""
        if self._task.self_play is None:
            return self._graph()
        (policy, version), *_ = (await self._latest()).items()
        shots = self.learned.shots
        return self._task.self_play(self._model(policy, shots), self._model(f"{policy}@{version}", shots))

    def _graph(self) -> Graph:
        return self._task.graph(*(self._model(policy, self.learned.shots) for policy in self._policies))

    async def _latest(self) -> dict[str, int]:
        """The newest version of each policy."""
        return {policy: (await self._client.policy(policy)).latest for policy in self._policies}

    def _model(self, policy: str, shots: int) -> ChatART:
        """The chat model of a policy, with so many demonstrations in its prompts."""
        server, task = self._client.connection, self._task
        options = {"base_url": server.url, "api_key": server.api_key, "max_tokens": task.max_tokens}
        if not shots:
            return ChatART(policy=policy, **options)
        return PromptedChatART(policy=policy, demonstrations=task.demonstrations, shots=shots, **options)


async def learn(
    task: Task,
    seed: int,
    client: TrainerClient,
    policy: str,
    tell: Callable[[str], None] = lambda line: None,
    *,
    prompted: bool = False,
    models: Sequence[str] = (),
    minutes: float | None = None,
    always_warm: bool = True,
) -> Learned:
    """Measures the untrained policy, warms it up, measures, trains it, and measures again.

    Where a warm start may be left out, it is left out for a policy that is ABLE by itself, or with demonstrations in
    its prompts. These then stay in its prompts, so that what RL adds is the gain over `prompted`.

    Args:
        task: The task.
        seed: As that of `Learning`.
        client: Client of the trainer server.
        policy: Name of the new policy.
        tell: As that of `Learning`.
        prompted: Whether the untrained policy is also measured with demonstrations in its prompts.
        models: Names of other models to measure with these prompts, as litellm knows them.
        minutes: As that of `Learning.train`.
        always_warm: Whether there is a warm start, if the recipe has one, whatever the untrained policy can do.
    """
    learning = Learning(task, seed, client, policy, tell)
    await learning.create()
    able = (await learning.measure("before")).success_rate or 0.0
    if prompted:
        await learning.measure_prompted()
    for name in models:
        await learning.measure_model(name)
    recipe, shots, prompts = task.recipe, 0, learning.learned.prompted
    if able < ABLE and prompts is not None:
        able, shots = prompts.success_rate or 0.0, task.shots
    if recipe.warm_start is not None and not always_warm and able >= ABLE:
        learning.learned.shots = shots
        which = " with demonstrations in its prompts, which stay" if shots else ""
        tell(f"no warm start: the untrained policy solves {able:.2f}{which}")
        recipe = replace(recipe, config=recipe.config.model_copy(update={"lr": min(recipe.config.lr, COLD_LR)}))
    elif recipe.warm_start is not None:
        await learning.warm_start()
        await learning.measure("warm")
    await learning.train(recipe, minutes=minutes)
    await learning.measure("after")
    return learning.learned
