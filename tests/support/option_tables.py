"""The tables of options in the docs: `python -m tests.support.option_tables` writes them, from the dataclasses."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from art_langgraph.loop.options import markdown_table

PAGES = Path(__file__).parents[2] / "docs" / "reference"
TABLE = re.compile(r"(<!-- options of ([\w.]+):(\w+) -->\n\n)(?:\|.*\n)*(\n<!-- end of the options -->)")


def renew(page: str) -> str:
    """A page with the tables that the dataclasses make, which its comments name."""

    def table(match: re.Match[str]) -> str:
        options = getattr(import_module(match[2]), match[3])
        return f"{match[1]}{markdown_table(options)}\n{match[4]}"

    return TABLE.sub(table, page)


if __name__ == "__main__":
    for path in PAGES.glob("*.md"):
        path.write_text(renew(path.read_text()))
