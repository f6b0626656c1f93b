"""The task: answer a question about a database by a query. Held-out questions are about tables that are not trained."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from art_examples.learning.task import IMITATION, Recipe, Task, chat, solved, weighted_parts
from art_examples.sql_agent.agent import SYSTEM, build_graph, check, query_of
from art_examples.sql_agent.databases import (
    HELD_OUT_SUBJECTS,
    TRAINING_SUBJECTS,
    Question,
    all_questions,
    execute,
    schema,
)
from langchain_core.messages import AIMessage

from art_langgraph import Conversation, GRPOConfig, Scenario, Trajectory

WEIGHTS = {"runs": 0.15, "names": 0.1, "rows": 0.25, "success": 0.5}
RECIPE = Recipe(
    warm_start=IMITATION,
    config=GRPOConfig(lr=4.5e-4),
    steps=14,
    falling=True,
    groups_per_step=10,
    dynamic_sampling=1,
)


@asynccontextmanager
async def sql(seed: int = 0) -> AsyncIterator[Task]:
    """The task for a seed. No table of a held-out question is in training."""
    rng = random.Random(f"sql-{seed}")
    drawn = list(all_questions(TRAINING_SUBJECTS, rng))
    rng.shuffle(drawn)
    held_out = list(all_questions(HELD_OUT_SUBJECTS, random.Random("sql-held-out")))
    random.Random("sql-held-out").shuffle(held_out)
    yield Task(
        name="sql",
        graph=build_graph,
        training=[scenario(question) for question in drawn[48:]],
        held_out=[scenario(question) for question in held_out[:96]],
        demonstrations=[demonstration(question, rewritten=at % 4 == 0) for at, question in enumerate(drawn[:48])],
        reward=weighted_parts(WEIGHTS, parts),
        success=solved,
        max_tokens=32,
        recipe=RECIPE,
    )


def scenario(question: Question) -> Scenario:
    """The scenario of a question."""
    return Scenario(
        input={"messages": [("user", prompt(question))], "database": question.database},
        metadata={"database": question.database, "query": question.query},
    )


def prompt(question: Question) -> str:
    """What the user says."""
    return f"{schema(question.database)}\n{question.text}"


def demonstration(question: Question, rewritten: bool) -> Conversation:
    """A conversation that ends with the right query.

    Args:
        question: The question.
        rewritten: Whether the assistant writes a column wrongly first. That answer is context, and is not imitated.
    """
    if not rewritten:
        return chat(SYSTEM, prompt(question), question.query)
    wrong = re.sub(r"(WHERE |ORDER BY |\()(\w)", r"\1x\2", question.query)
    _, problem = check(question.database, wrong)
    shown = chat(SYSTEM, prompt(question), wrong, problem, question.query)
    shown.messages[2]["weight"] = 0
    return shown


def parts(trajectory: Trajectory) -> dict[str, float]:
    """The parts of the reward, each from 0 to 1, of the last query.

    - runs: Whether SQLite ran it.
    - names: The share of names and key words that it has in common with the reference.
    - rows: The share of rows that it has in common with the reference, in any order.
    - success: Whether its rows are those of the reference (execution match).
    """
    wanted = trajectory.scenario.metadata
    answers = [message for message in trajectory.messages if isinstance(message, AIMessage)]
    query = query_of(answers[-1]) if answers else ""
    expected = Counter(execute(wanted["database"], wanted["query"]))
    rows, problem = check(wanted["database"], query)
    given = Counter(rows)
    words, right_words = (set(re.findall(r"\w+", text.lower())) for text in (query, wanted["query"]))
    return {
        "runs": float(not problem or bool(given) or problem.startswith("It gives no rows")),
        "names": len(words & right_words) / len(words | right_words),
        "rows": 2 * (given & expected).total() / (given.total() + expected.total()),
        "success": float(given == expected),
    }
