"""What several runs of the same scenarios tell, against closed forms and against all samples."""

from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_langgraph import Evaluation, Scenario, Trajectory
from trainer_server.common.estimators import best_of, pass_at, sizes


def runs(of: str, *rewards: float | None, answers: str = "", error: str | None = None) -> list[Trajectory]:
    """Runs of a scenario; answers: a letter for each."""
    scenario = Scenario(id=of, input="x")
    texts = list(answers) or [""] * len(rewards)
    return [
        Trajectory(scenario=scenario, reward=reward, output=text, error=error)
        for reward, text in zip(rewards, texts, strict=True)
    ]


@pytest.mark.parametrize(
    ("k", "n", "c", "value"),
    [(1, 10, 3, 0.3), (2, 4, 1, 0.5), (2, 4, 2, 5 / 6), (3, 5, 2, 0.9), (4, 4, 1, 1.0), (4, 4, 0, 0.0), (8, 8, 8, 1.0)],
)
def test_pass_at_k_in_closed_form(k: int, n: int, c: int, value: float) -> None:
    assert pass_at(k, n, c) == pytest.approx(value)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=7), st.data())
def test_best_of_k_is_the_mean_of_the_greatest_over_all_samples_of_k(rewards: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(rewards)))
    greatest = [max(sample) for sample in itertools.combinations(rewards, k)]
    assert best_of(k, rewards) == pytest.approx(statistics.fmean(greatest), abs=1e-9)


@given(st.integers(1, 8), st.floats(0, 1), st.integers(1, 8))
def test_pass_at_k_is_unbiased(n: int, p: float, k: int) -> None:
    """Its mean over the binomial distribution of successes is 1 − (1 − p)^k. The share of successes put into that
    formula would not be."""
    if k > n:
        return
    from math import comb

    mean = sum(comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at(k, n, c) for c in range(n + 1))
    assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-9)


@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 9))
def test_for_rewards_of_0_and_1_best_of_k_is_pass_at_k(n: int, c: int, k: int) -> None:
    if k <= n and c <= n:
        assert best_of(k, [1.0] * c + [0.0] * (n - c)) == pytest.approx(pass_at(k, n, c))


def test_the_sizes_are_powers_of_two_and_all_runs() -> None:
    assert [sizes(most) for most in (1, 2, 3, 8, 12)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 12]]


def test_an_evaluation_has_the_means_over_its_scenarios() -> None:
    found = Evaluation([*runs("a", 1.0, 0.0, 0.0, 0.0), *runs("b", 1.0, 1.0, 0.0, 0.0)])
    repeats = found.repeats
    assert repeats is not None
    assert repeats.n == 4
    assert repeats.pass_at == pytest.approx({1: 0.375, 2: (1 / 2 + 5 / 6) / 2, 4: 1.0})
    assert repeats.pass_at[1] == found.success_rate
    assert repeats.best_of == pytest.approx(repeats.pass_at)
    within = (0.25 * 0.75 * 4 / 3 + 0.25 * 4 / 3) / 2
    assert repeats.within == pytest.approx(within)
    assert repeats.between == 0.0, "0.25 and 0.5 differ by less than chance makes them differ"
    assert [outcome.variance for outcome in found.by_scenario()] == pytest.approx([0.25, 1 / 3])
    assert found.summary()["repeats"] == {
        "n": 4,
        "pass_at": {"1": 0.375, "2": pytest.approx(2 / 3), "4": 1.0},
        "best_of": {"1": 0.375, "2": pytest.approx(2 / 3), "4": 1.0},
        "majority": None,
        "variance": {"within": pytest.approx(within), "between": 0.0},
    }
    assert "success 0.375" in str(found)
    assert "pass@2 0.667, pass@4 1.000" in str(found)


def test_scenarios_that_always_end_alike_differ_in_difficulty_alone() -> None:
    repeats = Evaluation([*runs("a", 1.0, 1.0), *runs("b", 0.0, 0.0)]).repeats
    assert repeats is not None
    assert (repeats.within, repeats.between) == (0.0, statistics.variance([1.0, 0.0]))
    assert repeats.pass_at == {1: 0.5, 2: 0.5}


def test_the_majority_is_the_success_of_the_most_frequent_answer() -> None:
    wins = runs("a", 1.0, 1.0, 0.0, answers="xxy")
    loses = runs("b", 1.0, 0.0, 0.0, answers="xyy")
    tie = runs("c", 1.0, 1.0, 0.0, 0.0, answers="xxyy")
    silent = runs("d", 0.0, 0.0, error="ValueError")
    by_id = {outcome.scenario: outcome.majority for outcome in Evaluation([*wins, *loses, *tie, *silent]).by_scenario()}
    assert by_id == {"a": 1.0, "b": 0.0, "c": 0.5, "d": 0.0}
    repeats = Evaluation([*wins, *loses]).repeats
    assert repeats is not None
    assert repeats.majority == 0.5
    assert "majority of 3 0.500" in str(repeats)


def test_answers_are_compared_without_case_and_full_stop_or_as_you_say() -> None:
    scenario = Scenario(id="a", input="x")
    texts = (("It is  Paris.", 1.0), ("it is Paris", 1.0), ("Rome", 0.0), ("Rome or so", 0.0), ("Rome!", 0.0))
    made = [Trajectory(scenario=scenario, reward=reward, output=text) for text, reward in texts]
    found = Evaluation(made).repeats
    first_word = Evaluation(made, answer=lambda run: run.final_text.casefold().split()[0].rstrip("!")).repeats
    assert found is not None
    assert first_word is not None
    assert found.majority == 0.5, "it is paris: 2, rome: 2"
    assert first_word.majority == 0.0, "rome: 3"


def test_one_run_of_a_scenario_tells_none_of_it() -> None:
    assert Evaluation([*runs("a", 1.0, 0.0), *runs("b", 1.0)]).repeats is None
    assert Evaluation([]).repeats is None


def test_a_run_that_crashed_without_a_reward_is_no_success_and_leaves_best_of_k_out() -> None:
    from art_langgraph.trajectory import CompletionCall

    (crashed,) = runs("a", None, error="ValueError: no JSON")
    crashed.completions = [CompletionCall(id="c", started=0.0)]
    repeats = Evaluation([*runs("a", 1.0), crashed]).repeats
    assert repeats is not None
    assert (repeats.pass_at, repeats.best_of) == ({1: 0.5, 2: 1.0}, {})
