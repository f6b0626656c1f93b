"""The measurements on the held-out sets: before, with a prompt, after the warm start, after the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from art_langgraph.costs.tokens import Tokens
from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.loop.failures import RolloutsFailed
from art_langgraph.loop.rollout import Graph
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.specialization.agent import example_messages
from art_mcp.specialization.context import RunContext
from art_mcp.specialization.measurement import Measurement
from art_mcp.specialization.stage_runner import Stage, StageRecord
from art_mcp.specialization.verify import solved

MARGIN = 1.25
"""What is kept for the last measurement, compared with what the same scenarios took before."""


@dataclass(slots=True)
class MeasurementStage(Stage):
    """Measures a version on held-out scenarios."""

    context: RunContext
    may_fail: ClassVar[bool] = True
    """Whether it is noted if every run failed. Otherwise that is raised."""
    reserves: ClassVar[bool] = False
    """Whether the last measurement will be of the same scenarios, so that time is kept for it."""

    async def run(self) -> None:
        """Measures the version as it is, on as many scenarios as there is time for."""
        await self.measure(self.context.agent, self.context.held_out, self.context.outcome.version)

    async def restore(self, end: Mapping[str, Any]) -> None:
        """Reads the runs, and which version was measured."""
        self.context.outcome.version = end["version"]
        evaluation = self.context.runner.directory.measurement(self.name, end["version"])
        self.context.measurer.cost = end["cost"] or self.context.measurer.cost
        self.context.outcome.measurements[self.name] = Measurement(self.name, evaluation)
        self._reserve(evaluation)

    async def measure(
        self, agent: Graph, scenarios: Sequence[MCPScenario], version: int, *, whole: bool = False
    ) -> None:
        """Measures a version.

        Args:
            agent: Asks the policy.
            scenarios: In the order in which they are taken.
            version: Version of the policy.
            whole: Whether all scenarios are measured, whatever the time is.

        Raises:
            RolloutsFailed: Every run failed before the policy answered, or none has a reward.
        """
        runner, sets = self.context.runner, ", ".join(self.context.outcome.scenarios.held_out_sets)
        with runner.stage(self.name, f"measuring version {version} on held-out scenarios ({sets})") as record:
            try:
                evaluation = await self.context.measurer.measure(
                    agent, scenarios, version, None if whole else record.seconds, self._note_part
                )
            except RolloutsFailed as error:  # what was done until then must not be lost with a measurement
                if not self.may_fail:
                    raise
                runner.remark(self.name, f"version {version} could not be measured ({self.name}): {error}")
                evaluation = Evaluation(error.trajectories, version, solved)
            self.finish(record, evaluation, Tokens.of(evaluation.trajectories))
        self._reserve(evaluation)

    def finish(self, record: StageRecord, evaluation: Evaluation, tokens: Tokens) -> None:
        """Writes a measurement, and tells its result.

        Args:
            record: The stage.
            evaluation: Its runs.
            tokens: Those of the runs that were made for it.
        """
        outcome, runner = self.context.outcome, self.context.runner
        measurement = Measurement(self.name, evaluation)
        runner.directory.save_measurement(self.name, evaluation)
        outcome.measurements[self.name] = measurement
        record.facts |= {
            "version": measurement.version,
            "cost": self.context.measurer.cost,
            "tokens": tokens.summary(),
            "result": measurement.summary(),
        }
        runner.on_stage(f"{outcome.policy}@{measurement.version}, held out: {measurement}")

    def same_scenarios(self, measurement: Measurement) -> list[MCPScenario]:
        """The scenarios of another measurement, in their order."""
        ids = {run.scenario.id for run in measurement.evaluation.trajectories}
        return [scenario for scenario in self.context.held_out if scenario.id in ids]

    def _reserve(self, evaluation: Evaluation) -> None:
        """Keeps time for a last measurement of the same scenarios."""
        cost = self.context.measurer.cost
        if self.reserves and cost is not None:
            self.context.runner.budget.reserve("after", MARGIN * cost * len(evaluation.trajectories))

    def _note_part(self, runs: int, seconds: float) -> None:
        self.context.runner.directory.journal.note("part", stage=self.name, runs=runs, seconds=round(seconds, 3))


class MeasurementBefore(MeasurementStage):
    """Measures the newest version as it is. If all of its runs fail, so does the specialization."""

    name = "before"
    weight = 1.5
    may_fail = False
    reserves = True


class MeasurementPrompted(MeasurementStage):
    """Measures the same version on the same scenarios, with demonstrations in its prompt."""

    name = "prompted"

    @property
    def weight(self) -> float:
        """None for an agent whose prompt is not known."""
        return 0.0 if self.context.options.graph is not None else 2.0

    def skip_reason(self) -> str | None:
        """The prompt is not known, or there is no demonstration for it."""
        if self.context.options.graph is not None:
            return "the prompt of your own agent is not known"
        return None if self._examples() else "there is no demonstration"

    async def run(self) -> None:
        """Measures it."""
        context = self.context
        options, before = context.options, context.outcome.measurements["before"]
        agent = context.toolbox.agent(context.trainer, options.policy, options.runs, self._examples())
        await self.measure(agent, self.same_scenarios(before), before.version)

    def _examples(self) -> list[dict[str, Any]]:
        return example_messages(self.context.training, self.context.options.seed)


class MeasurementAfterSFT(MeasurementStage):
    """Measures what the warm start made."""

    name = "after_sft"
    reserves = True

    @property
    def weight(self) -> float:
        """None if there is no warm start."""
        return 0.0 if self.context.options.imitation is None else 6.0

    def skip_reason(self) -> str | None:
        """There was no warm start."""
        return "" if self.context.outcome.warm_start is None else None


class MeasurementAfter(MeasurementStage):
    """Measures the version that is taken, on the scenarios that were measured before the training."""

    name = "after"
    weight = 6.0

    async def run(self) -> None:
        """Measures it, or takes the last measurement if that was of the same version."""
        earlier, version = self.context.before_training, self.context.outcome.version
        if version == earlier.version:
            with self.context.runner.stage(self.name, "the version is the one that was measured last") as record:
                self.finish(record, earlier.evaluation, Tokens())
        else:
            await self.measure(self.context.agent, self.same_scenarios(earlier), version, whole=True)
