"""Evaluations made by hand: which scenarios a version solved."""

from __future__ import annotations

from collections.abc import Iterable

from art_langgraph import Evaluation, Scenario, Trajectory


def evaluation(solved: Iterable[int], of: int = 20, version: int = 0) -> Evaluation:
    """A run of each of `of` scenarios. solved: numbers of those that succeeded."""
    won = set(solved)
    runs = [
        Trajectory(scenario=Scenario(id=f"held-{at}", input=f"held {at}"), reward=float(at in won), evaluation=True)
        for at in range(of)
    ]
    return Evaluation(runs, version)
