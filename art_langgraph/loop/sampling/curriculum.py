"""The scenarios of one training: chosen by a sampler, which learns from what runs came to before and during it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from art_langgraph.client.client import TrainerClient
from art_langgraph.loop.sampling.informative import informative
from art_langgraph.loop.sampling.samplers import Sampler, UniformSampler
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario, Trajectory, TrajectoryGroup
from trainer_server.wire import ConfigError

log = logging.getLogger("art_langgraph")


def at_temperature(groups: Sequence[TrajectoryGroup], temperature: float | None) -> list[TrajectoryGroup]:
    """The runs at a temperature, by scenario. Runs at another one, or with hints, say little of what the next come to.

    Args:
        groups: Runs by scenario.
        temperature: That runs asked for; None: that of the graph.
    """
    selection = []
    for group in groups:
        runs = [run for run in group.trajectories if run.temperature == temperature and not run.hints]
        if runs:
            selection.append(group.model_copy(update={"trajectories": runs}))
    return selection


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
    every = store.list(scenario=ids, since=since)  # those that raised before the policy answered, too
    runs = [run for run in every if policy in run.versions or not run.completions]
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
    ids = {scenario.id for scenario in scenarios}

    def fits(run: Trajectory) -> bool:
        return run.versions.get(policy) == [version] and not run.untrained

    return [
        group
        for group in at_temperature(groups, temperature)
        if group.scenario.id in ids and all(map(fits, group.trajectories)) and informative(group)
    ]


@dataclass(slots=True)
class Curriculum:
    """A sampler with the scenarios of a training.

    Args:
        sampler: Chooses scenarios.
        scenarios: All of them.
        temperature: Of the training. The sampler learns from runs at this temperature only.
        ready: Measured groups that the first step can learn from as they are.
        remembers: Whether the sampler knows the runs of earlier steps, or need not know them.
    """

    sampler: Sampler
    scenarios: Sequence[Scenario]
    temperature: float | None
    ready: list[TrajectoryGroup] = field(default_factory=list)
    remembers: bool = True

    @classmethod
    async def begin(
        cls,
        sampler: Sampler,
        scenarios: Sequence[Scenario],
        *,
        policy: str,
        temperature: float | None,
        client: TrainerClient,
        store: TrajectoryStore | None,
        measured_groups: Sequence[TrajectoryGroup],
    ) -> Curriculum:
        """Lets a sampler learn from the runs that are known before the first step.

        Args:
            sampler: Chooses scenarios.
            scenarios: All of them.
            policy: That is trained.
            temperature: Of the training.
            client: The trainer server.
            store: Where earlier runs are; None: nowhere.
            measured_groups: Runs of the scenarios that were made and scored before.

        Raises:
            ServerError: 404 where there is no such policy.
        """
        learns = not isinstance(sampler, UniformSampler)
        curriculum = cls(sampler, scenarios, temperature, remembers=not learns or store is not None)
        if measured_groups or (learns and store is not None):
            record = await client.policy(policy)
            curriculum.ready = ready_groups(
                measured_groups, scenarios, policy=policy, version=record.latest, temperature=temperature
            )
            if learns and store is not None:
                sampler.learn(
                    await asyncio.to_thread(stored_groups, store, scenarios, policy, temperature, record.created)
                )
            curriculum.learn(measured_groups)
        return curriculum

    def warn_of_unknown_runs(self) -> None:
        """Warns, once, where the training had a step before whose runs the sampler does not know."""
        if not self.remembers:
            self.remembers = True
            log.warning(
                "the sampler does not know the runs of earlier steps, because train() has no store: it begins anew. "
                "Give store=TrajectoryStore(), where runs are kept"
            )

    def choose(self, step: int, count: int, groups: Sequence[TrajectoryGroup] = ()) -> list[Scenario]:
        """Scenarios for a step.

        Args:
            step: Number of the step.
            count: How many.
            groups: The groups that the step has already.

        Raises:
            ConfigError: The sampler gave another number of scenarios, or one that is not of the training.
        """
        if count <= 0:
            return []
        taken = {group.scenario.id for group in groups}
        choice = list(self.sampler.choose(self.scenarios, count, step=step, taken=taken))
        ids = {scenario.id for scenario in self.scenarios}
        wrong = len(choice) > count or (not taken and len(choice) < count)
        if wrong or any(scenario.id not in ids or scenario.id in taken for scenario in choice):
            raise ConfigError(
                f"step {step}: {type(self.sampler).__name__}.choose gave {len(choice)} scenarios "
                f"({', '.join(scenario.id for scenario in choice[:5])}): it must give {count} of those that it was "
                "given, none of which the step has taken"
            )
        return choice

    def learn(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Lets the sampler learn from runs, those at other temperatures aside."""
        self.sampler.learn(at_temperature(groups, self.temperature))
