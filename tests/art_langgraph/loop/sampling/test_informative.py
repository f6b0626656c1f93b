"""Groups that teach something, and other scenarios in place of those that do not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from art_langgraph import Scenario, TrajectoryGroup
from art_langgraph.loop.sampling.informative import add_informative, informative
from tests.support.runs.groups import group


@pytest.mark.parametrize(
    ("rewards", "teaches"),
    [((1.0, 0.0), True), ((1.0, 1.0), False), ((1.0, None), False), ((1.0, None, 0.5), True), ((), False)],
)
def test_a_group_teaches_by_its_differences(rewards: tuple[float | None, ...], teaches: bool) -> None:
    assert informative(group("a", *rewards)) is teaches


async def test_groups_that_teach_nothing_are_made_up_for() -> None:
    asked: list[list[str]] = []

    async def run(some: Sequence[Scenario]) -> list[TrajectoryGroup]:
        asked.append([one.id for one in some])
        return [group(one, 1.0, 0.0 if "good" in one.id else 1.0) for one in some]

    def others(*names: str) -> list[Scenario]:
        return [Scenario(id=name, input=name) for name in names]

    left = others("dull 2", "good 2", "good 3")

    def choose(count: int, groups: Sequence[TrajectoryGroup]) -> list[Scenario]:
        taken = {one.scenario.id for one in groups}
        return [one for one in left if one.id not in taken][:count]

    first = await run(others("dull", "good 1"))
    groups, replaced = await add_informative(run, first, choose, 3)
    assert asked == [["dull", "good 1"], ["dull 2"], ["good 2"]]
    assert (len(groups), replaced) == (4, 2)
    groups, replaced = await add_informative(run, await run(others("dull")), choose, 1)
    assert (len(groups), replaced) == (2, 1)
    left.clear()
    groups, replaced = await add_informative(run, await run(others("dull")), choose, 3)
    assert (len(groups), replaced) == (1, 0)
