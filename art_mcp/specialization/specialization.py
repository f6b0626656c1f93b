"""What came out of a specialization: the scenarios, the measurements before and after, the training between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art_langgraph.llm.llm import Usage, total_cost
from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.loop.train import StepRecord
from art_mcp.scenarios.scenario_set import ScenarioSet


@dataclass(slots=True, kw_only=True)
class Specialization:
    """What `specialize` did.

    Args:
        server: Name of the MCP server.
        server_version: Its version; empty where it names none.
        policy: The policy that was trained.
        base_model: The model that the policy adapts.
        scenarios: All scenarios. Their plans tell the measured difficulty and which of them were held out.
        before: The policy's newest version when `specialize` began, on the held-out scenarios.
        after: Its newest version at the end, on the same scenarios.
        warm_start: Metrics of the warm start; None where there was none.
        steps: One record for each training step.
        seconds: Wall time of each stage.
        usage: Of the language models that wrote scenarios (`scenarios`) or judged (`judge`).
        notes: What a reader of the report should know.
        adapter: Directory of the LoRA in PEFT's format, where it was exported.
    """

    server: str
    server_version: str
    policy: str
    base_model: str
    scenarios: ScenarioSet
    before: Evaluation
    after: Evaluation
    """The same as `before` until training has ended."""
    warm_start: dict[str, Any] | None = None
    steps: list[StepRecord] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    adapter: Path | None = None

    @property
    def model(self) -> str:
        """The policy version to use, as the gateway knows it."""
        return f"{self.policy}@{self.after.version}"

    @property
    def cost(self) -> float | None:
        """USD for language models; None where the price of an answer is unknown."""
        return total_cost(self.usage.values())
