"""Drafts tasks for tools that take SQL: questions about the rows of tables, and changes of them."""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from art_mcp.client.effects import words
from art_mcp.scenarios.catalog import CatalogTool, plain, properties_of
from art_mcp.scenarios.drafting.draft import Draft
from art_mcp.scenarios.drafting.gazetteer import known_by, new_name
from art_mcp.scenarios.drafting.reserve import Reserve
from art_mcp.scenarios.drafting.rows import cells, read_rows
from art_mcp.scenarios.phrasing.arguments import render_value
from art_mcp.scenarios.phrasing.english import article, gerund, join_items, one_of, plural
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

TABLELESS = 0.5
"""Share of the tasks that name no table, of those that say without one what they are about: people ask for the price of
the teapot, and know of no tables."""

_LISTINGS = (
    "SELECT name FROM sqlite_master WHERE type = 'table'",
    "SELECT table_name FROM information_schema.tables WHERE table_schema NOT IN ('pg_catalog', 'information_schema')",
    "SHOW TABLES",
)
"""Queries for the names of the tables, in the dialects of SQL."""

_COLUMNS = (
    "SELECT column_name FROM information_schema.columns WHERE table_name = '{table}' ORDER BY ordinal_position",
    "SELECT name FROM pragma_table_info('{table}')",
    "DESCRIBE {table}",
)
"""Queries whose rows begin with the names of a table's columns, in the dialects of SQL."""

_ROWS = (
    "SELECT * FROM {table} LIMIT {rows}",
    "SELECT TOP {rows} * FROM {table}",
    "SELECT * FROM {table} FETCH FIRST {rows} ROWS ONLY",
)
"""Queries for some rows of a table, in the dialects of SQL."""

MAX_DRAWS = 3
"""Draws of the other arguments of a tool, until one reaches tables."""

Query = Callable[[str], Awaitable[Any]]
"""Makes a query with a tool, and gives what `Run` gives."""

Others = Callable[[CatalogTool, str], dict[str, Any]]
"""Draws the required arguments of a tool but the SQL, in the parameter of this name. Raises LookupError."""

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


def _noun(table: Table) -> str:
    """What a row of a table is."""
    return one_of(" ".join(words(table.name)))


def _leaf(head: str) -> Callable[[str], Question]:
    return lambda value: Question("leaf", head, value)


def _counter(items: str) -> Callable[[str], Question]:
    return lambda value: Question("count", "", value, items=items)


def _short(value: Any, kind: Any = str | int) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and 0 < len(str(value)) <= SHORT


def sql_parameter(tool: CatalogTool) -> str | None:
    """The parameter of a tool that seems to take SQL: by its name, or else by its description. None: there is none."""
    texts = {
        name: inner
        for name, schema in properties_of(tool).items()
        if (inner := plain(schema, tool.input_schema)).get("type") == "string" and "enum" not in inner
    }
    if by_name := next((name for name in texts if _is_named_sql(tool, name, texts[name])), None):
        return by_name
    return next((name for name, inner in texts.items() if "sql" in words(inner.get("description", ""))), None)


def _is_named_sql(tool: CatalogTool, name: str, schema: Mapping[str, Any]) -> bool:
    """Whether the name of a parameter says that it takes SQL, if it is about SQL."""
    about = words(f"{name} {schema.get('description', '')} {tool.description}")
    return "sql" in words(name) or (name.casefold() in ("query", "sql", "statement") and "sql" in about)


