"""Whether a group teaches something, and further runs where it does not: of other scenarios, or hotter ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from art_langgraph.credit import group_refs
from art_langgraph.trajectory import Scenario, TrajectoryGroup
from trainer_server.wire import ConfigError, GroupRef

_EQUAL = 1e-9
"""Rewards that differ by less count as equal, as in the trainer."""


def informative(group: TrajectoryGroup) -> bool:
    """Whether a group teaches something: its rewards differ, or those of a node. Otherwise the group is dead."""
    return any(map(_differs, group_refs([group])))


def _differs(group: GroupRef) -> bool:
    rewards = [run.reward for run in group.trajectories if run.reward is not None]
    return len(rewards) > 1 and max(rewards) - min(rewards) > _EQUAL


async def add_informative(
    run: Callable[[Sequence[Scenario]], Awaitable[list[TrajectoryGroup]]],
    groups: Sequence[TrajectoryGroup],
    choose: Callable[[int, Sequence[TrajectoryGroup]], Sequence[Scenario]],
    rounds: int,
) -> tuple[list[TrajectoryGroup], int]:
    """Runs other scenarios in place of those whose groups teach nothing.

    Args:
        run: Makes the groups of some scenarios.
        groups: The groups of the step.
        choose: Takes how many scenarios are missing and the groups that there are, and gives other scenarios; fewer, or
            none, where there are no more.
        rounds: How often scenarios are replaced, at most.

    Returns:
        All groups, and how many were added. Groups that teach nothing are included: the trainer leaves them out, and
        counts their rewards.
    """
    result = list(groups)
    for _ in range(rounds):
        missing = len(groups) - sum(map(informative, result))
        if missing <= 0 or not (others := choose(missing, result)):
            break
        result += await run(others)
    return result, len(result) - len(groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """What a step does about dead groups: it runs their scenarios again, at a higher temperature.

    The new runs join the group. If one of them got another reward, the group teaches something. The trainer computes
    the log-probs of each completion at the temperature at which it was sampled, so such a step is exact: it raises the
    expected reward of both temperatures. A scenario whose runs all got the highest reward known is not explored.

    Args:
        temperature: Sampling temperature of these runs, over what the graph hard-codes. Above that of the training, 10
            at most.
        n: Runs of a scenario.
        budget: Runs of a step, at most. Scenarios with the lowest reward come first.

    Raises:
        ConfigError: A number is out of its range.
    """

    temperature: float = 1.3
    n: int = 8
    budget: int = 32

    def __post_init__(self) -> None:
        if not 0 < self.temperature <= 10 or self.n < 1 or self.budget < self.n:
            raise ConfigError(
                f"Exploration: temperature={self.temperature} must be above 0 and at most 10, n={self.n} at least 1, "
                f"and budget={self.budget} at least n"
            )


@dataclass(slots=True)
class Explorer:
    """Explores the dead groups of one step after another.

    Args:
        settings: How.
    """

    settings: Exploration
    lowest: float | None = None
    """The lowest reward of all runs until now."""
    highest: float | None = None
    """The highest reward of all runs until now."""

    async def explore(
        self,
        run: Callable[[Sequence[Scenario]], Awaitable[list[TrajectoryGroup]]],
        groups: Sequence[TrajectoryGroup],
    ) -> tuple[list[TrajectoryGroup], int]:
        """Runs the scenarios of dead groups again, as far as the budget goes.

        Args:
            run: Makes groups of `settings.n` runs at `settings.temperature`.
            groups: The groups of the step.

        Returns:
            The groups, dead ones with the new runs, and how many runs were added.
        """
        self._note(groups)
        dead = [at for at, group in enumerate(groups) if not informative(group) and self._worth(group)]
        dead.sort(key=lambda at: min(_rewards_of(groups[at])))
        selection = dead[: self.settings.budget // self.settings.n]
        if not selection:
            return list(groups), 0
        more_groups = await run([groups[at].scenario for at in selection])
        self._note(more_groups)
        result = list(groups)
        for at, more in zip(selection, more_groups, strict=True):
            runs = [*groups[at].trajectories, *more.trajectories]
            result[at] = groups[at].model_copy(update={"trajectories": runs})
        return result, sum(len(more.trajectories) for more in more_groups)

    def _note(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Notes the lowest and the highest reward. A judge's scores are not compared between groups."""
        rewards = [reward for group in groups if group.judgements <= {None} for reward in _rewards_of(group)]
        if rewards:
            self.lowest = min(rewards if self.lowest is None else [self.lowest, *rewards])
            self.highest = max(rewards if self.highest is None else [self.highest, *rewards])

    def _worth(self, group: TrajectoryGroup) -> bool:
        """Whether a dead group has a reward, and one that can be better as far as is known."""
        rewards = _rewards_of(group)
        if not rewards or group.judgements != {None} or self.highest is None or self.highest == self.lowest:
            return bool(rewards)
        return max(rewards) < self.highest


def _rewards_of(group: TrajectoryGroup) -> list[float]:
    return [reward for reward in group.rewards if reward is not None]
