"""HeldOut: scenarios that a training run measures itself on, and never trains on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from art_langgraph.datasets import load_scenarios
from art_langgraph.loop.evaluate import Success, full_reward
from art_langgraph.loop.rollout import ScenarioLike
from art_langgraph.messages import normalised_input
from art_langgraph.rewards import RewardFunction
from art_langgraph.trajectory import Scenario, scenario_id
from trainer_server.wire import ConfigError

_NAMED = 5
"""Scenarios that an error names, at most."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out scenarios, and how they are measured.

    Args:
        scenarios: The tasks, or a JSONL file of them (`load_scenarios`). None of them may be trained on.
        reward: Scores a run; None: the reward of the training.
        success: Whether a scored run solved its scenario; by default a reward of at least 1.
        n: Runs of each scenario. More scenarios tell more than more runs of the same ones; see `Evaluation`.
        temperature: Sampling temperature of the policies, over what the graph hard-codes; None: the graph's.
    """

    scenarios: Sequence[ScenarioLike] | str | Path
    reward: RewardFunction | None = None
    success: Success = full_reward
    n: int = 1
    temperature: float | None = 0.0

    @classmethod
    def of(cls, held_out: HeldOut | Sequence[ScenarioLike] | str | Path) -> HeldOut:
        """Held-out scenarios with the defaults; a HeldOut is returned as it is."""
        return held_out if isinstance(held_out, HeldOut) else cls(held_out)

    def resolve_scenarios(self, training: Iterable[Scenario]) -> list[Scenario]:
        """The held-out scenarios.

        Args:
            training: The scenarios that are trained on.

        Raises:
            ConfigError: There are none, or some are trained on too; the message names them. Or the file cannot be read.
        """
        given = load_scenarios(self.scenarios) if isinstance(self.scenarios, (str, Path)) else self.scenarios
        held = Scenario.each(given)
        if not held:
            raise ConfigError("held_out has no scenarios: give some that are not trained on, or leave it out")
        if self.n < 1:
            raise ConfigError(f"held_out: n={self.n} must be at least 1")
        if shared := overlap(held, list(training)):
            named = ", ".join(f"{scenario.id!r} ({scenario.input!r:.60})" for scenario in shared[:_NAMED])
            rest = f" and {len(shared) - _NAMED} more" if len(shared) > _NAMED else ""
            raise ConfigError(
                f"{len(shared)} of {len(held)} held-out scenarios are trained on too, so that their success would tell "
                f"nothing of new tasks: {named}{rest}. Take them out of one of the two"
            )
        return held


def input_id(scenario: Scenario) -> str:
    """A digest of what a scenario asks, the same for a text and for a user's message with it, without metadata."""
    return scenario_id(normalised_input(scenario.input))


def task_id(scenario: Scenario) -> str:
    """A digest of what a scenario asks, and of its metadata. Nobody chose it, unlike the scenario's id."""
    return scenario_id(normalised_input(scenario.input), scenario.metadata)


def overlap(held_out: Sequence[Scenario], training: Sequence[Scenario]) -> list[Scenario]:
    """The held-out scenarios that are trained on: those with the id, the input and metadata, or the input of a
    training scenario. A user's message is the same input in whatever form it is written.

    An input that several scenarios of one side share, with other metadata, tells no task from another (a game, say,
    whose metadata has the seed). Of those scenarios, ids and metadata are compared alone.
    """
    ids = {scenario.id for scenario in training}
    tasks = {task_id(scenario) for scenario in training}
    inputs = {input_id(scenario) for scenario in training} - (_ambiguous(held_out) | _ambiguous(training))
    return [
        scenario
        for scenario in held_out
        if scenario.id in ids or task_id(scenario) in tasks or input_id(scenario) in inputs
    ]


def _ambiguous(scenarios: Iterable[Scenario]) -> set[str]:
    """Digests of the inputs that scenarios with different metadata share."""
    tasks: defaultdict[str, set[str]] = defaultdict(set)
    for scenario in scenarios:
        tasks[input_id(scenario)].add(task_id(scenario))
    return {task for task, meanings in tasks.items() if len(meanings) > 1}