class Sql:
    """Drafts tasks for the tools of a server that take SQL.

    Args:
        tools: The tools that may be called.
        reserve: Which values are held out.
        rng: Source of randomness.
        tableless: Share of the tasks that name no table, of those that are clear without.
    """

    def __init__(
        self, tools: Sequence[CatalogTool], reserve: Reserve, rng: random.Random, tableless: float = 0.0
    ) -> None:
        self._tableless = tableless
        self.tools = {tool.name: name for tool in tools if (name := sql_parameter(tool)) is not None}
        self._by_name = {tool.name: tool for tool in tools}
        self._reserve = reserve
        self._rng = rng
        self._reading = ""
        self._others: dict[str, Any] = {}
        self.tables: list[Table] = []

    async def look(self, run: Run, others: Others = lambda *_: {}) -> None:
        """Looks at the tables with the first tool that lets us.

        Args:
            run: Calls a tool.
            others: Draws the arguments that a tool needs beside the SQL.
        """
        for name in sorted(self.tools, key=self._writes):
            await self._look_with(name, run, others)
            if self.tables:
                break
        for table in self.tables:
            for column in table.identifying():
                self._reserve.domain([row[column] for row in table.rows])

    def settle(self) -> None:
        """Leaves out of `tools` those that are called like any other: there are no tables, or they need what is not
        known. One that needs other arguments stays as long as there are no tables: another look may find them."""
        self.tools = {name: parameter for name, parameter in self.tools.items() if self._is_usable(name, parameter)}

    def _is_usable(self, name: str, parameter: str) -> bool:
        tool = self._by_name[name]
        needs = set(tool.input_schema.get("required", ())) - {parameter}
        is_named = _is_named_sql(tool, parameter, plain(properties_of(tool)[parameter], tool.input_schema))
        return name == self._reading or (is_named and (needs <= set(self._others) if self.tables else bool(needs)))

    async def _look_with(self, name: str, run: Run, others: Others) -> None:
        """Looks at the tables with a tool. Where it needs other arguments too, the first ones that work are kept."""
        tool, parameter = self._by_name[name], self.tools[name]
        needs_others = set(tool.input_schema.get("required", ())) - {parameter}
        for _ in range(MAX_DRAWS if needs_others else 1):
            try:
                drawn = others(tool, parameter) if needs_others else {}
            except LookupError:
                return

            async def query_with(query: str, own: dict[str, Any] = drawn) -> Any:
                return await run(tool, {**own, parameter: query})

            for listing in _LISTINGS:
                for table_name in _identifiers(await query_with(listing))[:TABLES]:
                    if table := await _table(table_name, query_with):
                        self.tables.append(table)
                if self.tables:
                    self._reading, self._others = name, drawn
                    return

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
        creates, reads = "create" in self._by_name[name].words, not self._writes(name)
        kinds: list[Any] = [self._create] if creates else self._reads() if reads or name == self._reading else []
        kinds += [] if creates or reads else self._changes()
        task = self._rng.choice(kinds)(table)
        if task is None:
            return None
        query, do, question, literals, short = task
        held_out = frozenset().union(*(self._reserve.held_out(value) for value in literals))
        if held is not None and bool(held_out) is not held:
            return None
        others = {other: value for other, value in self._others.items() if other in properties_of(self._by_name[name])}
        step = Step(tool=name, arguments={**others, self.tools[name]: query}, by_result=question is not None)
        notes = [f"{' '.join(words(other))} {render_value(value, self._rng)}" for other, value in others.items()]
        table_phrase = f"the table {table.name}" + (f" ({', '.join(notes)})" if notes else "")
        where = f"in {table_phrase}"

        tableless = short is not None and not notes and self._rng.random() < self._tableless
        if tableless and question is None:
            do = short
        elif tableless:
            question = short

        def render_call(rng: random.Random) -> Wish:
            if question is None:
                request = rng.choice(do) + (f" ({', '.join(notes)})" if notes else "")
                return Wish(request, gerund(request))
            if tableless:
                return Wish("look into the database", "looking into the database", alone=True)
            verb = rng.choice(("query", "look into", "look at", "go through"))
            return Wish(f"{verb} {table_phrase}", f"{gerund(verb)} {table_phrase}", table_phrase, "table", False, where)

        def find_questions(result: Any, again: Any, rng: random.Random) -> list[Question]:
            values = cells(result)
            if question is None or len(values) != 1 or result != again:
                return []
            text = str(values[0])
            if isinstance(result, str) and text not in result:  # an agent would have to know how a date is written
                return []
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
        query = f"SELECT COUNT(*) FROM {table.name}"
        short = _counter(plural(_noun(table))) if self._is_alone(table) else None
        return query, [], _counter("rows"), [], short

    def _value(self, table: Table) -> Any:
        keys = table.identifying()
        if not keys or len(table.columns) < 2:
            return None
        key = self._rng.choice(keys)
        column = self._rng.choice([column for column in table.columns if column != key])
        row = self._rng.choice(table.rows)
        who = self._rng.choice(self._ways(table, key, row[key]))
        query = f"SELECT {column} FROM {table.name} WHERE {key} = {literal(row[key])}"
        names = self._short_ways(table, key, row[key])
        short = _leaf(f"the {column} of {self._rng.choice(names)}") if names else None
        return query, [], _leaf(f"the {column} of {who}"), [row[key]], short

    def _ways(self, table: Table, key: str, value: Any) -> list[str]:
        """How a row is named."""
        noun, text = _noun(table), render_value(value, self._rng)
        with_key = f"the {noun} with the {key} {text}"
        if words(key)[-1:] == ["id"]:
            return [f"{noun} {text}", with_key]
        ways = [with_key, f"the {noun} whose {key} is {text}"]
        return [*ways, text] if words(key)[-1:] in (["name"], ["title"]) else ways

    def _extreme(self, table: Table) -> Any:
        columns = table.numbers()
        if not columns:
            return None
        column = self._rng.choice(columns)
        function, word = self._rng.choice((("MAX", "highest"), ("MIN", "lowest"), ("SUM", "sum of all values of")))
        head = f"the {word} {column}"
        short = _leaf(f"{head} of all {plural(_noun(table))}") if self._is_alone(table) else None
        return f"SELECT {function}({column}) FROM {table.name}", [], _leaf(head), [], short

    def _count_where(self, table: Table) -> Any:
        columns = table.texts()
        if not columns:
            return None
        column, row = self._rng.choice(columns), self._rng.choice(table.rows)
        query = f"SELECT COUNT(*) FROM {table.name} WHERE {column} = {literal(row[column])}"
        which = f"with the {column} {render_value(row[column], self._rng)}"
        short = _counter(f"{plural(_noun(table))} {which}") if self._is_alone(table) else None
        return query, [], _counter(f"rows {which}"), [row[column]], short

    def _is_alone(self, table: Table) -> bool:
        """Whether the noun of a table is that of no other one, so that it stands for the table."""
        return sum(_noun(other) == _noun(table) for other in self.tables) == 1

    def _short_ways(self, table: Table, key: str, value: Any) -> list[str]:
        """How a row is named where nobody says in which table it is. Empty: it is not clear without that."""
        if not self._is_alone(table):
            return []
        ways = self._ways(table, key, value)
        others = [cell for other in self.tables if other is not table for row in other.rows for cell in row.values()]
        by_name = isinstance(value, str) and words(key)[-1:] in (["name"], ["title"]) and value not in others
        return [f"the {_noun(table)} {ways[-1]}", ways[-1], ways[-1]] if by_name else ways[:2]

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
        new = article(_noun(table))
        short = [f"add {new} with {phrase}", f"enter {new} with {phrase}"] if self._is_alone(table) else None
        return query, ways, None, list(values.values()), short

    def _update(self, table: Table) -> Any:
        keys = table.identifying()
        free = [column for column in table.columns if words(column)[-1:] != ["id"]]
        if not keys or not free:
            return None
        key, column = self._rng.choice(keys), self._rng.choice(free)
        row, value = self._rng.choice(table.rows), self._fresh(table, column)
        if key == column or row[column] == value:
            return None
        who, new = self._rng.choice(self._ways(table, key, row[key])), render_value(value, self._rng)
        query = f"UPDATE {table.name} SET {column} = {literal(value)} WHERE {key} = {literal(row[key])}"
        ways = [
            f"set the {column} of {who} in the table {table.name} to {new}",
            f"change the {column} of {who} to {new} in the table {table.name}",
            f"update {table.name}: the {column} of {who} should be {new}",
        ]
        names = self._short_ways(table, key, row[key])
        verbs = ("set", "change", "update")
        short = [f"{verb} the {column} of {self._rng.choice(names)} to {new}" for verb in verbs] if names else None
        return query, ways, None, [row[key], value], short

    def _delete(self, table: Table) -> Any:
        keys = table.identifying()
        if not keys:
            return None
        key, row = self._rng.choice(keys), self._rng.choice(table.rows)
        who = self._rng.choice(self._ways(table, key, row[key])[:2])
        ways = [
            f"delete {who} from the table {table.name}",
            f"remove {who} from {table.name}",
            f"get rid of {who} in the table {table.name}",
        ]
        names = self._short_ways(table, key, row[key])
        verbs = ("delete", "remove", "get rid of")
        short = [f"{verb} {self._rng.choice(names)}" for verb in verbs] if names else None
        return f"DELETE FROM {table.name} WHERE {key} = {literal(row[key])}", ways, None, [row[key]], short

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
        return f"CREATE TABLE {name} ({', '.join(columns)})", ways, None, [name], None

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


