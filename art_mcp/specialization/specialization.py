"""The outcome of `specialize`: scenarios, a measurement after each stage, and records of the training."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art_langgraph.costs import Cost, GPUPrice, RunCost, Tokens
from art_langgraph.llm.llm import Usage, total_cost
from art_langgraph.loop.sampling.dead_groups import DeadGroups, dead_groups
from art_langgraph.trajectory import TrajectoryGroup
from art_mcp.scenarios.coverage import coverage_json
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.specialization.calls import Schema
from art_mcp.specialization.measurement import Measurement, PairedGain
from art_mcp.specialization.verify import solved

STAGE_TITLES = {
    "before": "before",
    "prompted": "with 3 demonstrations in the prompt",
    "after_sft": "after the warm start",
    "after": "after the training",
}
"""The measurements in their order, and what they are called in reports."""


@dataclass(slots=True, kw_only=True)
class Specialization:
    """The outcome of `specialize`. While it runs, it has what is known so far.

    Args:
        server: Name of the MCP server.
        server_version: Its version. Empty: the server gives none.
        policy: Name of the policy that was trained.
        base_model: Name of the model that the policy adapts.
        scenarios: All scenarios. Their plans have the split, and the difficulty if it was measured.
        schemas: The schemas of the agent's tools, by name.
        measurements: What was measured on the held-out sets, by stage: "before" (the newest version when `specialize`
            began), "prompted" (that version with three demonstrations in its prompt), "after_sft" (after the warm
            start), "after" (the version that is taken in the end). A stage that was left out has none.
        version: The version that is taken. Until there is one, the newest version.
        selection: How it was chosen.
        warm_start: Metrics of the warm start. None: there was none.
        steps: A row for each training step (`StepRecord.summary()`).
        groups: The runs of the training steps.
        seconds: Wall time in seconds by the name of the stage.
        tokens: Tokens by the name of the stage.
        runs: Runs of the graph by the name of the stage.
        usage: Usage of the language models that wrote scenarios (`scenarios`) or judged runs (`judge`).
        price: What the GPUs of the trainer server cost.
        notes: Remarks for readers of the report.
        adapter: Directory of the LoRA in PEFT's format. None: it was not exported.
    """

    server: str
    server_version: str
    policy: str
    base_model: str
    scenarios: ScenarioSet
    schemas: dict[str, Schema] = field(default_factory=dict)
    measurements: dict[str, Measurement] = field(default_factory=dict)
    version: int = 0
    selection: str = ""
    warm_start: dict[str, Any] | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    groups: list[TrajectoryGroup] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, Tokens] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    price: GPUPrice = field(default_factory=GPUPrice)
    notes: list[str] = field(default_factory=list)
    adapter: Path | None = None

    @property
    def before(self) -> Measurement | None:
        """The first measurement. None: there is none yet."""
        return self.measurements.get("before")

    @property
    def after(self) -> Measurement | None:
        """The last measurement. None: there is none yet."""
        return self.measurements.get("after")

    @property
    def gain(self) -> PairedGain | None:
        """What reinforcement learning gained over what was before it: the warm start, or the first measurement.

        It is of the scenarios of the headline that both were measured on. None: one of the measurements is missing, or
        no step was taken.
        """
        earlier = self._before_training
        return self.after.gain_over(earlier) if self.after and earlier else None

    @property
    def gain_on_all_sets(self) -> PairedGain | None:
        """The same as `gain`, on the scenarios of all held-out sets: new combinations of tools count as well."""
        earlier = self._before_training
        return PairedGain.of(self.after.evaluation, earlier.evaluation) if self.after and earlier else None

    @property
    def _before_training(self) -> Measurement | None:
        """What the training steps began with. None: no step was taken, or nothing was measured before."""
        return (self.measurements.get("after_sft") or self.before) if self.steps else None

    @property
    def model(self) -> str:
        """Name of the policy version to use, as the gateway knows it: `policy@version`."""
        return f"{self.policy}@{self.version}"

    @property
    def rewards(self) -> list[tuple[int, float]]:
        """Number and mean reward of the steps that have one."""
        return [(row["step"], row["reward"]) for row in self.steps if row.get("reward") is not None]

    @property
    def dead_groups(self) -> DeadGroups:
        """Training scenarios that never taught anything, why, and what to do."""
        return dead_groups(self.groups, success=solved)

    @property
    def cost(self) -> float | None:
        """USD for language models. None: the price of an answer is unknown."""
        return total_cost(self.usage.values())

    @property
    def spent(self) -> RunCost:
        """What all stages together cost, and what the headline gained."""
        seconds = sum(self.seconds.values())
        total = Cost(
            runs=sum(self.runs.values()),
            tokens=sum(self.tokens.values(), Tokens()),
            seconds=seconds,
            gpu_hours=self.price.hours(seconds),
            gpu_usd=self.price.usd(seconds),
            judge_usd=self.cost,
        )
        before, after = (measurement.headline if measurement else None for measurement in (self.before, self.after))
        return RunCost(total, gain=None if before is None or after is None else after - before)

    def summary(self) -> dict[str, Any]:
        """The numbers as JSON."""
        return {
            "server": self.server,
            "server_version": self.server_version,
            "model": self.model,
            "base_model": self.base_model,
            "selection": self.selection,
            "scenarios": {
                "train": len(self.scenarios.train),
                **{name: len(held_out) for name, held_out in self.scenarios.held_out_sets.items()},
            },
            "coverage": coverage_json(self.scenarios.tool_coverage),
            "measurements": {name: measurement.summary() for name, measurement in self.measurements.items()},
            "gain": self.gain.summary() if self.gain else None,
            "gain_on_all_sets": self.gain_on_all_sets.summary() if self.gain_on_all_sets else None,
            "warm_start": self.warm_start,
            "rewards": self.rewards,
            "seconds": self.seconds,
            "tokens": {name: tokens.summary() for name, tokens in self.tokens.items()},
            "cost": self.spent.summary(),
            "usage": {name: str(usage) for name, usage in self.usage.items()},
            "notes": self.notes,
        }
