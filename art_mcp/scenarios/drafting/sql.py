"""Drafts tasks for tools that take SQL: questions about the rows of tables, and changes of them."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from art_mcp.client.effects import words
from art_mcp.scenarios.catalog import CatalogTool, plain, properties_of
from art_mcp.scenarios.drafting.draft import Draft
from art_mcp.scenarios.drafting.gazetteer import known_by, new_name
from art_mcp.scenarios.drafting.reserve import Reserve
from art_mcp.scenarios.observe import leaves
from art_mcp.scenarios.phrasing.arguments import render_value
from art_mcp.scenarios.phrasing.english import gerund, join_items
from art_mcp.scenarios.phrasing.language import VERBS
from art_mcp.scenarios.phrasing.questions import SHORT, Question
from art_mcp.scenarios.phrasing.wish import Wish
from art_mcp.scenarios.plan import Step

TABLES = 8
"""Tables that are looked into, at most."""

ROWS = 40
"""Rows of a table that are looked at."""

ATTEMPTS = 20
"""Attempts to draft a task with, or without, a held-out value."""

_LISTINGS = (
    "SELECT name FROM sqlite_master WHERE type = 'table'",
    "SELECT table_name FROM information_schema.tables WHERE table_schema NOT IN ('pg_catalog', 'information_schema')",
    "SHOW TABLES",
)
"""Queries for the names of the tables, in the dialects of SQL."""

Run = Callable[[CatalogTool, dict[str, Any]], Awaitable[Any]]
"""Calls a tool, and gives its result as `parse_result` returns it, or None if the call failed."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Args:
        name: Its name.
        columns: Names of its columns.
        rows: Some of its rows. Each has all columns: what a server leaves out is null.
    """

    name: str
    columns: list[str]
    rows: list[dict[str, Any]]

    def numbers(self) -> list[str]:
        """The columns of numbers that are no ids."""
        return [
            column
            for column in self.columns
            if words(column)[-1:] != ["id"]
            and all(isinstance(row[column], int | float) and not isinstance(row[column], bool) for row in self.rows)
        ]

    def identifying(self) -> list[str]:
        """The columns whose values are different in each row, and are short texts or numbers."""
        return [
            column
            for column in self.columns
            if all(_short(row[column]) for row in self.rows)
            and len({row[column] for row in self.rows}) == len(self.rows)
            and not any(isinstance(row[column], float) for row in self.rows)
        ]

    def texts(self) -> list[str]:
        """The columns of short texts."""
        return [column for column in self.columns if all(_short(row[column], str) for row in self.rows)]


def _table(name: str, rows: Sequence[dict[str, Any]]) -> Table:
    """A table of rows as a server gave them. Some servers leave out nulls, so that a row has some of the columns."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return Table(name, columns, [{column: row.get(column) for column in columns} for row in rows])


def _short(value: Any, kind: Any = str | int) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and 0 < len(str(value)) <= SHORT


def sql_parameter(tool: CatalogTool) -> str | None:
    """The parameter of a tool that takes SQL. None: there is none."""
    for name, schema in properties_of(tool).items():
        inner = plain(schema, tool.input_schema)
        about = words(f"{name} {inner.get('description', '')} {tool.description}")
        if inner.get("type") == "string" and name.casefold() in ("query", "sql", "statement") and "sql" in about:
            others = [other for other in tool.input_schema.get("required", ()) if other != name]
            return None if others else name
    return None


