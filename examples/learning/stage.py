"""A stage of a learner that has no `Task`: an agent is measured on held-out scenarios, and the result is noted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import fmean

from art_examples.learning.learn import CONCURRENCY, Learned
from art_examples.learning.runs import Run

from art_langgraph import Scenario, evaluate
from art_langgraph.loop.evaluate import Success
from art_langgraph.loop.rollout import Graph
from art_langgraph.rewards import RewardFunction

STAGES = ("before", "prompted", "warm", "after")


async def measure_stage(
    stage: str,
    graph: Graph,
    scenarios: Sequence[Scenario],
    reward: RewardFunction,
    success: Success,
    run: Run,
    learned: Learned,
) -> None:
    """Measures an agent at temperature 0 on as many scenarios as the options of the run say.

    Args:
        stage: One of STAGES, in which the agent asks the newest version of the run's policy; or the name of another
            model, which it asks in its place.
        graph: The agent.
        scenarios: The held-out scenarios.
        reward: Scores a run of the agent.
        success: Whether a scored run solved its scenario.
        run: The run, which names the policy.
        learned: Gets the result and the seconds.
    """
    started = time.monotonic()
    asks_policy = stage in STAGES
    version = {run.policy: (await run.client.policy(run.policy)).latest} if asks_policy else None
    evaluation = await evaluate(
        graph,
        scenarios[: run.options.held_out],
        reward,
        version=version,
        success=success,
        temperature=0.0 if asks_policy else None,
        max_concurrency=CONCURRENCY,
        progress=False,
    )
    if asks_policy:
        setattr(learned, stage, evaluation)
    else:
        learned.models[stage] = evaluation
    learned.seconds[stage] = time.monotonic() - started
    run.tell(f"{stage}: {evaluation}")


def mean_score(scores: Sequence[float]) -> float | None:
    """The mean reward of a training step, for `Learned.rewards`. None: no run of the step has a reward."""
    return fmean(scores) if scores else None