def _identifiers(result: Any) -> list[str]:
    """The names in a result, each once: the values of its rows, or else the words of a text."""
    names = re.findall(r"\w+", result) if isinstance(result, str) and read_rows(result) is None else cells(result)
    return list(dict.fromkeys(str(name) for name in names if str(name).isidentifier()))


async def _table(name: str, query_with: Query) -> Table | None:
    """Some rows of a table. A server that leaves out the names of the columns is asked for them.

    Args:
        name: Its name.
        query_with: Makes a query.

    Returns:
        The table. None: it has no rows, or they cannot be read.
    """
    for query in _ROWS:
        content = read_rows(await query_with(query.format(table=name, rows=ROWS)))
        if content is None:
            continue
        if content.columns is None:
            for names_query in _COLUMNS:
                listed = read_rows(await query_with(names_query.format(table=name)))
                names = [str(row[0]) for row in listed.rows] if listed else []
                if 0 <= len(names) - len(content.rows[0]) <= 1:  # the first may be the header of the list
                    content = content.without_header(names[-len(content.rows[0]) :])
                    break
        rows = [dict(zip(content.columns or (), row, strict=False)) for row in content.rows]
        columns = [column for column in content.columns or () if column.isidentifier()]
        if rows and columns:
            return Table(name, columns, [{column: row[column] for column in columns} for row in rows])
    return None


def literal(value: Any) -> str:
    """A value as SQL."""
    return str(value) if isinstance(value, int | float) else "'" + str(value).replace("'", "''") + "'"