class Sql:
    """Drafts tasks for the tools of a server that take SQL.

    Args:
        tools: The tools that may be called.
        reserve: Which values are held out.
        rng: Source of randomness.
    """

    def __init__(self, tools: Sequence[CatalogTool], reserve: Reserve, rng: random.Random) -> None:
        self.tools = {tool.name: name for tool in tools if (name := sql_parameter(tool)) is not None}
        self._by_name = {tool.name: tool for tool in tools}
        self._reserve = reserve
        self._rng = rng
        self.tables: list[Table] = []

    async def look(self, run: Run) -> None:
        """Looks at the tables with the first tool that lets us.

        Args:
            run: Calls a tool.
        """
        for name, parameter in self.tools.items():
            if self._writes(name) or self.tables:
                continue
            tool = self._by_name[name]
            for listing in _LISTINGS:
                result = await run(tool, {parameter: listing})
                names = [leaf for _, leaf in leaves(result)] if isinstance(result, list | dict) else []
                for table_name in [str(each) for each in names if str(each).isidentifier()][:TABLES]:
                    rows = await run(tool, {parameter: f"SELECT * FROM {table_name} LIMIT {ROWS}"})
                    if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
                        self.tables.append(_table(table_name, rows))
                if self.tables:
                    break
        for table in self.tables:
            for column in table.identifying():
                self._reserve.domain([row[column] for row in table.rows])

    def draft(self, name: str, held: bool | None) -> Draft | None:
        """A task for a tool. None: none could be drafted.

        Args:
            name: Name of the tool.
            held: Whether a value is held out. None: it does not matter.
        """
        if not self.tables:
            return None
        for _ in range(ATTEMPTS):
            if draft := self._draft(name, held):
                return draft
        return None

    def _draft(self, name: str, held: bool | None) -> Draft | None:
        table = self._rng.choice(self.tables)
        creates = "create" in self._by_name[name].words
        kinds: Sequence[Any] = [self._create] if creates else self._changes() if self._writes(name) else self._reads()
        task = self._rng.choice(kinds)(table)
        if task is None:
            return None
        query, do, question, literals = task
        held_out = frozenset().union(*(self._reserve.held_out(value) for value in literals))
        if held is not None and bool(held_out) is not held:
            return None
        step = Step(tool=name, arguments={self.tools[name]: query}, by_result=question is not None)
        where = f"in the table {table.name}"
        table_phrase = f"the table {table.name}"

        def render_call(rng: random.Random) -> Wish:
            if question is None:
                request = rng.choice(do)
                return Wish(request, gerund(request))
            verb = rng.choice(("query", "look into", "look at", "go through"))
            return Wish(f"{verb} {table_phrase}", f"{gerund(verb)} {table_phrase}", table_phrase, "table", False, where)

        def find_questions(result: Any, again: Any, rng: random.Random) -> list[Question]:
            values = [leaf for _, leaf in leaves(result)]
            if question is None or len(values) != 1 or result != again:
                return []
            text = str(values[0])
            return [question(text)] if len(text) <= SHORT else []

        return Draft("single", [step], render_call, find_questions, held_out)

    def _writes(self, name: str) -> bool:
        verb = next((VERBS[word] for word in self._by_name[name].words if word in VERBS), None)
        return verb is not None and not verb.reads

    def _reads(self) -> list[Any]:
        return [self._count, self._value, self._value, self._value, self._extreme, self._count_where]

    def _changes(self) -> list[Any]:
        return [self._insert, self._insert, self._update, self._update, self._delete]

    def _count(self, table: Table) -> Any:
        return f"SELECT COUNT(*) FROM {table.name}", [], lambda value: Question("count", "", value, items="rows"), []

    def _value(self, table: Table) -> Any:
        keys = table.identifying()
        if not keys or len(table.columns) < 2:
            return None
        key = self._rng.choice(keys)
        column = self._rng.choice([column for column in table.columns if column != key])
        row = self._rng.choice(table.rows)
        who = self._rng.choice(self._ways(key, row[key]))
        query = f"SELECT {column} FROM {table.name} WHERE {key} = {literal(row[key])}"
        return query, [], lambda value: Question("leaf", f"the {column} of {who}", value), [row[key]]

    def _ways(self, key: str, value: Any) -> list[str]:
        """How a row is named."""
        ways = [
            f"the row with the {key} {render_value(value, self._rng)}",
            f"the entry whose {key} is {render_value(value, self._rng)}",
        ]
        return [*ways, render_value(value, self._rng)] if words(key)[-1:] in (["name"], ["title"]) else ways

    def _extreme(self, table: Table) -> Any:
        columns = table.numbers()
        if not columns:
            return None
        column = self._rng.choice(columns)
        function, word = self._rng.choice((("MAX", "highest"), ("MIN", "lowest"), ("SUM", "sum of all values of")))
        head = f"the {word} {column}"
        return f"SELECT {function}({column}) FROM {table.name}", [], lambda value: Question("leaf", head, value), []

    def _count_where(self, table: Table) -> Any:
        columns = table.texts()
        if not columns:
            return None
        column, row = self._rng.choice(columns), self._rng.choice(table.rows)
        query = f"SELECT COUNT(*) FROM {table.name} WHERE {column} = {literal(row[column])}"
        items = f"rows with the {column} {render_value(row[column], self._rng)}"
        return query, [], lambda value: Question("count", "", value, items=items), [row[column]]

    def _insert(self, table: Table) -> Any:
        columns = [column for column in table.columns if words(column)[-1:] != ["id"]]
        if not columns:
            return None
        selection = sorted(self._rng.sample(columns, min(len(columns), self._rng.choice((1, 2, 2)))), key=columns.index)
        values = {column: self._fresh(table, column) for column in selection}
        query = f"INSERT INTO {table.name} ({', '.join(values)}) VALUES ({', '.join(map(literal, values.values()))})"
        phrase = join_items([f"the {column} {render_value(value, self._rng)}" for column, value in values.items()])
        set_to = join_items([f"{column} set to {render_value(value, self._rng)}" for column, value in values.items()])
        ways = [
            f"add a row to the table {table.name} with {phrase}",
            f"insert a row with {phrase} into {table.name}",
            f"put a new row into the table {table.name}, with {set_to}",
        ]
        return query, ways, None, list(values.values())

    def _update(self, table: Table) -> Any:
        keys = table.identifying()
        free = [column for column in table.columns if words(column)[-1:] != ["id"]]
        if not keys or not free:
            return None
        key, column = self._rng.choice(keys), self._rng.choice(free)
        row, value = self._rng.choice(table.rows), self._fresh(table, column)
        if key == column or row[column] == value:
            return None
        who, new = self._rng.choice(self._ways(key, row[key])), render_value(value, self._rng)
        query = f"UPDATE {table.name} SET {column} = {literal(value)} WHERE {key} = {literal(row[key])}"
        ways = [
            f"set the {column} of {who} in the table {table.name} to {new}",
            f"change the {column} of {who} to {new} in the table {table.name}",
            f"update {table.name}: the {column} of {who} should be {new}",
        ]
        return query, ways, None, [row[key], value]

    def _delete(self, table: Table) -> Any:
        keys = table.identifying()
        if not keys:
            return None
        key, row = self._rng.choice(keys), self._rng.choice(table.rows)
        who = self._rng.choice(self._ways(key, row[key])[:2])
        ways = [
            f"delete {who} from the table {table.name}",
            f"remove {who} from {table.name}",
            f"get rid of {who} in the table {table.name}",
        ]
        return f"DELETE FROM {table.name} WHERE {key} = {literal(row[key])}", ways, None, [row[key]]

    def _create(self, _: Table) -> Any:
        name = new_name(self._rng).replace("-", "_")
        kinds = ("TEXT", "INTEGER", "REAL")
        names = self._rng.sample(("title", "name", "amount", "colour", "city", "size", "note", "status", "price"), 2)
        columns = [f"{column} {self._rng.choice(kinds)}" for column in names]
        column_list = join_items(columns)
        ways = [
            f"create a table named {name} with the columns {column_list}",
            f"make a table {name} with {column_list} as columns",
            f"set up the table {name}; its columns are {column_list}",
        ]
        return f"CREATE TABLE {name} ({', '.join(columns)})", ways, None, [name]

    def _fresh(self, table: Table, column: str) -> Any:
        """A new value for a column, of the kind that it has."""
        values = [row[column] for row in table.rows if row[column] is not None]
        if values and all(isinstance(value, int | float) for value in values):
            return self._rng.randint(1, max(int(max(values)) * 2, 10))
        few = list(dict.fromkeys(str(value) for value in values))
        if few and len(few) <= len(values) / 2:
            return self._rng.choice(few)
        listed_values = known_by("person" if column == "name" else column)
        return self._rng.choice(listed_values) if listed_values else new_name(self._rng)


def literal(value: Any) -> str:
    """A value as SQL."""
    return str(value) if isinstance(value, int | float) else "'" + str(value).replace("'", "''") + "'"
