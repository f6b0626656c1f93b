"""Options that are plain values: keywords of functions, fields of settings, flags of commands.

Nothing heavy is imported here: the command line reads this for its `--help`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Which tasks are generated.

    Args:
        difficulty: Least and greatest difficulty, from 1 to 5.
        instructions: Additional instructions for the model that writes scenarios.
        allow_destructive: Call tools that may change or destroy something although the change stays. Not needed with a
            world or a reset. Otherwise such tools (`CatalogTool.why_changing`) are not called, and the agent of
            `specialize` does not get them.
    """

    difficulty: tuple[int, int] = field(default=(1, 5), metadata={"metavar": "LEAST GREATEST"})
    instructions: str | None = None
    allow_destructive: bool = field(
        default=False,
        metadata={
            "help": "Call tools that change or destroy something although the change stays. Not needed with --world or "
            "--reset."
        },
    )


@dataclass(frozen=True, kw_only=True)
class SetOptions(TaskOptions):
    """Which set of scenarios is generated.

    Args:
        seconds: Time for the whole generation. None: 60, and 2.5 for each tool of the server beyond 25; up to
            four times that for a server that takes more than a second to start in its world.
        held_out: Share of the scenarios to hold out from training, a third of it for each held-out set.
    """

    seconds: float | None = field(
        default=None,
        metadata={
            "min": 1.0,
            "help": "Time for the whole generation. Default: 60, and 2.5 for each tool beyond 25; more for a server "
            "that is slow to start.",
        },
    )
    held_out: float = field(default=0.25, metadata={"min": 0.0, "max": 0.9})


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How the policy is trained with GRPO.

    Args:
        steps: Maximum number of training steps. 0 trains nothing. None: as many as there is time for, if that seems to
            be a dozen or more: with fewer the warm start gets their time. Without a time, 8.
        groups_per_step: Number of scenarios in each step. Many scenarios with few runs taught more than few scenarios
            with many runs (docs/benchmarks/settings.md).
        n: Number of runs of each scenario in a step.
        lr: Learning rate of the GRPO steps.
        loss_aggregation: How tokens are averaged (`GRPOConfig`). By default each run weighs the same: a run that tries
            tool after tool is longer than one that is right at once, and must not decide the step.
        difficulty_runs: Number of runs of each training scenario before training, which tell its difficulty. The first
            step learns from these runs. 0: the first steps find out.
        evaluate_every: Steps between two measurements on the selection scenarios. None: only those of `keep_best`,
            and where `patience` is given one after each step.
        patience: Ends the training after so many of these measurements without a gain beyond chance. None: never.
        keep_best: Whether versions are compared on the selection scenarios, and the best one is taken in place of the
            last one. Selection scenarios are put aside from the training scenarios; no held-out set takes part.
    """

    steps: int | None = field(
        default=None,
        metadata={
            "min": 0,
            "help": "Most GRPO steps. Default: as many as time allows, if 12 or more; without a limit 8.",
        },
    )
    groups_per_step: int = field(default=12, metadata={"flag": "--groups", "min": 1})
    n: int = field(default=4, metadata={"min": 2})
    lr: float = field(default=3e-4, metadata={"min": 0.0})
    loss_aggregation: Literal["loss_type", "trajectory"] = field(
        default="trajectory",
        metadata={"help": "How tokens are averaged: as the loss has it, or over each run first."},
    )
    difficulty_runs: int = field(default=0, metadata={"flag": "--measure", "min": 0})
    evaluate_every: int | None = field(
        default=None, metadata={"min": 1, "help": "Measure on the selection scenarios after so many steps."}
    )
    patience: int | None = field(
        default=None,
        metadata={
            "min": 1,
            "help": "Stop after so many of these measurements without a gain beyond chance. Alone it measures after "
            "each step.",
        },
    )
    keep_best: bool = field(default=True, metadata={"flag": "--keep-best/--no-keep-best"})


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """How the agent answers.

    Args:
        max_tokens: Maximum number of tokens in each answer of the model, for `build_agent`. None: what the longest
            reference needs, with some reserve, from 64 to 256.
        rank: Rank of the LoRA, if the policy is created. None: the server's default.
    """

    max_tokens: int | None = field(
        default=None,
        metadata={"min": 1, "help": "Maximum tokens of each answer. Default: as the longest reference."},
    )
    rank: int | None = field(default=None, metadata={"min": 1, "help": "Rank of the LoRA, if the policy is created."})
