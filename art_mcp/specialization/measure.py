"""How hard scenarios are for a policy: how often it solves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from art_langgraph.loop.evaluate import evaluate
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
    """Measures how often a policy solves each scenario, by `verify`, and notes it in `plan.measured`.

    Runs that could not be scored do not count; a scenario all of whose runs could not be scored stays unmeasured. The
    runs are marked as evaluation and never trained on. `keep_learnable()` of the returned set keeps the scenarios that
    the policy solves sometimes.

    Args:
        graph: As that of `evaluate`, like all arguments that are not named here.
        scenarios: The set to measure.
        n: Runs of each scenario.
        version: Of the policies that ChatART asks. None: whatever the graph names.
        temperature: Sampling as in training, by default.
        max_concurrency: Runs at once.
        timeout: Seconds for a run.
        store: Where the runs are kept as well.
        resume: Answers the graph's interrupts.
        progress: Shows a bar on a terminal; a string labels it.

    Returns:
        The same scenarios with their measured rate of success.
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
    rates = {id: successes / runs for id, (successes, runs) in evaluation.by(lambda scenario: [scenario.id]).items()}
    measured = [
        scenario.with_plan(measured=rates[scenario.id]) if scenario.id in rates else scenario
        for scenario in scenarios.scenarios
    ]
    return replace(scenarios, scenarios=measured)
