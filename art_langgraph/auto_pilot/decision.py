"""Whether a candidate version takes over: a gate, a share of the rollouts, and a sequential test. Pure functions.

The comparison is looked at after every rollout, for as long as it takes. A test for a fixed number of runs would find a
difference sooner or later where there is none. The one here holds at any time: it is an e-process, the likelihood of
the successes under a mixture of all success rates (Beta(1/2, 1/2), as Krichevsky and Trofimov 1981) over their highest
likelihood under the hypothesis. If the hypothesis is true, this ratio ever exceeds 1/α with probability α at most
(Ville's inequality; Ramdas et al. 2023, arXiv:2210.01948).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from art_langgraph.auto_pilot.options import CanaryRules
from art_langgraph.loop.evaluate import SuccessGain
from trainer_server.wire import ConfigError


class Verdict(StrEnum):
    """What becomes of a candidate."""

    promote = "promote"
    roll_back = "roll_back"
    wait = "wait"
    """Nothing is decided yet: more rollouts are needed."""
    abandon = "abandon"
    """Somebody promoted a version by hand meanwhile. The candidate is served no longer, and nothing is promoted."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict, and why."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How the rollouts of a version ended, since the candidate is served beside it.

    Args:
        successes: Rollouts that succeeded.
        runs: Rollouts that were scored.
    """

    successes: int
    runs: int

    def __post_init__(self) -> None:
        if not 0 <= self.successes <= self.runs:
            raise ConfigError(f"{self.successes} successes of {self.runs} runs: there are more successes than runs")

    @property
    def rate(self) -> float | None:
        """Share of successes; None without runs."""
        return self.successes / self.runs if self.runs else None

    def __str__(self) -> str:
        rate = self.rate
        return f"{self.successes} of {self.runs}" + ("" if rate is None else f" ({rate:.3f})")


def gate(gain: SuccessGain | None, rules: CanaryRules = CanaryRules()) -> Decision:
    """Whether a candidate may be served at all, by its success on the gate's scenarios.

    Args:
        gain: The candidate's evaluation against that of the promoted version, on the same scenarios.
        rules: The tolerance.

    Returns:
        `wait`: it is served to its share of the rollouts. `roll_back`: it is not.
    """
    if gain is None:
        return Decision(Verdict.roll_back, "the gate has no scenario that both versions were scored on")
    if gain.mean < -rules.tolerance:
        return Decision(Verdict.roll_back, f"on the gate it gains {gain}, and {-rules.tolerance:+.3f} is the least")
    return Decision(Verdict.wait, f"on the gate it gains {gain}")


def decide(
    candidate: Outcomes,
    champion: Outcomes,
    rules: CanaryRules = CanaryRules(),
    *,
    expected_version: int | None = None,
    promoted_version: int | None = None,
) -> Decision:
    """What becomes of a candidate, by the rollouts that both versions had side by side.

    It may be asked after every rollout.

    Args:
        candidate: Of the candidate.
        champion: Of the promoted version, in the same time: success may depend on when somebody asks.
        rules: When it is decided.
        expected_version: The version that the candidate is compared with.
        promoted_version: The version that is promoted now. Another one than `expected_version` was promoted by hand,
            and stays.
    """
    if promoted_version != expected_version:
        return Decision(
            Verdict.abandon,
            f"version {promoted_version} was promoted while the candidate was compared with version "
            f"{expected_version}: what was promoted by hand stays",
        )
    counts = f"candidate {candidate}, promoted {champion}"
    if candidate.runs < rules.least:
        return Decision(Verdict.wait, f"{counts}: {rules.least} runs of the candidate are the least")
    threshold = -math.log(rules.alpha)
    better, worse = evidence(candidate, champion), evidence(champion, candidate)
    if better >= threshold:
        return Decision(Verdict.promote, f"{counts}: it is better (e-value {_odds(better)}, α = {rules.alpha:g})")
    if worse >= threshold:
        return Decision(Verdict.roll_back, f"{counts}: it is worse (e-value {_odds(worse)}, α = {rules.alpha:g})")
    if candidate.runs >= rules.most:
        return Decision(Verdict.roll_back, f"{counts}: after {rules.most} runs it is not shown to be better")
    return Decision(Verdict.wait, f"{counts}: no difference beyond chance yet")


def evidence(challenger: Outcomes, other: Outcomes) -> float:
    """The logarithm of the e-value against the hypothesis that `challenger` succeeds at most as often as `other`.

    Args:
        challenger: Of the version that may be better.
        other: Of the other.
    """
    if challenger.rate is None or other.rate is None or challenger.rate <= other.rate:
        highest = _log_likelihood(challenger, challenger.rate) + _log_likelihood(other, other.rate)
    else:  # of the pairs of rates that the hypothesis admits, the likeliest has both equal
        common_rate = (challenger.successes + other.successes) / (challenger.runs + other.runs)
        highest = _log_likelihood(challenger, common_rate) + _log_likelihood(other, common_rate)
    return _log_mixture(challenger) + _log_mixture(other) - highest


def _log_mixture(outcomes: Outcomes) -> float:
    """Log-likelihood of a sequence of successes and failures, averaged over all rates by Beta(1/2, 1/2)."""
    failures = outcomes.runs - outcomes.successes
    return _log_beta(outcomes.successes + 0.5, failures + 0.5) - _log_beta(0.5, 0.5)


def _log_likelihood(outcomes: Outcomes, rate: float | None) -> float:
    """Log-likelihood of the same sequence at one rate."""
    failures = outcomes.runs - outcomes.successes
    won = outcomes.successes * math.log(rate) if outcomes.successes and rate else 0.0
    return won + (failures * math.log1p(-rate) if failures and rate else 0.0)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _odds(log_value: float) -> str:
    return f"{math.exp(min(log_value, 700)):.3g}"
