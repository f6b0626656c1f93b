"""Whether the runs of a training step are of use: a first step of no use is an error, a later one may pass."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from art_langgraph.client.client import TrainerClient
from art_langgraph.credit import RetryCredit
from art_langgraph.loop.failures import RolloutsFailed, answered, check_completions, check_rewards, check_runs, runs_of
from art_langgraph.trajectory import TrajectoryGroup
from trainer_server.wire import ServerError, ServerUnreachable

log = logging.getLogger("art_langgraph")

WASTED = 3
"""Steps of no use in a row that end the training."""


@dataclass(slots=True)
class StepCheck:
    """Looks at the runs of one training step after another.

    A first step of no use is the user's mistake: the graph, the reward or the policy's name. A later one is bad luck
    until `WASTED` of them follow one another.

    Args:
        policy: Name of the policy that is trained.
        nodes: Patterns of the node paths to train; None: all.
        retry_credit: Whether attempts of a node before an error retry are trained ("train") or left out ("drop").
        rewards_count: Whether runs are trained by their rewards. Otherwise they need none.
    """

    policy: str
    nodes: Sequence[str] | None
    retry_credit: RetryCredit
    rewards_count: bool = True
    began: bool = False
    """Whether a step was checked before."""
    useless_steps: int = 0
    """Steps of no use until now, without one of use between them."""

    def unanswered(self, groups: Sequence[TrajectoryGroup]) -> bool:
        """Whether the trainer server answered in no run of a later step: the step should be rolled once more."""
        return self.began and not any(map(answered, runs_of(groups)))

    def of_use(self, step: int, groups: Sequence[TrajectoryGroup]) -> bool:
        """Whether a step can learn from its runs. A warning says why it cannot.

        Args:
            step: Number of the step.
            groups: Its runs.

        Raises:
            RolloutsFailed: It cannot, and it is the first, or the last of `WASTED` in a row, or the trainer server
                answered in none of its runs.
        """
        first, self.began = not self.began, True
        try:
            check_runs(groups, answered_counts=False)
            if self.rewards_count:
                check_rewards(groups)
            check_completions(groups, policy=self.policy, nodes=self.nodes, retry_credit=self.retry_credit)
        except RolloutsFailed as error:
            self.useless_steps += 1
            if first or not any(map(answered, error.trajectories)):
                raise
            if self.useless_steps == WASTED:
                message = f"{WASTED} steps in a row can learn nothing; step {step}: {error}"
                raise RolloutsFailed(message, trajectories=error.trajectories) from None
            log.warning("step %d can learn nothing, and the training goes on: %s", step, error)
            return False
        self.useless_steps = 0
        return True

    def check_added(self, step: int, groups: Sequence[TrajectoryGroup]) -> None:
        """Warns of runs that raised among those that were added to a step.

        Args:
            step: Number of the step.
            groups: The added runs.
        """
        try:
            check_runs(groups)
        except RolloutsFailed as error:
            log.warning("step %d, scenarios in place of those that teach nothing: %s", step, error)


async def wait_until_ready(client: TrainerClient, patience: float) -> bool:
    """Waits until the trainer server can answer completions.

    Args:
        client: The trainer server.
        patience: Seconds to wait.

    Returns:
        Whether it can.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            while True:
                with suppress(ServerError, ServerUnreachable):
                    if (await client.health())["ready"]:
                        return True
                await asyncio.sleep(1)
    return False
