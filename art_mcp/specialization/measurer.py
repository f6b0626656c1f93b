"""Measures a version on held-out scenarios, as many as a time allows."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from art_langgraph.loop.evaluate import Evaluation, evaluate
from art_langgraph.loop.rollout import Graph
from art_langgraph.trajectory import Trajectory
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.specialization.settings import RunSettings
from art_mcp.specialization.verify import solved, verify

LEAST = 12
"""Scenarios of a measurement at least, however little time there is."""


@dataclass(slots=True)
class Measurer:
    """Measures versions of a policy at temperature 0, one run of each scenario.

    Args:
        runs: How the agent is run.
        progress: Whether to show progress bars on a terminal.
        cost: Seconds for each scenario, as the last measurement took. None: not known yet.
    """

    runs: RunSettings
    progress: bool
    cost: float | None = None

    async def measure(
        self,
        agent: Graph,
        scenarios: Sequence[MCPScenario],
        version: int,
        seconds: float | None = None,
        on_part: Callable[[int, float], None] = lambda runs, seconds: None,
    ) -> Evaluation:
        """Measures a version on the first scenarios, as many as can be done in the time, and LEAST at least.

        While the cost of a scenario is not known, the first runs are as many as run at the same time. What they took
        tells how many more there is time for.

        Args:
            agent: Asks the policy.
            scenarios: In the order in which they are taken.
            version: Version of the policy.
            seconds: The time. None: all scenarios are measured.
            on_part: Called with the number of runs so far and the seconds that they took.

        Raises:
            RolloutsFailed: Every run failed before the policy answered, or none has a reward.
        """
        began, done = time.monotonic(), list[Trajectory]()
        while len(done) < len(scenarios):
            part = self._part(len(done), len(scenarios), seconds, time.monotonic() - began)
            if not part:
                break
            evaluation = await self._evaluate(agent, scenarios[len(done) : len(done) + part], version)
            done += evaluation.trajectories
            took = time.monotonic() - began
            self.cost = took / len(done)
            on_part(len(done), took)
        return Evaluation(done, version, solved)

    def _part(self, done_count: int, count: int, seconds: float | None, seconds_spent: float) -> int:
        """How many scenarios to run next; 0: there is no time for more."""
        left = count - done_count
        if seconds is None:
            return left
        if self.cost is None:
            return min(left, max(LEAST, self.runs.max_concurrency))
        fitting = int((seconds - seconds_spent) / self.cost)
        if not done_count:
            return min(left, max(LEAST, fitting))
        return min(left, fitting) if fitting >= LEAST else 0

    async def _evaluate(self, agent: Graph, scenarios: Sequence[MCPScenario], version: int) -> Evaluation:
        return await evaluate(
            agent,
            scenarios,
            verify(),
            version=version,
            success=solved,
            max_concurrency=self.runs.max_concurrency,
            timeout=self.runs.timeout,
            progress=self.progress and f"held out, version {version}",
        )


def interleave_sets(sets: Mapping[str, Sequence[MCPScenario]], seed: int) -> list[MCPScenario]:
    """All held-out scenarios in an order of which every beginning has about as many of each set.

    Args:
        sets: The held-out sets.
        seed: Seed of the order within each set.
    """
    shuffled = [
        random.Random(f"{seed}-{name}").sample(list(scenarios), len(scenarios)) for name, scenarios in sets.items()
    ]
    return [scenario for row in zip_longest(*shuffled) for scenario in row if scenario is not None]
