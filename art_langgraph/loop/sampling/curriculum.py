"""The scenarios of one training: chosen by a sampler, which learns from what runs came to before and during it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from art_langgraph.client.client import TrainerClient
from art_langgraph.loop.sampling.sampler import Sampler
from art_langgraph.loop.sampling.stored_runs import at_temperature, ready_groups, stored_groups
from art_langgraph.loop.sampling.uniform import UniformSampler
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Scenario, TrajectoryGroup
from trainer_server.wire import ConfigError

log = logging.getLogger("art_langgraph")


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
            known = await client.policy(policy)
            curriculum.ready = ready_groups(
                measured_groups, scenarios, policy=policy, version=known.latest, temperature=temperature
            )
            if learns and store is not None:
                sampler.learn(
                    await asyncio.to_thread(stored_groups, store, scenarios, policy, temperature, known.created)
                )
            curriculum.learn(measured_groups)
        return curriculum

    def step_was_taken(self) -> None:
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
        chosen = list(self.sampler.choose(self.scenarios, count, step=step, taken=taken))
        ids = {scenario.id for scenario in self.scenarios}
        wrong = len(chosen) > count or (not taken and len(chosen) < count)
        if wrong or any(scenario.id not in ids or scenario.id in taken for scenario in chosen):
            raise ConfigError(
                f"step {step}: {type(self.sampler).__name__}.choose gave {len(chosen)} scenarios "
                f"({', '.join(scenario.id for scenario in chosen[:5])}): it must give {count} of those that it was "
                "given, none of which the step has taken"
            )
        return chosen

    def learn(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Lets the sampler learn from runs, those at other temperatures aside."""
        self.sampler.learn(at_temperature(groups, self.temperature))
