"""More runs, at a higher temperature, of scenarios whose runs all got the same reward."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from art_langgraph.loop.sampling.informative import informative
from art_langgraph.trajectory import Scenario, TrajectoryGroup
from trainer_server.wire import ConfigError


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
        dead.sort(key=lambda at: min(_rewards(groups[at])))
        chosen = dead[: self.settings.budget // self.settings.n]
        if not chosen:
            return list(groups), 0
        added = await run([groups[at].scenario for at in chosen])
        self._note(added)
        merged = list(groups)
        for at, more in zip(chosen, added, strict=True):
            runs = [*groups[at].trajectories, *more.trajectories]
            merged[at] = groups[at].model_copy(update={"trajectories": runs})
        return merged, sum(len(more.trajectories) for more in added)

    def _note(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Notes the lowest and the highest reward. A judge's scores are not compared between groups."""
        rewards = [reward for group in groups if group.judgements <= {None} for reward in _rewards(group)]
        if rewards:
            self.lowest = min(rewards if self.lowest is None else [self.lowest, *rewards])
            self.highest = max(rewards if self.highest is None else [self.highest, *rewards])

    def _worth(self, group: TrajectoryGroup) -> bool:
        """Whether a dead group has a reward, and one that can be better as far as is known."""
        rewards = _rewards(group)
        if not rewards or group.judgements != {None} or self.highest is None or self.highest == self.lowest:
            return bool(rewards)
        return max(rewards) < self.highest


def _rewards(group: TrajectoryGroup) -> list[float]:
    return [reward for reward in group.rewards if reward is not None]
