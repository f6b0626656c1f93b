"""sql_agent: that two steps train it. What it has in common with the benchmarks' tasks is tested with those."""

from __future__ import annotations

import pytest
from art_examples.sql_agent.agent import check, query_of
from art_examples.sql_agent.databases import TRAINING_SUBJECTS, database_name
from art_examples.sql_agent.task import sql
from langchain_core.messages import AIMessage

from tests.support.runs.tasks import Scripted, learned_in_two_steps, run
from tests.support.servers.trainer_server import TrainerServer

DATABASE = database_name(*TRAINING_SUBJECTS[:2])


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("SELECT title FROM books", ""),
        ("SELECT title FROM books WHERE pages > 1000", "It gives no rows. Write it again."),
        ("SELECT titel FROM books", "no such column: titel. Write it again."),
    ],
)
def test_what_is_wrong_with_a_query_is_said(query: str, problem: str) -> None:
    assert check(DATABASE, query)[1] == problem


@pytest.mark.parametrize(
    "answer",
    [
        " SELECT 1; ",
        "You can use this query:\n\n```sql\nSELECT 1;\n```\n\nIt selects `1`.",
        "```sqlite\nSELECT 1;\n```",
        "```\nSELECT 1;",
        "```SELECT 1;``` It selects `1`.",
    ],
)
def test_the_query_is_the_first_code_fence_or_the_whole_answer(answer: str) -> None:
    assert query_of(AIMessage(answer)) == "SELECT 1;"


async def test_a_query_is_rewritten_once() -> None:
    async with sql(0) as task:
        scenario = task.training[0]
        wanted = scenario.metadata["query"]
        made = await run(task, scenario, Scripted(answers=["SELECT nothing", wanted]))
        assert task.success(made)
        model = Scripted(answers=["SELECT nothing", "SELECT nothing", wanted])
        made = await run(task, scenario, model)
    assert not task.success(made)
    assert len(model.asked) == 2


@pytest.mark.slow
async def test_two_steps_train_it(connected: TrainerServer) -> None:
    tables = [subject.table for subject in TRAINING_SUBJECTS]
    texts = [f"SELECT {what} FROM {table}" for table in tables for what in ("*", "COUNT(*)")]
    learned = await learned_in_two_steps(sql, "sql", connected, texts)
    assert len(learned.rewards) == 2
    assert learned.skipped < 2
    assert learned.tokens["training"] > 0
    assert learned.after is not None
    assert learned.after.n == 4
