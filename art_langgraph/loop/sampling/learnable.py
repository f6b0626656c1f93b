"""Scenarios by how much they can teach the present policy: `sampler="learnable"`."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Collection, Sequence

from art_langgraph.loop.sampling.outcomes import Outcome, Outcomes, chance, drawn_chance, outcomes_of
from art_langgraph.trajectory import Scenario, TrajectoryGroup
from trainer_server.wire import ConfigError


class LearnableSampler:
    """Chooses the scenarios whose next group most likely teaches something: whose rewards will differ.

    It counts what the runs of each scenario came to, draws a probability of each outcome from what that leaves possible
    (Thompson sampling), and takes the scenarios with the highest probability of unequal rewards. A scenario that was
    never tried leaves all possible. A scenario that is always or never solved is chosen again when its runs have lost
    their weight, because the policy has moved since, or because it waited longest.

    With the same rewards, the same seed gives the same choices, also where a training continues from a store. The
    rewards of a run follow from what was sampled, so two runs of a training with the same seed part after the first
    step.

    Args:
        policy: The policy that is trained. Its versions tell how old a run is.
        n: Runs of a group.
        seed: Seeds the draws, together with the step and the scenario.
        half_life: Runs of a version count half when the policy is so many versions ahead.
        exploration: Share of the choices, 0 to 1, that goes to the scenarios that waited longest. So every one of S
            scenarios is run within S / (exploration · groups_per_step) steps.

    Raises:
        ConfigError: A number is out of its range.
    """

    def __init__(
        self, policy: str, *, n: int = 8, seed: int = 0, half_life: float = 10.0, exploration: float = 0.1
    ) -> None:
        if n < 1 or not half_life > 0 or not 0 <= exploration <= 1:
            raise ConfigError(
                f"n={n} must be at least 1, half_life={half_life} above 0, exploration={exploration} from 0 to 1"
            )
        self.policy, self.n, self.seed, self.half_life, self.exploration = policy, n, seed, half_life, exploration
        self._outcomes: defaultdict[str, Outcomes] = defaultdict(Outcomes)
        self._known = set[str]()
        """Ids of the runs that were counted."""
        self._newest = 0
        """The newest version that answered a run."""

    def choose(
        self, scenarios: Sequence[Scenario], count: int, *, step: int, taken: Collection[str] = ()
    ) -> list[Scenario]:
        """The scenarios with the highest drawn probability, and those that waited longest. See `Sampler.choose`.

        Args:
            scenarios: All scenarios of the training.
            count: How many to choose.
            step: Number of the step, from 1 on. It seeds the choice, together with `seed`.
            taken: Ids of scenarios that the step has already. Not empty: others are wanted in their place.

        Raises:
            ConfigError: Fewer scenarios than `count` have an id of their own.
        """
        by_id = {scenario.id: scenario for scenario in scenarios}
        if not taken and len(by_id) < count:
            raise ConfigError(
                f"{len(by_id)} of {len(scenarios)} scenarios have an id of their own, fewer than {count} for a step: "
                "scenarios with the same input and metadata are the same; give them an id, or take fewer groups"
            )
        left = [scenario_id for scenario_id in by_id if scenario_id not in taken]
        draws = {scenario_id: random.Random(f"{self.seed}-{step}-{scenario_id}") for scenario_id in left}
        tie = {scenario_id: rng.random() for scenario_id, rng in draws.items()}
        chances = {
            scenario_id: drawn_chance(self._weights(scenario_id), self.n, rng) for scenario_id, rng in draws.items()
        }
        share = count * self.exploration
        turns = 0 if taken else math.floor(step * share) - math.floor((step - 1) * share)
        longest = sorted(left, key=lambda scenario_id: (self._last(scenario_id), tie[scenario_id]))[:turns]
        best = sorted(set(left) - set(longest), key=lambda scenario_id: (-chances[scenario_id], tie[scenario_id]))
        return [by_id[scenario_id] for scenario_id in (longest + best)[:count]]

    def learn(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Counts what runs came to. A run in which the policy did not answer counts as one of the newest version."""
        runs = [run for group in groups for run in group.trajectories]
        self._newest = max([self._newest, *(max(run.versions.get(self.policy, [0])) for run in runs)])
        for group in groups:
            for run, outcome in zip(group.trajectories, outcomes_of(group), strict=True):
                if run.id not in self._known:
                    self._known.add(run.id)
                    version = max(run.versions.get(self.policy, [self._newest]))
                    self._outcomes[group.scenario.id].add(version, outcome, run.started)

    def chance(self, scenario: Scenario) -> float:
        """The probability, 0 to 1, that the rewards of the scenario's next group differ, as far as runs have told."""
        return chance(self._weights(scenario.id), self.n)

    def _weights(self, scenario_id: str) -> dict[Outcome, float]:
        known = self._outcomes.get(scenario_id)
        return known.weights(self._newest, self.half_life) if known else {}

    def _last(self, scenario_id: str) -> float:
        known = self._outcomes.get(scenario_id)
        return known.last if known else -math.inf
