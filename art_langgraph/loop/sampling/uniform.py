"""Every scenario equally often: `sampler="uniform"`."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from art_langgraph.trajectory import Scenario, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class UniformSampler:
    """Passes over the scenarios, each taken once in a pass. Step i has the same scenarios in every run of a seed.

    Args:
        seed: Seeds the order of each pass, and of the scenarios that replace others.
        shuffle: Whether passes are in random order. False: in the order given.
    """

    seed: int = 0
    shuffle: bool = True

    def choose(
        self, scenarios: Sequence[Scenario], count: int, *, step: int, taken: Collection[str] = ()
    ) -> list[Scenario]:
        """The next scenarios of the pass; in place of others, any that the step has not taken. See `Sampler.choose`.

        Args:
            scenarios: All scenarios of the training.
            count: How many to choose.
            step: Number of the step, from 1 on. It seeds the choice, together with `seed`.
            taken: Ids of scenarios that the step has already. Not empty: others are wanted in their place.
        """
        if taken:
            order = random.Random(f"{self.seed}-spare-{step}").sample(scenarios, len(scenarios))
            return [scenario for scenario in order if scenario.id not in taken][:count]
        chosen: list[Scenario] = []
        for position in range((step - 1) * count, step * count):
            epoch, at = divmod(position, len(scenarios))
            if self.shuffle:
                at = random.Random(f"{self.seed}-{epoch}").sample(range(len(scenarios)), len(scenarios))[at]
            chosen.append(scenarios[at])
        return chosen

    def learn(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Does nothing: what was measured does not change the order."""
