"""How hard scenarios are for a policy: how often it solves them."""

from __future__ import annotations

from collections.abc import Mapping

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
    """Runs a graph `n` times on each scenario, and notes the share of runs that solved it, by `verify`, as
    `plan.measured`.

    Runs that could not be scored do not count; a scenario without any that could stays unmeasured. The runs are marked
    as evaluation and never trained on. `keep_learnable()` of the set that is returned keeps what is solved sometimes.
    """
    measured = await evaluate(
        graph, scenarios.scenarios, verify(), n=n, version=version, temperature=temperature, store=store, resume=resume,
        max_concurrency=max_concurrency, timeout=timeout, progress=progress,
    )  # fmt: skip
    rates: dict[str, list[bool]] = {}
    for one in measured.trajectories:
        if one.reward is not None:
            rates.setdefault(one.scenario.id, []).append(solved(one))
    found = [
        one.with_plan(measured=sum(runs) / len(runs)) if (runs := rates.get(one.id)) else one
        for one in scenarios.scenarios
    ]
    return ScenarioSet(found, scenarios.dropped, scenarios.offered, scenarios.notes)
