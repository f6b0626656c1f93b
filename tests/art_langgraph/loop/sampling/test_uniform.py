"""sampler="uniform": passes over all scenarios."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from art_langgraph import Scenario, UniformSampler

SCENARIOS = [Scenario(id=name, input=name) for name in "abcdefg"]


@given(st.integers(1, 7), st.integers(0, 99))
def test_a_pass_takes_each_scenario_once(count: int, seed: int) -> None:
    sampler = UniformSampler(seed)
    chosen = [one.id for step in range(1, 8) for one in sampler.choose(SCENARIOS, count, step=step)]
    assert Counter(chosen) == {one.id: count for one in SCENARIOS}
    assert chosen[:7] == random.Random(f"{seed}-0").sample("abcdefg", 7)


def test_without_shuffling_scenarios_come_as_given() -> None:
    sampler = UniformSampler(shuffle=False)
    assert [one.id for step in (1, 2, 3) for one in sampler.choose(SCENARIOS, 3, step=step)] == list("abcdefgab")


def test_what_is_to_replace_others_is_new_to_the_step() -> None:
    sampler = UniformSampler(3)
    first = {one.id for one in sampler.choose(SCENARIOS, 2, step=1)}
    more = [one.id for one in sampler.choose(SCENARIOS, 2, step=1, taken=first)]
    rest = [one.id for one in sampler.choose(SCENARIOS, 9, step=1, taken={*first, *more})]
    assert sorted([*first, *more, *rest]) == list("abcdefg")
    assert more + rest == [one.id for one in sampler.choose(SCENARIOS, 9, step=1, taken=first)]
