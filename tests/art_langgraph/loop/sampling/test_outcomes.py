"""What runs came to, and how likely the next ones are to differ."""

from __future__ import annotations

import random
import statistics
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_langgraph import TrajectoryGroup
from art_langgraph.loop.sampling.samplers import UNSCORED, Outcome, Outcomes, chance, drawn_chance, outcomes_of
from tests.support.runs.groups import group, run

WEIGHTS = st.dictionaries(
    st.sampled_from([UNSCORED, (("run", 0.0),), (("run", 1.0),), (("run", 0.5),)]), st.floats(0.01, 50), max_size=4
)


def test_two_outcomes_are_the_beta_posterior() -> None:
    """1 − E[pⁿ] − E[(1−p)ⁿ] for p ~ Beta(½ + failures, ½ + 0), in closed form."""
    n, failures = 8, 5
    all_fail = prod((failures + 0.5 + i) / (failures + 1 + i) for i in range(n))
    all_solve = prod((0.5 + i) / (failures + 1 + i) for i in range(n))
    assert chance({(("run", 0.0),): failures}, n) == pytest.approx(1 - all_fail - all_solve)
    untried = prod((0.5 + i) / (1 + i) for i in range(n))
    assert chance({}, n) == pytest.approx(1 - 2 * untried)


@given(WEIGHTS, st.integers(1, 32))
def test_a_chance_is_a_probability_and_grows_with_the_group(weights: dict[Outcome, float], n: int) -> None:
    assert -1e-9 <= chance(weights, n) <= chance(weights, n + 1) + 1e-9 <= 1 + 2e-9
    assert -1e-9 <= drawn_chance(weights, n, random.Random(n)) <= 1 + 1e-9


@pytest.mark.parametrize(
    "weights",
    [{}, {(("run", 0.0),): 8.0}, {(("run", 0.0),): 6.0, (("run", 1.0),): 2.0}, {(("run", 1.0),): 3.0, UNSCORED: 2.0}],
)
def test_draws_have_the_expected_chance(weights: dict[Outcome, float]) -> None:
    rng = random.Random(0)
    draws = [drawn_chance(weights, 8, rng) for _ in range(20_000)]
    assert statistics.fmean(draws) == pytest.approx(chance(weights, 8), abs=0.01)


@pytest.mark.parametrize("level", [0.0, 1.0, 0.4])
def test_the_more_runs_agree_the_less_the_next_ones_will_differ(level: float) -> None:
    chances = [chance({(("run", level),): float(count)}, 8) for count in (0, 8, 16, 64)]
    assert chances == sorted(chances, reverse=True)
    assert chances[-1] < 0.1
    assert chance({(("run", 0.0),): 4.0, (("run", 1.0),): 4.0}, 8) > 0.9


def test_runs_without_a_reward_teach_nothing() -> None:
    assert chance({UNSCORED: 64.0}, 8) < 0.05


def test_old_versions_lose_their_weight_in_any_order() -> None:
    def counted(runs: list[tuple[int, float]]) -> Outcomes:
        found = Outcomes()
        for version, reward in runs:
            found.add(version, (("run", reward),), 1.0)
        return found

    runs = [(0, 0.0), (0, 0.0), (4, 1.0), (8, 0.0), (8, 1.0)]
    weights = counted(runs).weights(8, half_life=4)
    assert weights == {(("run", 0.0),): 1.5, (("run", 1.0),): 1.5}
    assert list(counted(runs[::-1]).weights(8, 4).items()) == list(weights.items())
    assert counted([(0, 0.0)]).weights(80, half_life=4) == {}


def test_outcomes_of_a_judge_are_relative_to_the_judgement() -> None:
    both = [group("a", 0.3, 0.3, judgement="one"), group("a", 0.7, 0.7, judgement="two")]
    merged = TrajectoryGroup(scenario=both[0].scenario, trajectories=[run for one in both for run in one.trajectories])
    assert len(set(outcomes_of(merged))) == 1  # neither judgement told runs apart
    assert len(set(outcomes_of(group("a", 0.1, 0.9, judgement="one")))) == 2


def test_rewards_of_nodes_and_completions_are_part_of_the_outcome() -> None:
    def outcome(**fields: object) -> Outcome:
        made = run("a", 1.0, **fields)
        return outcomes_of(TrajectoryGroup(scenario=made.scenario, trajectories=[made]))[0]

    assert outcome(node_rewards={"a": 1.0, "b": 0.0}) != outcome(node_rewards={"a": 0.0, "b": 1.0})
    one = run("a", None)
    one.completions[0].reward = 0.5
    assert outcomes_of(TrajectoryGroup(scenario=one.scenario, trajectories=[one])) == [(("", 0.5),)]
    two = run("a", None, calls=[("search", "found")])
    two.completions[0].reward, two.completions[1].reward = 0.5, 1.0
    assert outcomes_of(TrajectoryGroup(scenario=two.scenario, trajectories=[two])) == [("differs", two.id)]
