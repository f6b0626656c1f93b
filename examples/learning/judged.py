"""A policy that learns a task by the scores of a judge (RULER), beside the one that learned it by the task's reward."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from art_examples.learning.learn import Learned, Learning, as_measured
from art_examples.learning.openai_server import Body, completion, openai_server
from art_examples.learning.task import Grade, Task

from art_langgraph import LLM, Evaluation, Ruler, TrainerClient, TrajectoryGroup

RULES = "written rules"
"""Name of a judge of written rules."""


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
    task: Task, learned: Learned, client: TrainerClient, policy: str, judge: LLM, name: str, tell: Callable[[str], None]
) -> Judged:
    """Trains a copy of the policy as it was before its steps of RL, by the same recipe, with a judge's scores.

    Args:
        task: The task.
        learned: What the policy learned of it.
        client: Client of the trainer server.
        policy: Name of the copy.
        judge: The judge.
        name: Its name.
        tell: As that of `Learning`.
    """
    begun = learned.warm or learned.before
    assert begun is not None
    ruler = Ruler(judge)
    learning = Learning(task, learned.seed, client, policy, tell, learned.shots)
    await learning.fork(begun)
    share, pairs = agreement(await learning.train(group_reward=ruler))
    known = "no pair of runs can be compared" if share is None else f"{share:.2f} of {pairs} pairs of runs"
    tell(f"the judge orders as the reward does: {known}")
    after = await learning.measure("after")
    return Judged(judge=name, agreement=share, pairs=pairs, after=after, usd=ruler.usage.cost)


@asynccontextmanager
async def judge_of_rules(grade: Grade) -> AsyncIterator[LLM]:
    """A judge of written rules, which is asked over HTTP as any other judge is. grade: the rules."""

    async def answer(body: Body) -> Body:
        prompt = next(str(message["content"]) for message in body["messages"] if message["role"] == "user")
        return completion(body["model"], json.dumps(graded(prompt, grade)))

    async with openai_server(answer) as url:
        yield LLM("rules", base_url=url, api_key="none", cache=None)


def graded(prompt: str, grade: Grade) -> dict[str, Any]:
    """The scores of the candidates in a prompt of RULER, as RULER reads them."""
    (fence,) = re.findall(r"^#(\w+) what all candidates begin with$", prompt, flags=re.MULTILINE)[:1]
    text = prompt.split(f"\n#{fence} end\n")[0]  # a run that writes another fence changes nothing
    begun, *rest = re.split(rf"^#{fence} candidate (\d+)$", text, flags=re.MULTILINE)
    return {
        f"candidate_{number}": {"reason": f"by {RULES}", "score": grade(begun, went_on)}
        for number, went_on in zip(rest[::2], rest[1::2], strict=True)
    }


def last_said(transcript: str) -> str:
    """The text of the last message of a transcript, without its label."""
    return re.split(r"^\[[^\]\n]*\]", transcript.strip(), flags=re.MULTILINE)[-1].strip()


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
