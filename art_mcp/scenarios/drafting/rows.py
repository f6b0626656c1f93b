"""The rows of a table in a result, in whichever form a server gives them: objects, lists, or a text that shows them."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from art_mcp.scenarios.observe import parse_result

MAX_BEGINNINGS = 5
"""Brackets of a text at which a list or an object may begin, at most."""

_CALL = re.compile(r"\b(?:datetime\.)?(date|datetime|Decimal|UUID)\(([^()]*)\)")
"""A value in the notation of Python that is no literal: datetime.date(2026, 3, 9), Decimal('1.5')."""
_RULE = re.compile(r"[\s|+:=─━│┃┼╋╪═┌┬┐└┴┘├┤┏┳┓┗┻┛┡╇┩╞╡╭╮╰╯-]+")
"""A line that has no cells and separates others."""
_BORDER = re.compile(r"[|│┃]")
_ASIDE = re.compile(r"\W*\d+ (?:rows?|results?|records?)\b.*|```.*", re.IGNORECASE)
"""A line of a text table that is none of its rows: "(3 rows)"."""
_INTEGER = re.compile(r"-?(?:0|[1-9]\d*)")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?")
_NOTHING = frozenset({"", "null", "none", "nan"})


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table.

    Args:
        columns: The names of the columns. None: the result does not say.
        rows: The cells of each row.
    """

    columns: list[str] | None
    rows: list[list[Any]]

    def without_header(self, columns: Sequence[str]) -> Rows:
        """The rows below the names of columns, which some servers give as the first row."""
        names = [name.casefold() for name in columns]
        is_header = self.rows and [str(cell).casefold() for cell in self.rows[0]] == names
        return Rows(list(columns), self.rows[1:] if is_header else self.rows)


def read_rows(result: Any) -> Rows | None:
    """The rows in a result. None: it shows no table.

    Args:
        result: The result, as `parse_result` returns it.
    """
    if isinstance(result, str):
        return _of_text(result)
    if isinstance(result, Mapping):
        return _of_object(result)
    if isinstance(result, int | float):
        return Rows(None, [[result]])
    if not isinstance(result, list | tuple) or not result:
        return None
    if all(isinstance(row, Mapping) for row in result):
        columns = list(dict.fromkeys(column for row in result for column in row))
        return Rows([str(column) for column in columns], [[row.get(column) for column in columns] for row in result])
    if all(isinstance(row, list | tuple) for row in result):
        rows = [list(row) for row in result]
        if not rows[0] or any(len(row) != len(rows[0]) for row in rows) or not all(map(_is_flat, rows)):
            return None
        return Rows(None, rows)
    return Rows(None, [[cell] for cell in result]) if _is_flat(result) else None


def cells(result: Any) -> list[Any]:
    """The values of the rows in a result, without nulls. Empty: it shows no table."""
    table = read_rows(result)
    return [cell for row in table.rows for cell in row if cell is not None and cell != ""] if table else []


def _is_flat(row: Sequence[Any]) -> bool:
    return not any(isinstance(cell, list | tuple | Mapping) for cell in row)


def _of_object(result: Mapping[str, Any]) -> Rows | None:
    """The rows in an object: those of a list beside the names of the columns, else its longest list that has any;
    without a list it is a row."""
    lists = {key: value for key, value in result.items() if isinstance(value, list | tuple) and value}
    tables = {key: table for key, value in lists.items() if not _is_flat(value) and (table := read_rows(value))}
    for key, table in tables.items():
        headers = [_names(value) for other, value in lists.items() if other != key and table.columns is None]
        if columns := next((names for names in headers if len(names) == len(table.rows[0])), None):
            return Rows(columns, table.rows)
    if tables:
        return max(tables.values(), key=lambda table: len(table.rows))
    if len(lists) == 1:
        return read_rows(next(iter(lists.values())))
    inner = [value for value in result.values() if isinstance(value, Mapping)]
    if len(inner) == 1:
        return _of_object(inner[0])
    return Rows([str(key) for key in result], [list(result.values())]) if result and not lists and not inner else None


