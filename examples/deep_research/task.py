"""The task: a report with what is asked of each island. Planner, searchers and writer have rewards of their own."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from art_examples.deep_research.agent import PLANNER, SEARCHER, WRITER, Finding, build_graph, to_searcher, to_writer
from art_examples.deep_research.corpus import Question, draw, search
from art_examples.learning.task import BRIEF_IMITATION, Recipe, Task, chat

from art_langgraph import Conversation, GRPOConfig, NodeRewards, Scenario, Trajectory

SHOWN = 48
"""Number of questions that demonstrations are made of."""
RECIPE = Recipe(
    warm_start=BRIEF_IMITATION,
    config=GRPOConfig(lr=3e-4),
    steps=10,
    falling=True,
)


@asynccontextmanager
async def deep_research(seed: int = 0) -> AsyncIterator[Task]:
    """The task for a seed. No island and no wording of a held-out question is in training."""
    rng, held_out = random.Random(f"deep-research-{seed}"), random.Random("deep-research-held-out")
    shown = [draw(rng, held_out=False) for _ in range(SHOWN)]
    yield Task(
        name="deep_research",
        graph=build_graph,
        training=[scenario(draw(rng, held_out=False)) for _ in range(160)],
        held_out=[scenario(draw(held_out, held_out=True)) for _ in range(96)],
        demonstrations=[conversation for question in shown for conversation in demonstrations(question)],
        reward=reward,
        success=success,
        max_tokens=48,
        recipe=RECIPE,
    )


def scenario(question: Question) -> Scenario:
    """The scenario of a question."""
    return Scenario(input={"question": question.text}, metadata={"kind": question.kind, "wanted": question.wanted})


def demonstrations(question: Question) -> list[Conversation]:
    """What the planner, each searcher and the writer say."""
    queries = {f"{question.kind} of {island}": value for island, value in question.wanted.items()}
    findings = [Finding(query=query, title=search(query).title, text=value) for query, value in queries.items()]
    report = "; ".join(f"{island}: {value}" for island, value in question.wanted.items())
    return [
        chat(PLANNER, question.text, "; ".join(queries)),
        *(chat(SEARCHER, to_searcher(query), value) for query, value in queries.items()),
        chat(WRITER, to_writer(findings), report),
    ]


def reward(trajectory: Trajectory) -> NodeRewards:
    """Rewards by node. Each searcher has one of its own, from 0 to 1, for its completion: whether its words are what
    its document says. The others have 0.5 each:

    - planner: How far the searches are those that are needed: twice the number of islands whose document was found, by
      that of searches and islands.
    - writer: The share of the findings that the report repeats, of which an empty one has nothing to repeat. A writer
      is not blamed for what searchers said.
    """
    state, wanted = trajectory.output, trajectory.scenario.metadata["wanted"]
    kind, findings = trajectory.scenario.metadata["kind"], state.get("findings", [])
    for call in trajectory.completions:
        if call.node == "searcher" and call.branch is not None:
            call.reward = float(_right(findings[call.branch]))
    needed = {search(f"{kind} of {island}").title for island in wanted}
    found = needed & {finding["title"] for finding in findings if kind in finding["query"]}
    report = state.get("report", "")
    repeated = [finding for finding in findings if finding["text"] and finding["text"] in report]
    return NodeRewards(
        planner=len(found) / (len(state["queries"]) + len(needed)),
        writer=0.5 * len(repeated) / len(findings) if findings else 0.0,
    )


def _right(finding: Finding) -> bool:
    """Whether a searcher said what its document says about the first word of the search: "exports of Korvala"."""
    kind = finding["query"].partition(" ")[0]
    stated = re.search(rf"The {re.escape(kind)} (?:is|are|was) ([^.]+)\.", str(search(finding["query"])))
    return stated is not None and finding["text"] == stated[1]


def success(trajectory: Trajectory) -> bool:
    """Whether the report has what is asked of each island, and nothing else."""
    wanted = {f"{island}: {value}" for island, value in trajectory.scenario.metadata["wanted"].items()}
    return {line.strip() for line in trajectory.output.get("report", "").split(";")} == wanted
