"""Selection: the version is taken that is best on scenarios that were put aside for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from art_langgraph.loop.evaluate import Evaluation
from art_langgraph.loop.failures import RolloutsFailed
from art_mcp.specialization.context import RunContext
from art_mcp.specialization.measurement import PairedGain
from art_mcp.specialization.stage_runner import Stage

_FEWEST = 8
"""Scenarios on which versions are compared, at least. Fewer tell nothing."""


@dataclass
class Selection(Stage):
    """Compares the last version with that before the training."""

    context: RunContext
    name = "selection"

    @property
    def weight(self) -> float:
        """None if the last version is taken in any case."""
        return 4.0 if self.context.options.training.keep_best else 0.0

    def skip_reason(self) -> str | None:
        """There is one version, or the last one is taken in any case, or there is no time, or no scenario."""
        last = self.context.outcome.version
        if not self.context.options.training.keep_best or last == self.context.before_training.version:
            return ""
        if not self._count:
            return f"version {last} is the last one: there was no time, or no scenario, to compare it"
        return None

    async def skip(self, why: str) -> None:
        """Takes the last version."""
        self.context.outcome.selection = why or f"version {self.context.outcome.version} is the last one"
        await self._promote()

    async def run(self) -> None:
        """Measures the versions that the training has not measured, and takes the best one."""
        context, outcome, runner = self.context, self.context.outcome, self.context.runner
        evaluations, last = context.selection_evaluations, outcome.version
        if self._count < len(context.selection):  # others were measured on more scenarios, so they cannot be compared
            evaluations.clear()
        about = f"comparing versions on {self._count} scenarios put aside for it"
        with runner.stage(self.name, about) as record:
            for version in (context.before_training.version, last):
                if version not in evaluations:
                    await self._measure(version)
            outcome.version, outcome.selection = select_version(evaluations, last)
            runs = [run for evaluation in evaluations.values() for run in evaluation.trajectories]
            record.facts |= {
                "version": outcome.version,
                "why": outcome.selection,
                "rates": {str(version): evaluation.success_rate for version, evaluation in evaluations.items()},
            }
            record.add_runs(runs)
            runner.on_stage(outcome.selection)
            await self._promote()

    async def restore(self, end: Mapping[str, Any]) -> None:
        """Takes the version that was chosen."""
        self.context.outcome.version, self.context.outcome.selection = end["version"], end["why"]

    @cached_property
    def _count(self) -> int:
        """How many scenarios there is time for, for two versions. 0: too few to tell anything."""
        count = len(self.context.selection)
        seconds, cost = self.context.runner.budget.allows(self.name), self.context.measurer.cost
        if seconds is not None and cost:
            count = min(count, int(seconds / (2 * cost)))
        return count if count >= _FEWEST else 0

    async def _measure(self, version: int) -> None:
        context = self.context
        try:
            context.selection_evaluations[version] = await context.measurer.measure(
                context.agent, context.selection[: self._count], version
            )
        except RolloutsFailed as error:
            context.runner.remark(f"comparing {version}", f"version {version} could not be compared: {error}")

    async def _promote(self) -> None:
        """Lets the policy's name mean the version that is taken, unless somebody has promoted another one."""
        outcome, trainer = self.context.outcome, self.context.trainer
        policy = await trainer.policy(outcome.policy)
        if outcome.version == (policy.latest if policy.promoted is None else policy.promoted):
            return
        if policy.promoted is None:
            await trainer.promote(outcome.policy, outcome.version)
        else:
            why = f"version {policy.promoted} is promoted, and stays so; `art-langgraph promote {outcome.model}`"
            self.context.runner.remark("promoted", why)


def select_version(evaluations: Mapping[int, Evaluation], last: int) -> tuple[int, str]:
    """The version to take, and why: the one that solved most selection scenarios.

    Of several it is the one with the greatest mean reward, and of these the newest. The last version has no advantage:
    a training that was too short, or too fast, leaves a worse one than it began with.

    Args:
        evaluations: An evaluation on the same scenarios for each version.
        last: The last version.
    """
    if last not in evaluations or len(evaluations) < 2:
        return last, f"version {last} is the last one; it could not be compared"
    best = max(evaluations, key=lambda version: (*_success(evaluations[version]), version))
    if best == last:
        return last, f"no other version was better than the last one, {last}, on the selection scenarios"
    gain = PairedGain.of(evaluations[best], evaluations[last])
    if gain is not None and (more := gain.better - gain.worse):
        why = f"version {best} solved {more} more of {gain.scenarios} selection scenarios than the last version, {last}"
        return best, why
    return best, f"version {best} solved as many selection scenarios as the last version, {last}, with more reward"


def _success(evaluation: Evaluation) -> tuple[float, float]:
    return evaluation.success_rate or 0.0, evaluation.mean or 0.0
