"""What a measurement says: rates, intervals, and runs that raised."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_langgraph import Evaluation, Scenario, Trajectory
from art_langgraph.loop.evaluate import mean_interval, rate_interval
from art_langgraph.trajectory import CompletionCall
from trainer_server.common.intervals import wilson

_number = itertools.count()


def run(reward: float | None, *, error: str | None = None, tool: str = "add", of: str | None = None) -> Trajectory:
    """A run of the scenario with the id `of`; None: of a scenario of its own."""
    scenario = Scenario(id=of or f"scenario {next(_number)}", input="x", metadata={"tool": tool})
    return Trajectory(scenario=scenario, reward=reward, error=error)


def test_rates_count_runs_with_a_reward_and_name_the_others() -> None:
    found = Evaluation([run(1.0), run(0.0), run(1.0, tool="sub"), run(None)], 3)
    assert (found.n, found.failed, found.unscored, found.successes) == (3, 0, 1, 2)
    assert found.success_rate == pytest.approx(2 / 3)
    assert found.success_interval == found.interval == pytest.approx(wilson(2, 3))
    assert found.by(lambda scenario: [scenario.metadata["tool"]]) == {"add": (1, 2), "sub": (1, 1)}
    assert found.by(lambda scenario: [None, scenario.metadata["tool"]]) == {"add": (1, 2), "sub": (1, 1), None: (2, 3)}
    assert found.summary() == {
        "version": 3,
        "n": 3,
        "scenarios": 3,
        "failed": 0,
        "unscored": 1,
        "mean": pytest.approx(2 / 3),
        "interval": pytest.approx(list(wilson(2, 3))),
        "success": pytest.approx(2 / 3),
        "success_interval": pytest.approx(list(wilson(2, 3))),
    }
    assert "success 0.667" in str(found)


def test_repeats_of_scenarios_with_one_outcome_tell_nothing_new() -> None:
    found = Evaluation([run(reward, of=f"always {reward}") for reward in (0.0, 1.0) for _ in range(50)])
    assert (found.n, found.scenarios, found.mean, found.success_rate) == (100, 2, 0.5, 0.5)
    assert found.interval == found.success_interval == pytest.approx(wilson(1, 2))
    assert "100 runs of 2 scenarios" in str(found)
    solved = Evaluation([run(1.0, of=f"{at % 3}") for at in range(30)])
    assert solved.success_interval == pytest.approx(wilson(3, 3))


def test_repeats_count_where_chance_decides_within_a_scenario() -> None:
    even = Evaluation([run(float(at % 2), of=f"{at % 10 // 2}") for at in range(100)])
    assert even.success_interval == pytest.approx(wilson(50, 100))
    rates = [run(float(at < solved), of=f"{solved}") for solved in (2, 5, 8) for at in range(10)]
    low, high = Evaluation(rates).success_interval
    assert wilson(1.5, 3)[0] < low < wilson(15, 30)[0]
    assert high == pytest.approx(1 - low)


@given(st.lists(st.integers(0, 8).map(lambda solved: solved / 8), min_size=1, max_size=60))
def test_the_rate_is_within_its_interval_whatever_is_rounded(rates: list[float]) -> None:
    low, high = rate_interval(rates, 8 * len(rates))
    assert 0.0 <= low <= statistics.fmean(rates) <= high <= 1.0


@pytest.mark.parametrize(
    ("n", "quantile"),
    [(2, 12.7062), (3, 4.3027), (4, 3.1824), (5, 2.7764), (9, 2.3060), (31, 2.0423), (10_001, 1.9602)],
)
def test_the_interval_of_a_mean_is_students(n: int, quantile: float) -> None:
    values = [float(number % 2) for number in range(n)]
    interval = mean_interval(values)
    assert interval is not None
    half = (interval[1] - interval[0]) / 2
    assert half / (statistics.stdev(values) / n**0.5) == pytest.approx(quantile, rel=2e-3)


def test_every_scenario_counts_the_same() -> None:
    found = Evaluation([run(1.0, of="a"), run(None, of="a"), *(run(0.5, of="b") for _ in range(4))])
    assert (found.mean, found.success_rate) == (0.75, 0.5)
    assert found.mean_of(lambda trajectory: trajectory.reward or 0.0) == 0.75
    assert found.interval == mean_interval([1.0, 0.5])
    assert Evaluation([run(0.5, of="b") for _ in range(4)]).interval is None


def test_a_run_that_raised_is_failed_whatever_its_reward_and_never_a_success() -> None:
    found = Evaluation([run(1.0, error="NotFoundError: agent@9"), run(1.0)])
    assert (found.failed, found.successes, found.n, found.mean) == (1, 1, 2, 1.0)
    assert "1 raised" in str(found)


def crashed(of: str, *, answered: bool = True, reward_error: str = "TypeError: no output") -> Trajectory:
    """A run that raised, and whose reward function raised too, because there was no output."""
    failed = run(None, error="ValueError: no JSON", of=of).model_copy(update={"reward_error": reward_error})
    call = CompletionCall(id="c" if answered else None, error=None if answered else "ConnectError", started=0.0)
    return failed.model_copy(update={"completions": [call]})


def test_a_run_that_raised_after_the_policy_answered_is_not_solved_though_it_has_no_reward() -> None:
    easy = [run(1.0, of=f"easy {at}") for at in range(5)]
    measured = Evaluation([*easy, *(crashed(f"hard {at}") for at in range(5))])
    assert (measured.success_rate, measured.mean) == (0.5, 1.0)
    assert measured.success_interval == pytest.approx(wilson(5, 10))
    assert (measured.n, measured.scenarios, measured.failed, measured.unscored) == (10, 10, 5, 0)
    assert measured.by(lambda scenario: [scenario.id.split()[0]]) == {"easy": (5, 5), "hard": (0, 5)}
    better = Evaluation([*easy, *(run(float(at < 2), of=f"hard {at}") for at in range(5))])
    gain = measured.gain_over(better)
    assert gain is not None
    assert gain.mean == pytest.approx(-0.2)


def test_a_run_that_says_nothing_of_the_policy_is_unscored() -> None:
    away, ungraded = crashed("b", answered=False), run(None, of="c").model_copy(update={"reward_error": "it is away"})
    measured = Evaluation([run(1.0, of="a"), away, ungraded])
    assert (measured.success_rate, measured.n, measured.failed, measured.unscored) == (1.0, 1, 1, 2)


def test_a_version_of_which_every_run_crashes_has_no_success() -> None:
    measured = Evaluation([crashed("a"), crashed("b")])
    assert (measured.success_rate, measured.mean, measured.interval) == (0.0, None, None)
    assert str(measured) == "success 0.000 (95 %: 0.000 to 0.658), 2 runs of 2 scenarios, 2 raised"
    measured = Evaluation([run(None), crashed("a", reward_error="").model_copy(update={"reward_error": None})])
    assert (measured.success_rate, measured.unscored) == (None, 2), "nothing scores the runs"


def test_success_may_be_more_than_a_reward() -> None:
    found = Evaluation([run(0.3), run(0.2)], success=lambda trajectory: (trajectory.reward or 0) > 0.25)
    assert (found.successes, found.success_rate) == (1, 0.5)
    assert found.mean_of(lambda trajectory: 2.0 * (trajectory.reward or 0)) == pytest.approx(0.5)


def test_nothing_scored_has_no_rate() -> None:
    found = Evaluation([run(None)])
    assert (found.mean, found.interval, found.success_rate, found.mean_of(lambda t: 1.0)) == (None, None, None, None)
    assert str(found) == "none of 1 runs has a reward"


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    found = Evaluation([run(1.0), run(None, error="ValueError: half a pair \ud83d")], 2)
    found.save(tmp_path / "runs.jsonl")
    back = Evaluation.load(tmp_path / "runs.jsonl", version=2)
    assert back.trajectories == found.trajectories
    assert back.summary() == found.summary()
