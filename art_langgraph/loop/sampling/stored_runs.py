"""Runs that were made before the first step: what the sampler learns from them, and which of them a step may take."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from art_langgraph.loop.sampling.informative import informative
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario, Trajectory, TrajectoryGroup

log = logging.getLogger("art_langgraph")


def at_temperature(groups: Sequence[TrajectoryGroup], temperature: float | None) -> list[TrajectoryGroup]:
    """The runs at a temperature, by scenario. Runs at another one, or with hints, say little of what the next come to.

    Args:
        groups: Runs by scenario.
        temperature: That runs asked for; None: that of the graph.
    """
    kept = []
    for group in groups:
        runs = [run for run in group.trajectories if run.temperature == temperature and not run.hints]
        if runs:
            kept.append(group.model_copy(update={"trajectories": runs}))
    return kept


def stored_groups(
    store: TrajectoryStore, scenarios: Sequence[Scenario], policy: str, temperature: float | None, since: float
) -> list[TrajectoryGroup]:
    """What earlier runs of a policy on some scenarios came to, from the store.

    Args:
        store: Where the runs are.
        scenarios: Whose runs.
        policy: That answered.
        temperature: Sampling temperature that the runs asked for; None: that of the graph.
        since: When the policy was created, as Unix time. Earlier runs are of another policy of its name.
    """
    ids = [scenario.id for scenario in scenarios]
    runs = [run for run in store.list(scenario=ids, since=since) if policy in run.versions]
    return at_temperature(TrajectoryGroup.by_scenario(runs), temperature)


def ready_groups(
    groups: Sequence[TrajectoryGroup],
    scenarios: Sequence[Scenario],
    *,
    policy: str,
    version: int,
    temperature: float | None,
) -> list[TrajectoryGroup]:
    """The groups that a step can learn from as they are: informative, and sampled as the step would sample them.

    A warning counts the runs that the sampler cannot learn from either, because they are at another temperature.

    Args:
        groups: Measured runs by scenario.
        scenarios: Of the training.
        policy: That is trained.
        version: Its newest version.
        temperature: Of the training.
    """
    runs = [run for group in groups for run in group.trajectories]
    if other := [run for run in runs if run.temperature != temperature]:
        log.warning(
            "%d of %d measured runs are at temperature %s, not %s: they say little of the runs of training, and are "
            "not used. Measure at the temperature of train()",
            len(other),
            len(runs),
            other[0].temperature,
            temperature,
        )
    known = {scenario.id for scenario in scenarios}

    def fits(run: Trajectory) -> bool:
        return run.versions.get(policy) == [version] and not run.untrained

    return [
        group
        for group in at_temperature(groups, temperature)
        if group.scenario.id in known and all(map(fits, group.trajectories)) and informative(group)
    ]
