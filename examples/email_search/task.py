"""The task: the answer that is valid, and the email that says so."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from art_examples.email_search import mail_server
from art_examples.email_search.agent import SYSTEM, build_graph
from art_examples.email_search.emails import Question, grade, make, questions, read, search, write
from art_examples.learning.task import IMITATION, Recipe, Task, called, says, solved, weighted_parts
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from art_langgraph import Conversation, GRPOConfig, Scenario, Trajectory
from art_mcp import connect

WEIGHTS = {"found": 0.1, "read": 0.15, "source": 0.15, "success": 0.6}
SHOWN = 96
"""Number of demonstrations."""
RECIPE = Recipe(
    warm_start=IMITATION,
    config=GRPOConfig(lr=3e-4),
    steps=6,
    groups_per_step=4,
)


@asynccontextmanager
async def email_search(seed: int = 0) -> AsyncIterator[Task]:
    """The task for a seed. The mailbox is the same for all seeds; no project of a held-out question is in training."""
    emails, facts = make()
    training = list(questions(facts, "training"))
    random.Random(f"email-search-{seed}").shuffle(training)
    with tempfile.TemporaryDirectory() as folder:
        mailbox = Path(folder) / "mailbox.sqlite"
        write(mailbox, emails)
        async with connect([sys.executable, mail_server.__file__, str(mailbox)]) as server:
            tools = await server.tools()
            yield Task(
                name="email_search",
                graph=lambda model: build_graph(model, tools),
                training=list(map(scenario, training[SHOWN:])),
                held_out=list(map(scenario, islice(questions(facts, "held_out"), 72))),
                validation=list(map(scenario, islice(questions(facts, "validation"), 32))),
                demonstrations=[demonstration(question, mailbox, tools) for question in training[:SHOWN]],
                reward=weighted_parts(WEIGHTS, parts),
                success=solved,
                max_tokens=56,
                recipe=RECIPE,
                shots=2,
                costs=True,
                wrong=wrong,
                grade=grade,
            )


def scenario(question: Question) -> Scenario:
    """The scenario of a question."""
    wanted = {"answer": question.answer, "outdated": question.outdated, "source": question.source}
    return Scenario(input={"messages": [("user", question.text)]}, metadata=wanted)


def demonstration(question: Question, mailbox: Path, tools: Sequence[BaseTool]) -> Conversation:
    """A run that searches, reads the emails that were found until one has a value, and answers."""
    hits = search(mailbox, f"{question.project} {question.kind}")
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question.text},
        *called("search", hits, keywords=f"{question.project} {question.kind}"),
    ]
    for number in (int(line.split(" | ")[0]) for line in hits.splitlines()):
        messages += called("read", read(mailbox, number), email=number)
        if number == question.source:
            break
    answer, _ = called("answer", "", text=question.answer, source=question.source)
    return Conversation(messages=[*messages, answer], tools=[convert_to_openai_tool(tool) for tool in tools])


def parts(trajectory: Trajectory) -> dict[str, float]:
    """The parts of the reward, each from 0 to 1.

    - found: Whether a search listed the source.
    - read: Whether the source was read.
    - source: Whether the answer names it.
    - success: Whether the answer has the value that is valid, and not the one that was valid before.
    """
    wanted, calls = trajectory.scenario.metadata, trajectory.tool_calls
    source = str(wanted["source"])
    hits = [line for call in calls if call.tool == "search" for line in (call.result or "").splitlines()]
    answers = [call.arguments for call in calls if call.tool == "answer"]
    given = answers[-1] if answers else {}
    said = str(given.get("text", "")).lower()
    outdated = bool(wanted["outdated"]) and says(said, wanted["outdated"].lower())
    right = says(said, wanted["answer"].lower()) and not outdated
    return {
        "found": float(any(hit.startswith(f"{source} |") for hit in hits)),
        "read": float(any(call.tool == "read" and str(call.arguments.get("email")) == source for call in calls)),
        "source": float(str(given.get("source")) == source),
        "success": float(right),
    }


def wrong(trajectory: Trajectory) -> bool:
    """Whether a run called `answer` without success. ART·E reports such answers as hallucinated."""
    return any(call.tool == "answer" for call in trajectory.tool_calls) and not solved(trajectory)
