"""Tasks for tools that take SQL."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from art_langgraph import rollout
from art_mcp import MCPScenario, connect, generate_scenarios, verify
from art_mcp.scenarios.catalog import CatalogTool
from art_mcp.scenarios.drafting.reserve import Reserve
from art_mcp.scenarios.drafting.sql import Sql, Table, literal, sql_parameter
from art_mcp.scenarios.phrasing.phraser import Phraser
from art_mcp.specialization.verify import solved
from tests.support.mcp.commands import ROWS
from tests.support.mcp.graphs import calling
from tests.support.mcp.tools import STRING, tool

READ = tool("read_query", query=STRING).model_copy(update={"description": "Run SELECT in SQL"})
WRITE = tool("write_query", query=STRING).model_copy(update={"description": "Run INSERT in SQL"})


def fill(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("create table people (id integer primary key, name text, town text, age integer)")
    for number, name in enumerate(("Ada", "Bob", "Cleo", "Dan", "Eve", "Finn", "Gia", "Hugo")):
        town = ("Oslo", "Rome")[number % 2]
        database.execute("insert into people (name, town, age) values (?, ?, ?)", (name, town, 30 + number))
    return database


async def looked_at(path: Path, *tools: CatalogTool) -> Sql:
    sql = Sql(tools, Reserve(), random.Random(0))
    with closing(fill(path)) as database:
        database.row_factory = sqlite3.Row

        async def run(_: CatalogTool, arguments: dict[str, Any]) -> Any:
            try:
                return [dict(row) for row in database.execute(arguments["query"]).fetchall()]
            except sqlite3.Error:
                return None

        await sql.look(run)
    return sql


async def test_queries_are_valid_and_asked_in_words(tmp_path: Path) -> None:
    sql = await looked_at(tmp_path / "x.db", READ, WRITE)
    [table] = sql.tables
    assert table.columns == ["id", "name", "town", "age"]
    assert table.identifying() == ["id", "name", "age"]
    phraser = Phraser(random.Random(0))
    with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as database:
        for name in ("read_query", "write_query"):
            for _ in range(60):
                draft = sql.draft(name, held=None)
                assert draft is not None
                query = draft.steps[0].arguments["query"]
                rows = database.execute(query).fetchall()
                assert ("SELECT" in query) is (name == "read_query") is draft.steps[0].by_result
                asked = draft.find_questions(
                    [dict(enumerate(row)) for row in rows], [dict(enumerate(row)) for row in rows], random.Random(0)
                )
                text = phraser.request(
                    draft.render_call(random.Random(0)), asked[0] if asked else None, held=False
                ).text
                assert "people" in text
                assert "SELECT" not in text


async def test_rows_are_held_out_by_their_names(tmp_path: Path) -> None:
    sql = await looked_at(tmp_path / "x.db", READ)
    drafts = {held: [sql.draft("read_query", held) for _ in range(80)] for held in (True, False)}
    queries = {
        held: {str(draft.steps[0].arguments) for draft in drafted if draft is not None}
        for held, drafted in drafts.items()
    }
    assert not queries[True] & queries[False]
    assert queries[True]


def test_which_tools_take_sql() -> None:
    assert sql_parameter(READ) == "query"
    assert sql_parameter(tool("search_web", query=STRING)) is None
    assert [literal(value) for value in ("it's", 3, 2.5)] == ["'it''s'", "3", "2.5"]


@pytest.mark.slow
async def test_another_query_with_the_same_values_is_right(tmp_path: Path) -> None:
    fill(tmp_path / "people.db").close()
    async with connect([*ROWS, "{world}"], worlds=tmp_path / "people.db") as server:
        found = await generate_scenarios(server, 24, seconds=30, progress=False)
        singles = [one for one in found.scenarios if one.plan.kind == "single"]
        queries = {one.plan.reference[0].arguments["sql"]: one for one in singles}
        query, asked = next((query, one) for query, one in queries.items() if query.startswith("SELECT"))
        (fact,) = asked.plan.facts
        assert await said(server, asked, ("query_rows", {"sql": f"select * from ({query}) as found"}), f"It is {fact}.")
        assert not await said(server, asked, ("query_rows", {"sql": "select 'x' as found"}), f"It is {fact}.")
        acting = [one for one in found.scenarios if one.plan.changes]
        assert acting
        assert all("change_rows" in one.tools for one in acting)


async def said(server: Any, scenario: MCPScenario, call: tuple[str, dict[str, Any]], answer: str) -> bool:
    run = await rollout(calling(server, call, answer=answer), scenario, verify())
    return solved(run)


async def test_rows_that_leave_out_nulls_have_all_columns() -> None:
    rows = [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob", "town": "Oslo", "age": 7}, {"id": 3, "age": 8}]

    async def run(_: CatalogTool, arguments: dict[str, Any]) -> Any:
        return [{"name": "people"}] if "sqlite_master" in arguments["query"] else rows

    sql = Sql([READ, WRITE], Reserve(), random.Random(0))
    await sql.look(run)
    (table,) = sql.tables
    assert table.columns == ["id", "name", "town", "age"]
    assert table.rows[2] == {"id": 3, "name": None, "town": None, "age": 8}
    assert table.identifying() == ["id"]
    for name in ("read_query", "write_query"):
        drafts = [sql.draft(name, held=None) for _ in range(100)]
        queries = [draft.steps[0].arguments["query"] for draft in drafts if draft is not None]
        assert queries
        assert not any("None" in query for query in queries)


def test_a_column_without_values_gets_any_new_one() -> None:
    sql = Sql([WRITE], Reserve(), random.Random(0))
    assert sql._fresh(Table("people", ["note"], [{"note": None}] * 2), "note") not in (None, "None")
