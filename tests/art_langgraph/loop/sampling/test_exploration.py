"""Dead groups are explored at a higher temperature, within a budget."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from art_langgraph import Exploration, Scenario, TrajectoryGroup
from art_langgraph.loop.sampling.informative import Explorer, informative
from tests.support.runs.groups import group
from trainer_server.wire import ConfigError


class Runs:
    """Runs whose rewards are known by scenario."""

    def __init__(self, **rewards: list[float | None]) -> None:
        self.rewards, self.asked = rewards, list[list[str]]()

    async def __call__(self, scenarios: Sequence[Scenario]) -> list[TrajectoryGroup]:
        self.asked.append([one.id for one in scenarios])
        return [group(one, *self.rewards[one.id], temperature=1.3) for one in scenarios]


def named(name: str, *rewards: float | None) -> TrajectoryGroup:
    return group(Scenario(id=name, input=name), *rewards)


async def test_failures_are_explored_before_the_budget_ends_and_what_is_solved_never() -> None:
    runs = Runs(worst=[-1.0, 0.5], low=[0.0, 0.0], middle=[1.0])
    explorer = Explorer(Exploration(n=2, budget=5))
    groups = [named("solved", 1.0, 1.0), named("low", 0.0, 0.0), named("alive", 0.0, 1.0), named("worst", -1.0, -1.0)]
    found, added = await explorer.explore(runs, [*groups, named("middle", 0.5, 0.5)])
    assert runs.asked == [["worst", "low"]]  # two of two runs each, the lowest first
    assert added == 4
    assert [len(one.trajectories) for one in found] == [2, 4, 2, 4, 2]
    assert [informative(one) for one in found] == [False, False, True, True, False]


async def test_where_all_rewards_are_equal_none_is_known_to_be_the_best() -> None:
    runs = Runs(a=[1.0, 0.0])
    explorer = Explorer(Exploration(n=2, budget=2))
    _, added = await explorer.explore(runs, [named("a", 0.0, 0.0)])
    assert added == 2
    _, added = await explorer.explore(runs, [named("a", 1.0, 1.0)])  # the exploration showed that 1 is the best
    assert added == 0


async def test_scenarios_without_a_reward_are_not_explored() -> None:
    assert (await Explorer(Exploration()).explore(Runs(), [named("a", None, None)]))[1] == 0


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"temperature": 11.0}, {"n": 0}, {"budget": 3}])
def test_settings_that_explore_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Exploration(**wrong)  # type: ignore[arg-type]