def _names(header: Sequence[Any]) -> list[str]:
    """The names in a list of columns: texts, or objects with a name. Empty: it is no such list."""
    names = [column.get("name") if isinstance(column, Mapping) else column for column in header]
    return [name for name in names if isinstance(name, str)] if all(isinstance(name, str) for name in names) else []


def _of_text(text: str) -> Rows | None:
    """The rows in a text: a list in the notation of JSON or Python, also below a heading, or lines with cells."""
    literal = _CALL.sub(_literal, text)
    for match in islice(re.finditer(r"[\[{]", literal), MAX_BEGINNINGS):
        value = parse_result(literal[match.start() :])
        if not isinstance(value, str):
            return read_rows(value)
    return _of_lines([line.rstrip() for line in text.splitlines() if line.strip()])


def _literal(match: re.Match[str]) -> str:
    """The value of a call in the notation of Python, as a literal."""
    kind, inner = match[1], match[2]
    parts = inner.split(",")
    if kind == "Decimal":
        return inner.strip("'\" ")
    if kind == "UUID" or not all(part.strip().isdigit() for part in parts) or len(parts) < 3:
        return inner if inner[:1] in "'\"" else repr(inner)
    numbers = [int(part) for part in parts]
    day = "{:04}-{:02}-{:02}".format(*numbers[:3])
    clock = ":".join(f"{number:02}" for number in [*numbers[3:6], 0, 0, 0][:3])
    return repr(day if kind == "date" else f"{day} {clock}")


def _of_lines(text_lines: Sequence[str]) -> Rows | None:
    """The rows of a text table: with borders, tabs, commas or spaces between the cells, or of one column."""
    content = [line for line in text_lines if not _RULE.fullmatch(line) and not _ASIDE.fullmatch(line)]
    for rows in (_cells_with_borders(content), _cells_between(content, "\t"), _cells_between(content, ",")):
        if len(rows) > 1:
            return _with_numbers(rows)
    if any(_RULE.fullmatch(line) for line in text_lines):
        rows = [re.split(r" {2,}", line.strip()) for line in content]
        return _with_numbers(rows) if len(rows) > 1 and len({len(row) for row in rows}) == 1 else None
    if len(content) == 2 or (len(content) == 1 and _NUMBER.fullmatch(content[0].strip())):
        return _with_numbers([[line.strip()] for line in content])
    return None


def _cells_with_borders(content: Sequence[str]) -> list[list[str]]:
    """The lines whose cells have borders between them, as many as the first of these has."""
    rows = [_BORDER.split(line.strip().strip("|│┃")) for line in content if _BORDER.search(line)]
    return [[cell.strip() for cell in row] for row in rows if len(row) == len(rows[0])]


def _cells_between(content: Sequence[str], separator: str) -> list[list[str]]:
    """The lines whose cells are separated, as many as the most lines have. Empty: too few are alike."""
    rows = [row for row in csv.reader(content, delimiter=separator) if len(row) > 1]
    alike = [row for row in rows if len(row) == len(rows[0])]
    return [[cell.strip() for cell in row] for row in alike] if len(alike) >= max(2, len(content) - 2) else []


def _with_numbers(rows: Sequence[Sequence[str]]) -> Rows | None:
    """Rows of texts, with numbers in the columns that have nothing else. The first row is a header if it has no number
    and there are others."""
    has_header = len(rows) > 1 and not any(_NUMBER.fullmatch(cell) for cell in rows[0])
    table: list[list[Any]] = [
        [None if cell.casefold() in _NOTHING else cell for cell in row] for row in rows[1 if has_header else 0 :]
    ]
    for at in range(len(rows[0])):
        column = [row[at] for row in table if row[at] is not None]
        if column and all(_NUMBER.fullmatch(cell) for cell in column):
            kind = int if all(_INTEGER.fullmatch(cell) for cell in column) else float
            for row in table:
                row[at] = None if row[at] is None else kind(row[at])
    return Rows(list(rows[0]) if has_header else None, table)
