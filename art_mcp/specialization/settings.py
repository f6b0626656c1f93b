"""Settings of `specialize`, a class for each stage: generation, warm start, training, runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from art_langgraph.llm.llm import Model
from art_langgraph.loop.sampling.exploration import Exploration
from art_mcp.scenarios.drafting.tables import Resources
from art_mcp.specialization.agent import SYSTEM
from trainer_server.wire import GRPOConfig, SFTConfig

MINUTES = 20.0
"""Minutes for a specialization, unless others are asked for."""
STEPS = 8
"""Training steps where neither a time nor a number of steps is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings:
    """How scenarios are generated. See `generate_scenarios`, which has the same arguments.

    Args:
        model: Language model that writes scenarios ("provider/name", an LLM, or a LangChain chat model). None drafts
            them from schemas.
        paraphrase: Language model that rewrites their texts. None leaves them as they are.
        seconds: Time for the generation. With `minutes` of `specialize`, it may be less.
        difficulty: Least and greatest difficulty, from 1 to 5.
        instructions: Additional instructions for the model. None adds nothing to the catalog.
        resources: Values of arguments by the name of the parameter, or files of them. None gives no values.
        allow_destructive: Whether to call tools that may change something (`CatalogTool.why_changing`) also where the
            change would stay: without worlds and reset. Otherwise the agent of `specialize` does not get them either.
        held_out: Share of the scenarios to hold out from training, from 0 to 1.
    """

    model: Model | None = None
    paraphrase: Model | None = None
    seconds: float = 120.0
    difficulty: tuple[int, int] = (1, 5)
    instructions: str | None = None
    resources: Resources | None = None
    allow_destructive: bool = False
    held_out: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """Supervised fine-tuning (SFT) before the reinforcement learning.

    Args:
        conversations: A JSONL file of conversations to imitate. None takes the references of the training scenarios.
        lr: Learning rate. None chooses it by the number of updates.
        epochs: Most passes over the demonstrations. None chooses them by their number.
        config: Settings of the SFT; then `lr` and `epochs` have no effect. None chooses them by the number and the
            length of the demonstrations, with the seed of `specialize`.
    """

    conversations: str | Path | None = None
    lr: float | None = None
    epochs: int | None = None
    config: SFTConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """How the policy is trained with GRPO.

    Args:
        steps: Maximum number of training steps. 0 trains nothing. None: as many as there is time for, if that seems to
            be a dozen or more: with fewer the warm start gets their time. Without a time, STEPS.
        groups_per_step: Number of scenarios in each step. Many scenarios with few runs taught more than few scenarios
            with many runs (docs/benchmarks/settings.md).
        n: Number of runs of each scenario in a step.
        lr: Learning rate of the steps.
        loss_aggregation: How tokens are averaged (`GRPOConfig`). By default each run weighs the same: a run that tries
            tool after tool is longer than one that is right at once, and must not decide the step.
        config: Settings of all steps in place of `lr` and `loss_aggregation`, or a function from the number of a step
            to its settings. None: the defaults of GRPOConfig otherwise, but rewards are not scaled by their deviation.
        dynamic_sampling: How often a step runs further scenarios in place of those whose runs all got the same reward.
        explore: Runs such scenarios again at a higher temperature. None: never.
        hints: Whether scenarios that no run solves are run once more with a hint: what the server's errors say, or what
            its schemas ask for. The policy then learns from itself with the hint.
        difficulty_runs: Number of runs of each training scenario before training, which tell its difficulty. The first
            step learns from these runs. 0: the first steps find out.
        judge: Language model that compares the runs of a scenario (`Ruler`), as "provider/name" or an LLM. None: the
            reward is that of `verify` alone.
        judge_weight: Weight of the judge's score, which is added to the reward of `verify`.
        evaluate_every: Steps between two measurements on the selection scenarios. None: only those of `keep_best`,
            and where `patience` is given one after each step.
        patience: Ends the training after so many of these measurements without a gain beyond chance. None: never.
        keep_best: Whether versions are compared on the selection scenarios, and the best one is taken in place of the
            last one. Selection scenarios are put aside from the training scenarios; no held-out set takes part.
    """

    steps: int | None = None
    groups_per_step: int = 12
    n: int = 4
    lr: float = 3e-4
    loss_aggregation: Literal["loss_type", "trajectory"] = "trajectory"
    config: GRPOConfig | Callable[[int], GRPOConfig] | None = None
    dynamic_sampling: int = 1
    explore: Exploration | None = None
    hints: bool = True
    difficulty_runs: int = 0
    judge: Model | None = None
    judge_weight: float = 0.3
    evaluate_every: int | None = None
    patience: int | None = None
    keep_best: bool = True

    @property
    def watched(self) -> bool:
        """Whether the training measures itself on the selection scenarios."""
        return self.steps != 0 and (self.evaluate_every is not None or self.patience is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How the agent is run, both for measurements and for training.

    Args:
        system: System prompt of `build_agent`, and of the references that a warm start imitates.
        max_tokens: Maximum number of tokens in each answer of the model, for `build_agent`. None: what the longest
            reference needs, with some reserve, from 64 to 256.
        max_concurrency: Maximum number of runs at the same time.
        timeout: Seconds for each run. A run that takes longer has raised.
        rank: Rank of the LoRA, if the policy is created. None: the server's default.
    """

    system: str = SYSTEM
    max_tokens: int | None = None
    max_concurrency: int = 48
    timeout: float = 120.0
    rank: int | None = None
