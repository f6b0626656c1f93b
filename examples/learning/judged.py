"""A policy that learns a task by the scores of a judge (RULER), beside the one that learned it by the task's reward."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from art_examples.learning.learn import Learned, Learning, as_measured
from art_examples.learning.task import Task

from art_langgraph import Evaluation, Ruler, TrainerClient, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a policy learned by a judge.

    Args:
        judge: Name of the judge.
        agreement: See `agreement`. None: there is no pair to compare.
        pairs: Number of pairs that were compared.
        after: The policy after the training. It is measured by the task's reward.
        usd: What the judge cost in USD. None: the price of an answer is not known.
    """

    judge: str
    agreement: float | None
    pairs: int
    after: Evaluation
    usd: float | None

    def as_json(self) -> dict[str, Any]:
        """The results as JSON."""
        return {
            "judge": self.judge,
            "agreement": self.agreement,
            "pairs": self.pairs,
            "after": as_measured(self.after),
            "usd": self.usd,
        }


async def learn_by_judge(
    task: Task, learned: Learned, client: TrainerClient, policy: str, judge: str, tell: Callable[[str], None]
) -> Judged:
    """Trains a copy of the policy as it was before its steps of RL, by the same recipe, with a judge's scores.

    Args:
        task: The task.
        learned: What the policy learned of it.
        client: Client of the trainer server.
        policy: Name of the copy.
        judge: The judge, as litellm knows it.
        tell: As that of `Learning`.
    """
    begun = learned.warm or learned.before
    assert begun is not None
    ruler = Ruler(judge)
    learning = Learning(task, learned.seed, client, policy, tell)
    await learning.fork(begun)
    share, pairs = agreement(await learning.train(group_reward=ruler))
    tell(f"the judge orders pairs of runs as the reward does: {share}, of {pairs}")
    after = await learning.measure("after")
    return Judged(judge=judge, agreement=share, pairs=pairs, after=after, usd=ruler.usage.cost)


def agreement(groups: Iterable[TrajectoryGroup]) -> tuple[float | None, int]:
    """How often a judge orders two runs of a scenario as their rewards do.

    Args:
        groups: Runs that have the judge's score as their reward, and the task's reward in `independent_reward`.

    Returns:
        The share of the pairs with unequal rewards that the judge orders alike, where equal scores count half; and the
        number of these pairs. None: there is none.
    """
    alike = list[float]()
    for group in groups:
        scored = [
            (run.metrics["independent_reward"], run.reward)
            for run in group.trajectories
            if run.reward is not None and "independent_reward" in run.metrics
        ]
        for (reward, score), (other_reward, other_score) in combinations(scored, 2):
            if reward != other_reward:
                same = (score > other_score) == (reward > other_reward)
                alike.append(0.5 if score == other_score else float(same))
    return (sum(alike) / len(alike) if alike else None), len(alike)
