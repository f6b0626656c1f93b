"""sampler="learnable": scenarios by how likely their next group is to teach something."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_langgraph import LearnableSampler, Scenario
from tests.support.runs.groups import group
from trainer_server.wire import ConfigError

SCENARIOS = [Scenario(id=f"s{at}", input=f"{at}") for at in range(12)]


def sampler(**options: float) -> LearnableSampler:
    return LearnableSampler("agent", **{"n": 8, **options})  # type: ignore[arg-type]


def chosen(one: LearnableSampler, count: int, steps: range, **options: object) -> list[list[str]]:
    return [[made.id for made in one.choose(SCENARIOS, count, step=step, **options)] for step in steps]  # type: ignore[arg-type]


def test_what_may_teach_comes_before_what_is_never_or_always_solved() -> None:
    one = sampler(exploration=0.0)
    for at, scenario in enumerate(SCENARIOS):
        rewards = [0.0] * 8 if at < 5 else [1.0] * 8 if at < 9 else [1.0] * 4 + [0.0] * 4
        for _ in range(4):
            one.learn([group(scenario, *rewards)])
    found = chosen(one, 3, range(1, 51))
    hits = sum(name in {"s9", "s10", "s11"} for names in found for name in names)
    assert hits >= 0.95 * 150
    assert one.chance(SCENARIOS[0]) < 0.2 < 0.9 < one.chance(SCENARIOS[9])


def test_what_was_never_tried_comes_before_what_is_known_to_be_dead() -> None:
    one = sampler(exploration=0.0)
    one.learn([group(scenario, *[0.0] * 8) for scenario in SCENARIOS[:8] for _ in range(4)])
    found = [name for names in chosen(one, 4, range(1, 26)) for name in names]
    assert sum(name in {"s8", "s9", "s10", "s11"} for name in found) >= 0.7 * len(
        found
    )  # of all scenarios, they are a third


def test_a_dead_scenario_is_tried_again_when_the_policy_has_moved() -> None:
    one = sampler(half_life=5.0)
    one.learn([group(SCENARIOS[0], *[0.0] * 16)])
    before = one.chance(SCENARIOS[0])
    one.learn([group(SCENARIOS[1], 0.0, 1.0, version=20)])
    assert one.chance(SCENARIOS[0]) > before
    assert one.chance(SCENARIOS[0]) == pytest.approx(one.chance(SCENARIOS[2]), abs=0.3)


@settings(max_examples=12)
@given(st.integers(1, 6), st.sampled_from([0.1, 0.25, 0.5]), st.integers(0, 50))
def test_no_scenario_starves(count: int, exploration: float, seed: int) -> None:
    """Whatever the rewards are, every scenario is run within S / (exploration · count) steps, and one more."""
    one = sampler(seed=seed, exploration=exploration)
    rng = random.Random(seed)
    last = dict.fromkeys((scenario.id for scenario in SCENARIOS), 0)
    bound = math.ceil(len(SCENARIOS) / (exploration * count)) + 1
    for step in range(1, 3 * bound):
        made = one.choose(SCENARIOS, count, step=step)
        assert len({scenario.id for scenario in made}) == count
        for scenario in made:
            rewards = [float(rng.random() < 0.5) if scenario.id < "s5" else 0.0 for _ in range(4)]
            one.learn([group(scenario, *rewards, version=step - 1)])
            last[scenario.id] = step
        assert step - min(last.values()) <= bound


def test_the_same_rewards_and_seed_give_the_same_choices_in_any_order_of_learning() -> None:
    groups = [
        group(scenario, *(float((at + run) % 3 == 0) for run in range(8)), version=at % 4)
        for at, scenario in enumerate(SCENARIOS)
    ]
    first, second = sampler(seed=1), sampler(seed=1)
    first.learn(groups)
    for one in reversed(groups):
        second.learn([one])
        second.learn([one])  # the same run twice counts once
    assert chosen(first, 4, range(1, 20)) == chosen(second, 4, range(1, 20))
    other = sampler(seed=2)
    other.learn(groups)
    assert chosen(other, 4, range(1, 20)) != chosen(first, 4, range(1, 20))


def test_replacements_are_new_to_the_step() -> None:
    one = sampler()
    first = one.choose(SCENARIOS, 4, step=1)
    taken = {scenario.id for scenario in first}
    assert taken.isdisjoint(scenario.id for scenario in one.choose(SCENARIOS, 20, step=1, taken=taken))
    assert len(one.choose(SCENARIOS, 20, step=1, taken=taken)) == 8


def test_settings_that_choose_nothing_are_refused() -> None:
    for wrong in ({"n": 0}, {"half_life": 0.0}, {"exploration": 1.5}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            sampler(**wrong)
    same = [Scenario(input="a"), Scenario(input="a")]
    with pytest.raises(ConfigError, match="1 of 2 scenarios have an id of their own"):
        sampler().choose(same, 2, step=1)
