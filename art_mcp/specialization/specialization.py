"""The outcome of `specialize`: scenarios, measurements before and after the training, and records of the training."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art_langgraph.llm.llm import Usage, total_cost
from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.loop.sampling.dead_groups import DeadGroups, dead_groups
from art_langgraph.loop.watch.record import StepRecord
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.specialization.verify import solved


@dataclass(slots=True, kw_only=True)
class Specialization:
    """The outcome of `specialize`.

    Args:
        server: Name of the MCP server.
        server_version: Its version. Empty: the server gives none.
        policy: Name of the policy that was trained.
        base_model: Name of the model that the policy adapts.
        scenarios: All scenarios. Their plans have the measured difficulty and the split.
        before: Evaluation of the policy's newest version when `specialize` began, on the held-out scenarios.
        after: Evaluation of its newest version at the end, or of the best one (`keep_best`), on the same scenarios. It
            equals `before` until training has ended.
        warm_start: Metrics of the warm start. None: there was none.
        steps: A record for each training step.
        seconds: Wall time in seconds by the name of the stage.
        usage: Usage of the language models that wrote scenarios (`scenarios`) or judged runs (`judge`).
        notes: Remarks for readers of the report.
        adapter: Directory of the LoRA in PEFT's format. None: it was not exported.
    """

    server: str
    server_version: str
    policy: str
    base_model: str
    scenarios: ScenarioSet
    before: Evaluation
    after: Evaluation
    warm_start: dict[str, Any] | None = None
    steps: list[StepRecord] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    adapter: Path | None = None

    @property
    def model(self) -> str:
        """Name of the policy version to use, as the gateway knows it: `policy@version`."""
        return f"{self.policy}@{self.after.version}"

    @property
    def dead_groups(self) -> DeadGroups:
        """Training scenarios that never taught anything, why, and what to do."""
        groups = (group for record in self.steps for group in record.groups)
        return dead_groups(groups, success=solved)

    @property
    def cost(self) -> float | None:
        """USD for language models. None: the price of an answer is unknown."""
        return total_cost(self.usage.values())
