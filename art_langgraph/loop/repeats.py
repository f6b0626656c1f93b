"""What several runs of the same scenarios tell: pass@k, best of k, the majority, and how much of it is chance."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from art_langgraph.trajectory import Trajectory
from trainer_server.common.estimators import best_of, chance, difficulty, pass_at, sizes

Answer = Callable[[Trajectory], Hashable | None]
"""What a run answered, as a value that is equal for equal answers. None: it has no answer, and no vote."""


def final_answer(trajectory: Trajectory) -> str | None:
    """The last text of a run, without case, full stop and line breaks. None: it has none, or raised."""
    text = " ".join(trajectory.final_text.casefold().split()).rstrip(".!")
    return text if text and trajectory.error is None else None


class Vote(NamedTuple):
    """A run with an answer."""

    answer: Hashable
    success: bool


@dataclass(frozen=True, slots=True)
class ScenarioOutcome:
    """What the runs of a scenario came to.

    Args:
        scenario: Its id.
        runs: Runs that enter the success rate.
        successes: How many of them succeeded.
        rewards: Of the runs that have one.
        votes: Of the runs with an answer.
    """

    scenario: str
    runs: int
    successes: int
    rewards: Sequence[float]
    votes: Sequence[Vote]

    @property
    def variance(self) -> float | None:
        """Variance of the rewards, over n − 1. 0: chance decides nothing. None: there are fewer than two."""
        return statistics.variance(self.rewards) if len(self.rewards) > 1 else None

    @property
    def majority(self) -> float:
        """Success of the most frequent answer: the share of successes among the runs that gave it. Answers that are
        equally frequent count the same; without any answer it is 0."""
        by_answer: dict[Hashable, list[bool]] = {}
        for vote in self.votes:
            by_answer.setdefault(vote.answer, []).append(vote.success)
        most = max(map(len, by_answer.values()), default=0)
        return statistics.fmean(
            [statistics.fmean(successes) for successes in by_answer.values() if len(successes) == most] or [0.0]
        )

    def summary(self) -> dict[str, Any]:
        """The numbers as JSON."""
        mean = statistics.fmean(self.rewards) if self.rewards else None
        numbers = {"runs": self.runs, "successes": self.successes, "mean": mean, "variance": self.variance}
        return {"scenario": self.scenario, **numbers}


@dataclass(frozen=True, slots=True)
class Repeats:
    """What several runs of each scenario tell, as means over the scenarios.

    Args:
        n: Runs of a scenario: the fewest that one has.
        pass_at: By k (1, 2, 4, … n): probability that one of k runs succeeds; pass@1 is the success rate.
        best_of: By k, the expected greatest reward of k runs. Empty: a scenario has fewer than n rewards.
        majority: Success of the most frequent answer. None: no two runs of any scenario gave the same answer, so that
            answers cannot be compared.
        within: Variance of the success among the runs of a scenario: what is chance.
        between: Variance of the success rate between scenarios, without that part: how much they differ in difficulty.
    """

    n: int
    pass_at: Mapping[int, float]
    best_of: Mapping[int, float]
    majority: float | None
    within: float
    between: float

    @classmethod
    def of(cls, scenarios: Sequence[ScenarioOutcome]) -> Repeats | None:
        """What these runs tell. None: a scenario has fewer than two runs, or there is no scenario."""
        n = min((outcome.runs for outcome in scenarios), default=0)
        if n < 2:
            return None
        counts = [(outcome.runs, outcome.successes) for outcome in scenarios]
        rewarded = min(len(outcome.rewards) for outcome in scenarios) >= n
        comparable = any(len(set(answers)) < len(answers) for answers in map(_answers, scenarios))
        return cls(
            n=n,
            pass_at={k: statistics.fmean(pass_at(k, *count) for count in counts) for k in sizes(n)},
            best_of={
                k: statistics.fmean(best_of(k, outcome.rewards) for outcome in scenarios)
                for k in (sizes(n) if rewarded else ())
            },
            majority=statistics.fmean(outcome.majority for outcome in scenarios) if comparable else None,
            within=chance(counts),
            between=difficulty(counts),
        )

    def summary(self) -> dict[str, Any]:
        """The numbers as JSON."""
        return {
            "n": self.n,
            "pass_at": {str(k): value for k, value in self.pass_at.items()},
            "best_of": {str(k): value for k, value in self.best_of.items()},
            "majority": self.majority,
            "variance": {"within": self.within, "between": self.between},
        }

    def __str__(self) -> str:
        parts = [f"pass@{k} {value:.3f}" for k, value in self.pass_at.items() if k > 1]
        parts += [] if self.majority is None else [f"majority of {self.n} {self.majority:.3f}"]
        return ", ".join(parts)


def _answers(outcome: ScenarioOutcome) -> list[Hashable]:
    return [vote.answer for vote in outcome.votes]
