"""What `train` asks for the scenarios of a step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from art_langgraph.trajectory import Scenario, TrajectoryGroup


class Sampler(Protocol):
    """Chooses the scenarios of each training step: `train(sampler=…)` takes any object that has these methods.

    `UniformSampler` and `LearnableSampler` are included.
    """

    def choose(
        self, scenarios: Sequence[Scenario], count: int, *, step: int, taken: Collection[str] = ()
    ) -> Sequence[Scenario]:
        """Chooses scenarios for a step. It is called once for each step, and again when some are to be replaced.

        Args:
            scenarios: All scenarios of the training.
            count: How many to choose.
            step: Number of the step, from 1 on.
            taken: Ids of scenarios that the step has already. Not empty: others are wanted, in place of those whose
                runs all got the same reward.

        Returns:
            Some of `scenarios`: exactly `count` where nothing is taken, at most `count` otherwise.
        """
        ...

    def learn(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Takes note of runs at the temperature of the training, with their rewards and versions.

        `train` calls it before the first step with the runs that were measured or are in its store, and then after the
        rollouts of each step. The same run may come twice.

        Args:
            groups: Runs by scenario.
        """
        ...
