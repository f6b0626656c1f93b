"""The task: that the workers who know what is asked are called, each once, and that they answer rightly."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from art_examples.learning.task import BRIEF_IMITATION, Recipe, Task, chat, solved, weighted_parts
from art_examples.multi_agent.agent import DONE, SUPERVISOR, WORKER, build_graph, note, report
from art_examples.multi_agent.orders import Order, draw

from art_langgraph import Conversation, GRPOConfig, Scenario, Trajectory

WEIGHTS = {"workers": 0.3, "facts": 0.2, "done": 0.1, "success": 0.4}
SHOWN = 64
"""Number of orders that demonstrations are made of."""
RECIPE = Recipe(
    warm_start=BRIEF_IMITATION,
    config=GRPOConfig(lr=4e-4),
    steps=10,
)


@asynccontextmanager
async def multi_agent(seed: int = 0) -> AsyncIterator[Task]:
    """The task for a seed. Numbers and wordings of held-out questions are not in training."""
    rng, held_out = random.Random(f"multi-agent-{seed}"), random.Random("multi-agent-held-out")
    shown = [draw(rng, held_out=False) for _ in range(SHOWN)]
    yield Task(
        name="multi_agent",
        graph=build_graph,
        training=[scenario(draw(rng, held_out=False)) for _ in range(160)],
        held_out=[scenario(draw(held_out, held_out=True)) for _ in range(96)],
        demonstrations=[conversation for order in shown for conversation in demonstrations(order)],
        reward=weighted_parts(WEIGHTS, parts),
        success=solved,
        max_tokens=8,
        recipe=RECIPE,
        nodes=("supervisor",),
    )


def scenario(order: Order) -> Scenario:
    """The scenario of a question about an order."""
    return Scenario(input={"question": order.question, "facts": order.facts}, metadata={"wanted": list(order.wanted)})


def demonstrations(order: Order) -> list[Conversation]:
    """What supervisor and workers say, one after another."""
    made, said = list[Conversation](), list[tuple[str, str]]()
    for worker in order.wanted:
        fact = order.facts[worker]
        made.append(chat(SUPERVISOR, report(order.question, said), worker))
        made.append(chat(WORKER, note(order.question, fact), fact))
        said.append((worker, fact))
    return [*made, chat(SUPERVISOR, report(order.question, said), DONE)]


def parts(trajectory: Trajectory) -> dict[str, float]:
    """The parts of the reward, each from 0 to 1.

    - workers: How far the calls are those that are wanted: twice the number of right calls, by that of all calls and
      wanted ones. A worker who is called again is called wrongly.
    - facts: The share of the wanted facts that their workers said.
    - done: Whether the supervisor said that nothing is missing, after a worker at least.
    - success: Whether just the wanted workers were called, with all facts, and the supervisor said so.
    """
    state, wanted = trajectory.output, set(trajectory.scenario.metadata["wanted"])
    said = [(worker, text) for worker, text in state.get("said", [])]
    right = {worker for worker, _ in said} & wanted
    facts = {worker for worker, text in said if worker in wanted and text == state["facts"][worker]}
    done = state["chosen"] == DONE and bool(said)
    return {
        "workers": 2 * len(right) / (len(said) + len(wanted)),
        "facts": len(facts) / len(wanted),
        "done": float(done),
        "success": float(done and facts == wanted and len(said) == len(wanted)),
    }
