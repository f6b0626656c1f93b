"""What a task is made of: scenarios to train on, scenarios held out, a graph, a reward, and demonstrations."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from pydantic import BaseModel

from art_langgraph import Conversation, Exploration, GRPOConfig, Hints, Scenario, SFTConfig, Trajectory
from art_langgraph.loop.evaluate import Success
from art_langgraph.loop.rollout import Graph
from art_langgraph.rewards import RewardFunction

IMITATION = SFTConfig(lr=4e-3, num_train_epochs=1, per_device_train_batch_size=2, detach_prefix=True)
"""A warm start of small updates, which teach more than large ones for the same work (docs/benchmarks/imitation.md)."""
BRIEF_IMITATION = IMITATION.model_copy(update={"lr": 2e-3, "num_train_epochs": 3, "per_device_train_batch_size": 16})
"""A warm start where an answer is a word or two. Two of them have five tokens to learn from: updates of so few, at the
rate of IMITATION, left policies that solved nothing."""


Grade = Callable[[str, str], float]
"""Grades a run, from 0 to 1, by its transcript: how all runs of the scenario begin, and how this one goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a policy learns a task: a warm start, then steps of GRPO.

    Args:
        warm_start: Settings of the supervised fine-tuning (SFT) on the demonstrations. None: no warm start.
        config: Settings of each training step.
        steps: Number of training steps.
        falling: Whether the learning rate falls from step to step, along a line that ends at 0 after the last one.
        groups_per_step: Scenarios of a step.
        n: Runs of each scenario.
        shuffle: Whether steps take the training scenarios in random order, and not in the order of the task.
        dynamic_sampling: As that of `train`.
        steps_per_opponent: In self-play, the number of steps after which the newest version becomes the opponent.
        sampler: As that of `train`.
        explore: As that of `train`.
        hints: As those of `train`.
    """

    warm_start: SFTConfig | None
    config: GRPOConfig
    steps: int
    falling: bool = False
    groups_per_step: int = 6
    n: int = 8
    shuffle: bool = True
    dynamic_sampling: int = 0
    steps_per_opponent: int = 4
    sampler: Literal["uniform", "learnable"] = "uniform"
    explore: Exploration | None = None
    hints: Hints | None = None

    def config_of(self, step: int) -> GRPOConfig:
        """Settings of a step. step: its number, from 1 to `steps`."""
        return self.config_at((step - 1) / self.steps)

    def config_at(self, share: float) -> GRPOConfig:
        """Settings of a step before which this share of the training was done, 0 to 1."""
        return self.config.model_copy(update={"lr": self.config.lr * (1 - share)}) if self.falling else self.config


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Something that an agent can learn, and how it is measured.

    Args:
        name: Name of the task.
        graph: Makes the agent, a compiled graph or a function, from the chat model that asks the policy; with `roles`,
            from the chat models of all of them.
        training: Scenarios to learn from.
        held_out: Scenarios to measure on. None of them is among the training scenarios or the demonstrations.
        validation: Scenarios by which the best version of the training is chosen. They are neither trained on nor held
            out. Empty: the last version is what the training made. For tasks without `roles` and `self_play`.
        demonstrations: Conversations made by script, for the warm start. They have the prompts that the graph sends.
        reward: Scores a run: named parts, which sum to 1 for a success.
        success: Whether a scored run solved its scenario.
        max_tokens: Largest number of tokens in an answer of the model.
        recipe: How the policy learns the task.
        nodes: Names of the nodes whose answers are trained. None: all.
        shots: How many demonstrations the prompted baseline has in its prompts.
        roles: Of an agent with a policy for each role: their system messages, by the names of the roles. Steps train
            them in turns, and each imitates the demonstrations that have its system message. Empty: one policy.
        self_play: Makes the graph of the training from the policy and its opponent, which is an earlier version of it.
            It is measured on `graph` all the same. None: it is trained on `graph` too.
        costs: Whether turns, tokens, seconds and dollars of a run are recorded beside its success.
        wrong: Whether a scored run gave a wrong answer, where it could have given none: a hallucinated one. It is
            recorded with the costs. None: the task does not tell these apart.
        grade: The rules of a judge. A copy of the policy learns by their scores, through RULER, where no other judge is
            named. None: there is no such judge.

    Raises:
        ValueError: There are validation scenarios beside roles or self-play.
    """

    name: str
    graph: Callable[..., Graph]
    training: Sequence[Scenario]
    held_out: Sequence[Scenario]
    demonstrations: Sequence[Conversation]
    reward: RewardFunction
    success: Success
    max_tokens: int
    recipe: Recipe = field(repr=False)
    validation: Sequence[Scenario] = ()
    nodes: Sequence[str] | None = None
    shots: int = 4
    roles: Mapping[str, str] = field(default_factory=dict)
    self_play: Callable[[BaseChatModel, BaseChatModel], Graph] | None = None
    costs: bool = False
    wrong: Callable[[Trajectory], bool] | None = None
    grade: Grade | None = None

    def __post_init__(self) -> None:
        if self.validation and (self.roles or self.self_play):
            raise ValueError(
                f"the task {self.name!r} has validation scenarios, and several policies or self-play: each part of "
                "such a training would choose a version of its own. Leave `validation` empty"
            )

    def demonstrations_by_role(self) -> list[list[Conversation]]:
        """The demonstrations of each role, by their system messages. Without roles: all, as those of a single one."""
        if not self.roles:
            return [list(self.demonstrations)]
        return [
            [shown for shown in self.demonstrations if shown.messages[0]["content"] == system]
            for system in self.roles.values()
        ]

    def short(
        self, *, steps: int | None = None, held_out: int | None = None, demonstrations: int | None = None
    ) -> Task:
        """The task with another number of steps, and perhaps with fewer scenarios to measure on, and fewer
        demonstrations for the warm start. None: as it is."""
        return replace(
            self,
            recipe=self.recipe if steps is None else replace(self.recipe, steps=steps),
            held_out=self.held_out[:held_out],
            validation=self.validation[:held_out],
            demonstrations=self.demonstrations[:demonstrations],
        )

    @property
    def fingerprint(self) -> str:
        """A digest of the recipe and the numbers of held-out scenarios and of those for validation, if there are any.

        Runs with different ones do not belong into one table. A default of a setting is a part of the recipe: another
        default makes another fingerprint."""
        numbers = [len(self.held_out), *([len(self.validation)] if self.validation else [])]
        facts = json.dumps([asdict(self.recipe), *numbers], sort_keys=True, default=_as_json)
        return hashlib.sha256(facts.encode()).hexdigest()[:12]


