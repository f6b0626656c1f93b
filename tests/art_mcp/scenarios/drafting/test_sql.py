"""Tasks for tools that take SQL."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from art_langgraph import rollout
from art_mcp import MCPScenario, connect, generate_scenarios, verify
from art_mcp.scenarios.catalog import CatalogTool
from art_mcp.scenarios.drafting.reserve import Reserve
from art_mcp.scenarios.drafting.rows import cells, read_rows
from art_mcp.scenarios.drafting.sql import Sql, Table, literal, sql_parameter
from art_mcp.scenarios.observe import parse_result
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


async def test_people_name_no_tables(tmp_path: Path) -> None:
    named = await looked_at(tmp_path / "x.db", READ, WRITE)
    sql, phraser = Sql([READ, WRITE], Reserve(), random.Random(0), tableless=1.0), Phraser(random.Random(0))
    orders = Table("orders", ["id", "town"], [{"id": 1, "town": "Ada"}, {"id": 2, "town": "Rome"}])
    sql.tables = [*named.tables, orders]
    said = set()
    for name in ("read_query", "write_query"):
        for _ in range(200):
            draft = sql.draft(name, held=None)
            assert draft is not None
            asked = draft.find_questions([{"x": "7"}], [{"x": "7"}], random.Random(0))
            call = draft.render_call(random.Random(0))
            text = phraser.request(call, asked[0] if asked else None, held=False, dressed=False).text
            assert "table" not in text
            assert " in people" not in text
            assert "of Ada" not in text, "there is one in each table"
            said.add(text)
    for words in (
        "of the person ",
        "of order 1",
        "how many people",
        "the order with the id 2",
        "an order with the town ",
    ):
        assert any(words in text.casefold() for text in said), words


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


def as_text(columns: list[str], rows: list[tuple[Any, ...]]) -> list[list[str]]:
    return [columns, *([str(cell) for cell in row] for row in rows)]


FORMS: dict[str, Callable[[list[str], list[tuple[Any, ...]]], Any]] = {
    "objects": lambda columns, rows: [dict(zip(columns, row, strict=True)) for row in rows],
    "lists": lambda columns, rows: [list(row) for row in rows],
    "lists below a header": lambda columns, rows: [columns, *map(list, rows)],
    "tuples": lambda columns, rows: parse_result(str(rows)),
    "tuples below a heading": lambda columns, rows: f"Query results:\n{rows}",
    "columns beside rows": lambda columns, rows: {"columns": columns, "rows": rows, "row_count": len(rows)},
    "columns with types": lambda columns, rows: {"columns": [{"name": each} for each in columns], "data": rows},
    "an object in an object": lambda columns, rows: {"success": True, "result": {"columns": columns, "rows": rows}},
    "CSV": lambda columns, rows: "\n".join(map(",".join, as_text(columns, rows))),
    "tabs": lambda columns, rows: "\n".join(map("\t".join, as_text(columns, rows))),
    "Markdown": lambda columns, rows: "\n".join(
        "| " + " | ".join(row) + " |" for row in [columns, ["---"] * len(columns), *as_text(columns, rows)[1:]]
    ),
    "psql": lambda columns, rows: (
        "\n".join([" | ".join(columns), "---+---", *map(" | ".join, as_text(columns, rows)[1:])])
        + f"\n({len(rows)} rows)"
    ),
    "a box": lambda columns, rows: "\n".join(
        ["┌────┬────┐", *("│ " + " │ ".join(row) + " │" for row in as_text(columns, rows)), "└────┴────┘"]
    ),
    "spaces": lambda columns, rows: "\n".join(
        ["   ".join(columns), "-----  -----", *map("   ".join, as_text(columns, rows)[1:])]
    ),
}


@pytest.mark.parametrize("form", FORMS)
async def test_rows_are_read_in_every_form(form: str, tmp_path: Path) -> None:
    with closing(fill(tmp_path / "x.db")) as database:

        def result_of(query: str) -> Any:
            cursor = database.execute(query)
            return FORMS[form]([column[0] for column in cursor.description], cursor.fetchall())

        async def run(_: CatalogTool, arguments: dict[str, Any]) -> Any:
            try:
                return result_of(arguments["query"])
            except sqlite3.Error:
                return None

        sql = Sql([READ], Reserve(), random.Random(0))
        await sql.look(run)
        (table,) = sql.tables
        assert table.columns == ["id", "name", "town", "age"]
        assert table.rows[0] == {"id": 1, "name": "Ada", "town": "Oslo", "age": 30}
        assert len(table.rows) == 8
        for draft in [sql.draft("read_query", held=None) for _ in range(20)]:
            assert draft is not None
            query = draft.steps[0].arguments["query"]
            ((value,),) = database.execute(query).fetchall()
            result = result_of(query)
            if form == "lists below a header":  # the header may be a value as well
                assert len(cells(result)) == 2
                continue
            (question,) = draft.find_questions(result, result, random.Random(0))
            assert question.value == str(value)


def test_values_of_python_are_read_as_they_are_asked_for() -> None:
    result = "[(1, datetime.date(2026, 3, 9), Decimal('1.50'), datetime.datetime(2026, 3, 9, 8, 30)), (2, None, 3, '')]"
    rows = read_rows(result)
    assert rows is not None
    assert rows.rows == [[1, "2026-03-09", 1.5, "2026-03-09 08:30:00"], [2, None, 3, ""]]


@pytest.mark.parametrize(
    "result", ["The query was executed.", "", None, [], {}, "One line\nand another\nand a third", True]
)
def test_what_is_no_table_has_no_rows(result: Any) -> None:
    assert not cells(result) or result is True


async def test_other_arguments_of_a_tool_are_drawn_until_they_reach_tables(tmp_path: Path) -> None:
    execute = CatalogTool.model_validate(
        {
            "name": "execute_sql",
            "inputSchema": {
                "type": "object",
                "properties": {"database": STRING, "rawSql": STRING},
                "required": ["database", "rawSql"],
            },
        }
    )
    search = tool("search_pages", query={"type": "string", "description": "words, not SQL"})
    databases = iter(["old", "shop", "new"])
    with closing(fill(tmp_path / "x.db")) as database:

        async def run(tool: CatalogTool, arguments: dict[str, Any]) -> Any:
            if tool.name != "execute_sql" or arguments["database"] != "shop":
                return None
            try:
                return [list(row) for row in database.execute(arguments["rawSql"]).fetchall()]
            except sqlite3.Error:
                return None

        sql = Sql([search, execute], Reserve(), random.Random(0))
        await sql.look(run, lambda *_: {"database": next(databases)})
        sql.settle()
        assert sql.tools == {"execute_sql": "rawSql", "search_pages": "query"}
        kinds = set()
        for draft in [sql.draft("execute_sql", held=None) for _ in range(40)]:
            assert draft is not None
            assert draft.steps[0].arguments["database"] == "shop"
            wish = draft.render_call(random.Random(0))
            assert "database shop" in wish.do
            kinds.add(draft.steps[0].arguments["rawSql"].split()[0])
        assert kinds == {"SELECT", "INSERT", "UPDATE", "DELETE"}


async def test_a_tool_without_tables_is_called_like_any_other() -> None:
    async def run(_: CatalogTool, arguments: dict[str, Any]) -> Any:
        return None

    other = CatalogTool.model_validate(
        {
            "name": "query_database",
            "inputSchema": {
                "type": "object",
                "properties": {"database": STRING, "sql": STRING},
                "required": ["database", "sql"],
            },
        }
    )
    sql = Sql([READ, other], Reserve(), random.Random(0))
    await sql.look(run)
    sql.settle()
    assert sql.tools == {"query_database": "sql"}, "another look may find a value for the database"
