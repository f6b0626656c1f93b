"""The task `sql`: answer a question about a database by a query.

The agent writes a query, checks it on the database, and rewrites it if SQLite refuses it or it gives no row. Held-out
questions are about tables that are not in training.
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import combinations
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable
from langgraph.graph import END, START, MessagesState, StateGraph

from art_langgraph import Conversation, GRPOConfig, Scenario, SFTConfig, Trajectory
from benchmarks.tasks.sql_databases import (
    HELD_OUT_SUBJECTS,
    TRAINING_SUBJECTS,
    Question,
    Row,
    Subject,
    database_name,
    execute,
    questions,
    schema,
)
from benchmarks.tasks.task import Recipe, Task, chat, solved, weighted_parts

SYSTEM = "Write one SQLite query that answers the question."
MAX_REWRITES = 2
WEIGHTS = {"runs": 0.15, "names": 0.2, "rows": 0.25, "success": 0.4}
RECIPE = Recipe(
    warm_start=SFTConfig(lr=1e-3, num_train_epochs=2, per_device_train_batch_size=4),
    config=GRPOConfig(lr=3e-4),
    steps=8,
)


class State(MessagesState, total=False):
    """Messages, the database, and what the last query did: its rows, or why it has to be rewritten."""

    database: str
    rows: list[Row]
    problem: str


@asynccontextmanager
async def sql(seed: int = 0) -> AsyncIterator[Task]:
    """The task for a seed. No table of a held-out question is in training."""
    rng = random.Random(f"sql-{seed}")
    drawn = list(_all_questions(TRAINING_SUBJECTS, rng))
    rng.shuffle(drawn)
    held_out = list(_all_questions(HELD_OUT_SUBJECTS, random.Random("sql-held-out")))
    random.Random("sql-held-out").shuffle(held_out)
    yield Task(
        name="sql",
        graph=build_graph,
        training=[scenario(question) for question in drawn[48:]],
        held_out=[scenario(question) for question in held_out[:96]],
        demonstrations=[demonstration(question, rewritten=at % 4 == 0) for at, question in enumerate(drawn[:48])],
        reward=weighted_parts(WEIGHTS, parts),
        success=solved,
        max_tokens=40,
        recipe=RECIPE,
    )


def _all_questions(subjects: Sequence[Subject], rng: random.Random) -> Iterable[Question]:
    """Questions about both tables of each pair of subjects."""
    for pair in combinations(subjects, 2):
        for subject in pair:
            yield from questions(subject, database_name(*pair), rng)


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


def check(database: str, query: str) -> tuple[list[Row], str]:
    """The rows of a query, and the request to rewrite it if it has none or is wrong, else an empty text."""
    try:
        found = execute(database, query)
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:  # ValueError: a null character
        return [], f"{str(error)[:80]}. Write it again."
    return found, "" if found else "It gives no rows. Write it again."


def build_graph(model: BaseChatModel) -> Runnable[State, State]:
    """A graph of three nodes: write, check, rewrite."""

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke([SystemMessage(SYSTEM), *state["messages"]])]}

    def check_query(state: State) -> dict[str, Any]:
        rows, problem = check(state["database"], query_of(state["messages"][-1]))
        return {"rows": rows, "problem": problem}

    async def rewrite(state: State) -> State:
        problem = HumanMessage(state["problem"])
        answer = await model.ainvoke([SystemMessage(SYSTEM), *state["messages"], problem])
        return {"messages": [problem, answer]}

    def after_check(state: State) -> str:
        written = sum(isinstance(message, AIMessage) for message in state["messages"])
        return "rewrite" if state["problem"] and written <= MAX_REWRITES else END

    graph = StateGraph(State).add_node("write", ask).add_node("check", check_query).add_node("rewrite", rewrite)
    graph.add_edge(START, "write").add_edge("write", "check").add_edge("rewrite", "check")
    graph.add_conditional_edges("check", after_check, ["rewrite", END])
    return graph.compile()


def query_of(message: AnyMessage) -> str:
    """The query of an answer."""
    return str(message.content).strip()


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