def _as_json(value: object) -> Any:
    """A part of a recipe that JSON does not know: settings, or the function that makes hints."""
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else getattr(value, "__qualname__", str(value))


TaskMaker = Callable[[int], AbstractAsyncContextManager[Task]]
"""Makes a task for a seed. What the task needs, such as an MCP server, runs until the context is left.

The seed chooses the training scenarios and the demonstrations. The held-out scenarios are the same for every seed."""


def weighted_parts(
    weights: dict[str, float], parts: Callable[[Trajectory], dict[str, float]]
) -> Callable[[Trajectory], dict[str, float]]:
    """A reward function that multiplies each part of a run, from 0 to 1, by its weight.

    Args:
        weights: Weight of each part. They sum to 1.
        parts: The parts of a run, by the names of the weights.
    """

    def reward(trajectory: Trajectory) -> dict[str, float]:
        return {name: weights[name] * value for name, value in parts(trajectory).items()}

    return reward


def solved(trajectory: Trajectory) -> bool:
    """Whether the part `success` of a scored run is not 0."""
    return trajectory.metrics.get("success", 0.0) > 0


def says(text: str, value: str) -> bool:
    """Whether a text has a value, and not as a part of another word or number: "7 euros" is not in "27 euros" or "1.7
    euros", and "5 C" is not in "-5 C"."""
    return re.search(rf"(?<![\w\-−–])(?<!\d[.,]){re.escape(value)}(?!\w|[.,]\d)", text) is not None


def chat(system: str, *turns: str) -> Conversation:
    """A demonstration: a system message, then what the user and the assistant say in turns."""
    roles = ("user", "assistant")
    said = [{"role": roles[at % 2], "content": text} for at, text in enumerate(turns)]
    return Conversation(messages=[{"role": "system", "content": system}, *said])


def called(tool: str, result: str, **arguments: Any) -> list[dict[str, Any]]:
    """A tool call and its result, as messages of a demonstration.

    Args:
        tool: Name of the tool.
        result: What it gave.
        **arguments: What it was given.
    """
    call = {"id": "call", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call", "content": result},
    ]
