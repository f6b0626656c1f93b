"""The measurements: of versions on the held-out sets, and of how often a version solves each training scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from art_langgraph.loop.evaluate import Evaluation, evaluate
from art_langgraph.loop.failures import RolloutsFailed, check_rewards, runs_of
from art_langgraph.loop.options import keywords_of, values_of
from art_langgraph.loop.rollout import GatherOptions, Graph, gather
from art_langgraph.trajectory import Trajectory
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.specialization.agent import example_messages
from art_mcp.specialization.context import RunContext
from art_mcp.specialization.measurement import Measurement
from art_mcp.specialization.settings import TEMPERATURE
from art_mcp.specialization.stage_runner import Stage, StageRecord
from art_mcp.specialization.verify import solved, verify

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
            self.finish(record, evaluation, evaluation.trajectories)
        self._reserve(evaluation)

    def finish(self, record: StageRecord, evaluation: Evaluation, runs: Sequence[Trajectory]) -> None:
        """Writes a measurement, and tells its result.

        Args:
            record: The stage.
            evaluation: Its runs.
            runs: Those of them that were made for it.
        """
        outcome, runner = self.context.outcome, self.context.runner
        measurement = Measurement(self.name, evaluation)
        runner.directory.save_measurement(self.name, evaluation)
        outcome.measurements[self.name] = measurement
        record.facts |= {
            "version": measurement.version,
            "cost": self.context.measurer.cost,
            "result": measurement.summary(),
        }
        record.add_runs(runs)
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
                self.finish(record, earlier.evaluation, [])
        else:
            await self.measure(self.context.agent, self.same_scenarios(earlier), version, whole=True)


@dataclass(slots=True)
class Difficulty(Stage):
    """Measures how often the policy solves each training scenario, if that was asked for.

    The scenarios that are written have their success rates, so that a later process has nothing else to read.
    """

    context: RunContext
    name = "difficulty"

    @property
    def weight(self) -> float:
        """None if nobody asked for it, or no step follows."""
        return 0.0 if self.skip_reason() is not None else 6.0

    def skip_reason(self) -> str | None:
        """Nobody asked for it, or no step follows."""
        training = self.context.options.training
        return "" if training.steps == 0 or not training.difficulty_runs else None

    async def run(self) -> None:
        """Runs the training scenarios, and writes their success rates. The first step learns from these runs."""
        context = self.context
        options, runner, scenarios = context.options, context.runner, context.training
        n = options.training.difficulty_runs
        with runner.stage(self.name, f"{n} runs of each of {len(scenarios)} scenarios") as record:
            groups = await gather(
                context.agent,
                scenarios,
                n,
                verify(),
                temperature=TEMPERATURE,
                max_concurrency=context.measurer.concurrency,
                timeout=options.runs.timeout,
                store=runner.directory.store,
                progress=options.progress and "measuring difficulty",
            )
            check_rewards(groups)
            context.difficulty_groups = groups
            rates = rate_scenarios(ScenarioSet(scenarios), Evaluation(runs_of(groups), success=solved))
            by_id = {scenario.id: scenario for scenario in rates.scenarios}
            every = [by_id.get(scenario.id, scenario) for scenario in context.outcome.scenarios.scenarios]
            context.outcome.scenarios = replace(context.outcome.scenarios, scenarios=every)
            context.training = [by_id[scenario.id] for scenario in scenarios]
            runner.directory.save_scenarios(context.outcome.scenarios)
            sometimes = len(rates.keep_learnable())
            record.facts |= {"sometimes": sometimes}
            record.add_runs(runs_of(groups))
            runner.on_stage(f"{sometimes} of {len(rates)} are solved sometimes: these come first")


@dataclass(frozen=True, kw_only=True)
class DifficultyOptions(GatherOptions):
    """Arguments of `measure_difficulty`.

    Args:
        graph: The agent: a graph, or a function that takes a scenario and returns one.
        scenarios: The set to measure.
        n: Number of runs of each scenario.
        version: Version of the policies that ChatART asks, or a version for each policy by name. None: the version that
            the graph names.
        temperature: Sampling temperature; the default is that of training. None: as the graph says.
    """

    graph: Graph = field(kw_only=False)
    scenarios: ScenarioSet = field(kw_only=False)
    n: int = 4
    version: int | Mapping[str, int] | None = None
    temperature: float | None = 1.0
    progress: bool | str = "measuring difficulty"


@keywords_of(DifficultyOptions)
async def measure_difficulty(options: DifficultyOptions) -> ScenarioSet:
    """Measures how often a policy solves each scenario, according to `verify`, and sets `plan.measured`.

    Runs that enter no success rate (`Evaluation.scored`) do not count. A scenario without any scored run stays
    unmeasured. The runs are marked as evaluation, so they are never trained on. `keep_learnable()` of the returned
    set keeps the scenarios that the policy solves sometimes.

    Returns:
        The same scenarios with their measured success rates.
    """
    evaluation = await evaluate(
        options.graph,
        options.scenarios.scenarios,
        verify(),
        n=options.n,
        version=options.version,
        success=solved,
        **values_of(options, GatherOptions),
    )
    return rate_scenarios(options.scenarios, evaluation)


def rate_scenarios(scenarios: ScenarioSet, evaluation: Evaluation) -> ScenarioSet:
    """The same scenarios with the success rates of an evaluation of them. Those without a scored run stay as they are.

    Args:
        scenarios: The set that was measured.
        evaluation: Its runs.
    """
    rates = {id: successes / runs for id, (successes, runs) in evaluation.by(lambda scenario: [scenario.id]).items()}
    scenarios_with_rates = [
        scenario.with_plan(measured=rates[scenario.id]) if scenario.id in rates else scenario
        for scenario in scenarios.scenarios
    ]
    return replace(scenarios, scenarios=scenarios_with_rates)
