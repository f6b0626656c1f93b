"""What a run of an agent takes."""

from __future__ import annotations

from art_examples.learning.spent import run_costs

from art_langgraph import Evaluation, Scenario, Trajectory
from art_langgraph.trajectory import CompletionCall


def run(*tokens: int | None, seconds: float) -> Trajectory:
    calls = [
        CompletionCall(id=None, message={"role": "assistant"}, prompt_tokens=count, sampled_tokens=1, started=0.0)
        for count in tokens
    ]
    return Trajectory(scenario=Scenario(input=f"{tokens}"), completions=calls, reward=1.0, seconds=seconds)


def test_means_over_runs() -> None:
    measured = Evaluation([run(9, 19, seconds=2.0), run(29, 39, 49, 59, seconds=4.0)])
    assert run_costs(measured, 0.5) == {"turns": 3.0, "tokens": (30 + 180) / 2, "seconds": 3.0, "usd": 0.25}


def test_wrong_answers_are_told_apart_from_silence() -> None:
    measured = Evaluation([run(9, seconds=1.0), run(9, seconds=2.0)])
    assert run_costs(measured, None, lambda made: made.seconds > 1)["wrong"] == 0.5


def test_what_is_not_known_is_none() -> None:
    measured = Evaluation([run(9, seconds=1.0), run(None, seconds=1.0)])
    assert run_costs(measured, None) == {"turns": 1.0, "tokens": None, "seconds": 1.0, "usd": None}
