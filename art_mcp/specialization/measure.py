"""Measures how hard scenarios are for a policy: how often it solves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from art_langgraph.loop.evaluate import Evaluation, evaluate
from art_langgraph.loop.rollout import Graph, Resume
from art_langgraph.store import TrajectoryStore
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.specialization.verify import solved, verify


async def measure_difficulty(
    graph: Graph,
    scenarios: ScenarioSet,
    *,
    n: int = 4,
    version: int | Mapping[str, int] | None = None,
    temperature: float | None = 1.0,
    max_concurrency: int = 16,
    timeout: float | None = None,
    store: TrajectoryStore | None = None,
    resume: Resume | None = None,
    progress: bool | str = "measuring difficulty",
) -> ScenarioSet:
    """Measures how often a policy solves each scenario, according to `verify`, and sets `plan.measured`.

    Runs that enter no success rate (`Evaluation.scored`) do not count. A scenario without any scored run stays
    unmeasured. The runs are marked as evaluation, so they are never trained on. `keep_learnable()` of the returned
    set keeps the scenarios that the policy solves sometimes.

    Args:
        graph: The agent, as `evaluate` takes it.
        scenarios: The set to measure.
        n: Number of runs of each scenario.
        version: Version of the policies that ChatART asks, or a version for each policy by name. None: the version that
            the graph names.
        temperature: Sampling temperature; the default is that of training. None: as the graph says.
        max_concurrency: Maximum number of runs at the same time.
        timeout: Seconds for a run. None sets no limit.
        store: Also stores the runs. None stores nothing.
        resume: Answers the graph's interrupts, as `evaluate` takes it.
        progress: Whether to show a progress bar on a terminal. A string is the label of the bar.

    Returns:
        The same scenarios with their measured success rates.
    """
    evaluation = await evaluate(
        graph,
        scenarios.scenarios,
        verify(),
        n=n,
        version=version,
        success=solved,
        temperature=temperature,
        store=store,
        resume=resume,
        max_concurrency=max_concurrency,
        timeout=timeout,
        progress=progress,
    )
    return rate_scenarios(scenarios, evaluation)


def rate_scenarios(scenarios: ScenarioSet, evaluation: Evaluation) -> ScenarioSet:
    """The same scenarios with the success rates of an evaluation of them. Those without a scored run stay as they are.

    Args:
        scenarios: The set that was measured.
        evaluation: Its runs.
    """
    rates = {id: successes / runs for id, (successes, runs) in evaluation.by(lambda scenario: [scenario.id]).items()}
    measured = [
        scenario.with_plan(measured=rates[scenario.id]) if scenario.id in rates else scenario
        for scenario in scenarios.scenarios
    ]
    return replace(scenarios, scenarios=measured)
