"""Settings of `specialize`, a class for each stage: generation, warm start, training, runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from art_langgraph.llm.llm import Model
from art_mcp.scenarios.tables import Resources
from art_mcp.specialization.agent import SYSTEM
from trainer_server.wire import GRPOConfig, SFTConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings:
    """How scenarios are generated. See `generate_scenarios`, which has the same arguments.

    Args:
        model: Language model that writes scenarios ("provider/name", an LLM, or a LangChain chat model). None drafts
            them from schemas.
        difficulty: Least and greatest difficulty, from 1 to 5.
        instructions: Additional instructions for the model. None adds nothing to the catalog.
        resources: Values of arguments by the name of the parameter, or files of them. None gives no values.
        allow_destructive: Whether to call tools that may change something (`CatalogTool.why_changing`) also where the
            change would stay: without worlds and reset. Otherwise the agent of `specialize` does not get them either.
        validation: Share of the scenarios to hold out from training, from 0 to 1.
    """

    model: Model | None = None
    difficulty: tuple[int, int] = (1, 5)
    instructions: str | None = None
    resources: Resources | None = None
    allow_destructive: bool = False
    validation: float = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """Supervised fine-tuning (SFT) before the reinforcement learning.

    Args:
        conversations: A JSONL file of conversations to imitate. None takes the references of the training scenarios.
        config: Settings of the SFT. None takes the defaults of SFTConfig with the seed of `specialize`.
    """

    conversations: str | Path | None = None
    config: SFTConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """How the policy is trained with GRPO.

    Args:
        steps: Number of training steps. 0 trains nothing.
        groups_per_step: Number of scenarios in each step.
        n: Number of runs of each scenario in a step.
        config: Settings of all steps, or a function from the number of a step to its settings. None takes the defaults.
        difficulty_runs: Number of runs of each training scenario before training, which tell its difficulty. Steps
            choose the scenarios that will most likely teach something (`sampler="learnable"`), and the first step
            learns from these runs. 0: the first steps find out.
        judge: Language model that compares the runs of a scenario (`Ruler`), as "provider/name" or an LLM. None: the
            reward is that of `verify` alone.
        judge_weight: Weight of the judge's score, which is added to the reward of `verify`.
        evaluate_every: Steps between two measurements on the held-out scenarios. None measures before and after.
        patience: Ends the training after so many of these measurements without a gain beyond chance. None: after all
            steps.
        keep_best: Whether the version with the highest held-out success is promoted and exported, instead of the last.
    """

    steps: int = 8
    groups_per_step: int = 4
    n: int = 8
    config: GRPOConfig | Callable[[int], GRPOConfig] | None = None
    difficulty_runs: int = 4
    judge: Model | None = None
    judge_weight: float = 0.3
    evaluate_every: int | None = None
    patience: int | None = None
    keep_best: bool = False

    @property
    def watched(self) -> bool:
        """Whether the training measures itself on the held-out scenarios."""
        return bool(self.steps) and (self.keep_best or self.evaluate_every is not None or self.patience is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How the agent is run, both for measurements and for training.

    Args:
        system: System prompt of `build_agent`, and of the references that a warm start imitates.
        max_tokens: Maximum number of tokens in each answer of the model, for `build_agent`.
        max_concurrency: Maximum number of runs at the same time.
        timeout: Seconds for each run. A run that takes longer has raised.
    """

    system: str = SYSTEM
    max_tokens: int = 256
    max_concurrency: int = 32
    timeout: float = 120.0
