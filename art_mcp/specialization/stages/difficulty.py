"""Difficulty: how often a policy solves each scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from art_langgraph.costs.tokens import Tokens
from art_langgraph.loop.evaluate import Evaluation, evaluate
from art_langgraph.loop.failures import check_rewards, runs_of
from art_langgraph.loop.options import keywords_of, values_of
from art_langgraph.loop.rollout import GatherOptions, Graph, gather
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.specialization.context import RunContext
from art_mcp.specialization.settings import TEMPERATURE
from art_mcp.specialization.stage_runner import Stage
from art_mcp.specialization.verify import solved, verify


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
                max_concurrency=options.runs.max_concurrency,
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
            record.facts |= {"sometimes": sometimes, "tokens": Tokens.of(runs_of(groups)).summary()}
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
    rated = [
        scenario.with_plan(measured=rates[scenario.id]) if scenario.id in rates else scenario
        for scenario in scenarios.scenarios
    ]
    return replace(scenarios, scenarios=rated)
