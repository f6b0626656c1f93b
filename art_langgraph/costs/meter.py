"""CostMeter: adds up what a training costs, by step, scenario and model."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from art_langgraph.costs.cost import Cost
from art_langgraph.costs.price import GPUPrice
from art_langgraph.costs.tokens import Tokens
from art_langgraph.llm.spending import current_spending
from art_langgraph.trajectory import Trajectory
from trainer_server.wire import ServerError, ServerUnreachable

_MOST_SCENARIOS = 20
"""Scenarios in a summary."""


class ScenarioCost(NamedTuple):
    """What the runs of a scenario cost."""

    runs: int
    tokens: Tokens
    seconds: float
    """Of all runs together. Runs are made at the same time, so this is more than the wall time."""


@dataclass(slots=True)
class RunCost:
    """What a training has cost until now.

    Args:
        total: Everything together.
        models: Tokens by model: policies by their names, and other models of the graph. Those of other servers have a
            price that is not in `total`.
        scenarios: By the id of the scenario.
        others: Which of the models are no policies of the trainer server.
        gain: Success on held-out scenarios now, less that of the beginning. None: it is not measured.
    """

    total: Cost = field(default_factory=Cost)
    models: dict[str, Tokens] = field(default_factory=dict)
    scenarios: dict[str, ScenarioCost] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    gain: float | None = None

    @property
    def gain_per_usd(self) -> float | None:
        """Held-out success gained for a dollar; None: gain or dollars are not known, or nothing was paid."""
        return self.gain / self.total.usd if self.gain is not None and self.total.usd else None

    def summary(self) -> dict[str, Any]:
        """The numbers as JSON, with the scenarios that read and wrote most."""
        most = sorted(self.scenarios.items(), key=lambda item: -(item[1].tokens.prompt + item[1].tokens.sampled))
        return {
            **self.total.summary(),
            "gain": self.gain,
            "gain_per_usd": self.gain_per_usd,
            "models": {name: tokens.summary() for name, tokens in self.models.items()},
            "unpriced_models": sorted(self.others),
            "scenarios": {
                name: {"runs": cost.runs, "seconds": cost.seconds, "tokens": cost.tokens.summary()}
                for name, cost in most[:_MOST_SCENARIOS]
            },
        }

    def __str__(self) -> str:
        parts = [f"cost: {self.total}"]
        if self.gain is not None:
            parts.append(f"held-out success {self.gain:+.3f}{self._per_usd()}")
        if self.others:
            parts.append(f"not priced: calls of {', '.join(sorted(self.others))} in the graph")
        return "; ".join(parts)

    def _per_usd(self) -> str:
        if (rate := self.gain_per_usd) is not None:
            return f", {rate:+.3f} per USD"
        return "" if self.total.usd == 0 else ", per USD unknown"


class CostMeter:
    """Adds up what a training costs, from its beginning.

    Args:
        health: Asks the server for its GPUs and their price; called in the first step.

    Raises:
        ConfigError: `ART_GPU_HOUR_PRICE` is no price.
    """

    def __init__(self, health: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        self._health = health
        self._here = GPUPrice.of({})
        self._price: GPUPrice | None = None
        self._spent = current_spending()
        self._began = self._last = time.monotonic()
        self._since = time.time()
        self._counted: set[str] = set()
        self.run = RunCost()

    async def step(
        self, runs: Iterable[Trajectory], trained_tokens: int | None, success: tuple[float | None, float | None]
    ) -> Cost:
        """What was paid since the last step, or since the beginning.

        Args:
            runs: The runs of the step and of evaluations. Those that were made before the beginning, or counted in an
                earlier step, are left out.
            trained_tokens: Tokens that the trainer computed. None: it took no step.
            success: Held-out success at the beginning, and now. None: it is not measured.
        """
        price = self._price = self._price or await self._read_price()
        new_runs = {run.id: run for run in runs if run.started >= self._since and run.id not in self._counted}.values()
        self._counted.update(run.id for run in new_runs)
        now, judges, before = time.monotonic(), current_spending(), self._spent
        seconds, self._last, self._spent = now - self._last, now, judges
        cost = Cost(
            runs=len(new_runs),
            tokens=Tokens.of(new_runs) + Tokens(trained=trained_tokens),
            seconds=seconds,
            gpu_hours=price.hours(seconds),
            gpu_usd=price.usd(seconds),
            judge_usd=judges.usd - before.usd if judges.unpriced_count == before.unpriced_count else None,
        )
        self.run.total += cost
        for run in new_runs:
            self._add(run)
        first, newest = success
        if first is not None and newest is not None:
            self.run.gain = newest - first
        return cost

    async def _read_price(self) -> GPUPrice:
        """What the server says. One that does not say it ends no training: then it is not known."""
        try:
            return GPUPrice.of(await self._health())
        except (ServerError, ServerUnreachable):
            return self._here

    def _add(self, run: Trajectory) -> None:
        cost = self.run.scenarios.get(run.scenario.id, ScenarioCost(0, Tokens(), 0.0))
        self.run.scenarios[run.scenario.id] = ScenarioCost(
            cost.runs + 1, cost.tokens + Tokens.of([run]), cost.seconds + run.seconds
        )
        for call in run.completions:
            name = call.policy or call.model or "unknown"
            self.run.models[name] = self.run.models.get(name, Tokens()) + Tokens.of_call(call)
            if call.id is None and call.message is not None and not call.cached:
                self.run.others.add(name)
