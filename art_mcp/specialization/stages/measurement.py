"""The measurements of a run on the held-out sets: before, with a prompt, after the warm start, after the training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from art_langgraph.costs.tokens import Tokens
from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.loop.failures import RolloutsFailed
from art_langgraph.loop.rollout import Graph
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.specialization.measuring.measure import Measurer, interleave_sets
from art_mcp.specialization.measuring.measurement import Measurement
from art_mcp.specialization.specialization import Specialization
from art_mcp.specialization.stage_runner import StageRunner
from art_mcp.specialization.verify import solved

MARGIN = 1.25
"""What is kept for the last measurement, compared with what the same scenarios took before."""


@dataclass(slots=True, kw_only=True)
class MeasuredStages:
    """The measurements. Each is made once: what an earlier process has ended is read from the directory.

    Args:
        outcome: The outcome, which each measurement adds to.
        stage_runner: The time, the journal, and the report.
        measurer: Measures versions.
        agent: The agent.
        seed: Seed of the order of the scenarios.
    """

    outcome: Specialization
    stage_runner: StageRunner
    measurer: Measurer
    agent: Graph
    seed: int
    _order: list[MCPScenario] = field(init=False)

    def __post_init__(self) -> None:
        self._order = interleave_sets(self.outcome.scenarios.held_out_sets, self.seed)

    async def before(self) -> None:
        """Measures the newest version as it is.

        Raises:
            RolloutsFailed: Every run failed before the policy answered, or none has a reward.
        """
        measured = await self._measure("before", self.agent, self._order, self.outcome.version, may_fail=False)
        self.outcome.version = measured.version
        self._keep_for_the_last(measured)

    async def prompted_baseline(self, agent: Graph) -> None:
        """Measures the same version on the same scenarios with another prompt.

        Args:
            agent: Asks the policy with demonstrations in its prompt.
        """
        before = self.outcome.measurements["before"]
        await self._measure("prompted", agent, self._same(before), before.version)

    async def after_sft(self) -> None:
        """Measures what the warm start made, and keeps as much time for the last measurement."""
        self._keep_for_the_last(await self._measure("after_sft", self.agent, self._order, self.outcome.version))

    async def after(self) -> None:
        """Measures the version that is taken, on the scenarios that were measured before the training."""
        earlier = self.before_training
        if self.outcome.version == earlier.version and not self.stage_runner.end_event("after"):
            with self.stage_runner.stage("after", "the version is the one that was measured last") as stage:
                self._add("after", earlier.evaluation, stage.facts, Tokens())
            return
        await self._measure("after", self.agent, self._same(earlier), self.outcome.version, whole=True)

    @property
    def before_training(self) -> Measurement:
        """The measurement of the version with which reinforcement learning began."""
        return self.outcome.measurements.get("after_sft") or self.outcome.measurements["before"]

    async def _measure(
        self,
        name: str,
        agent: Graph,
        scenarios: Sequence[MCPScenario],
        version: int,
        *,
        may_fail: bool = True,
        whole: bool = False,
    ) -> Measurement:
        """Makes a measurement, or reads it. whole: on all scenarios, whatever the time is."""
        if done := self.stage_runner.end_event(name):
            evaluation = self.stage_runner.directory.measurement(name, done["version"])
            self.measurer.cost = done["cost"] or self.measurer.cost
            self.outcome.measurements[name] = Measurement(name, evaluation)
            return self.outcome.measurements[name]
        sets = ", ".join(self.outcome.scenarios.held_out_sets)
        with self.stage_runner.stage(name, f"measuring version {version} on held-out scenarios ({sets})") as stage:
            try:
                evaluation = await self.measurer.measure(
                    agent,
                    scenarios,
                    version,
                    None if whole else stage.seconds,
                    lambda runs, seconds: self.stage_runner.directory.journal.note(
                        "part", stage=name, runs=runs, seconds=round(seconds, 3)
                    ),
                )
            except RolloutsFailed as error:  # what was done until then must not be lost with a measurement
                if not may_fail:
                    raise
                self.stage_runner.remark(name, f"version {version} could not be measured ({name}): {error}")
                evaluation = Evaluation(error.trajectories, version, solved)
            self._add(name, evaluation, stage.facts, Tokens.of(evaluation.trajectories))
        return self.outcome.measurements[name]

    def _add(self, name: str, evaluation: Evaluation, facts: dict[str, Any], tokens: Tokens) -> None:
        """Keeps a measurement, and tells its result."""
        measured = Measurement(name, evaluation)
        self.stage_runner.directory.save_measurement(name, evaluation)
        self.outcome.measurements[name] = measured
        facts |= {"version": measured.version, "cost": self.measurer.cost, "tokens": tokens.summary()}
        facts["result"] = measured.summary()
        self.stage_runner.on_stage(f"{self.outcome.policy}@{measured.version}, held out: {measured}")

    def _same(self, measurement: Measurement) -> list[MCPScenario]:
        """The scenarios that were measured, in their order."""
        ids = {run.scenario.id for run in measurement.evaluation.trajectories}
        return [scenario for scenario in self._order if scenario.id in ids]

    def _keep_for_the_last(self, measurement: Measurement) -> None:
        """Keeps time for a last measurement of the same scenarios."""
        if self.measurer.cost is not None:
            count = len(measurement.evaluation.trajectories)
            self.stage_runner.budget.reserve("after", MARGIN * self.measurer.cost * count)
