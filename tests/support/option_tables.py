"""The tables of options in the docs: `python -m tests.support.option_tables` writes them, from the dataclasses.

A table may leave out rows of earlier tables, which its comment names: `options of A:B, besides those of C:D`.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from art_langgraph.loop.options import markdown_table

PAGES = Path(__file__).parents[2] / "docs" / "reference"
TABLE = re.compile(
    r"(<!-- options of ([\w.]+:\w+)(?:, besides those of ([\w.:, ]+))? -->\n\n)"
    r"(?:\|.*\n)*(\n<!-- end of the options -->)"
)


def renew(page: str) -> str:
    """A page with the tables that the dataclasses make, which its comments name."""

    def table(match: re.Match[str]) -> str:
        heading, rule, *rows = _lines(match[2])
        earlier = {row for name in (match[3] or "").split(", ") if name for row in _lines(name)[2:]}
        repeated = ", ".join(row.split(" | ")[0].removeprefix("| ") for row in rows if row in earlier)
        others = [row for row in rows if row not in earlier]
        if repeated:
            others.append(f"| {repeated} | | | as in the tables of [arguments of rollouts](rollouts.md) |")
        lines = "\n".join([heading, rule, *others])
        return f"{match[1]}{lines}\n{match[4]}"

    return TABLE.sub(table, page)


def _lines(name: str) -> list[str]:
    """The lines of the table of a dataclass, `module:Class`."""
    module, _, options = name.partition(":")
    return markdown_table(getattr(import_module(module), options)).splitlines()


if __name__ == "__main__":
    for path in PAGES.glob("*.md"):
        path.write_text(renew(path.read_text()))
