"""docs/capture/frameworks/ shows the agents that are tested, and its table says what the tests check."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import art_langgraph
from tests.support.client_environments import ROOT
from tests.support.frameworks.environments import PACKAGES
from tests.support.frameworks.run_agent import SCRIPTS
from tests.support.frameworks.table import FRAMEWORKS
from tests.support.pages.blocks import blocks_of

FOLDER = ROOT / "docs" / "capture" / "frameworks"
PAGE = (FOLDER / "index.md").read_text()
BLOCKS = [block.text for page in FOLDER.glob("*.md") for block in blocks_of(page) if block.language == "python"]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.py")), ids=lambda script: script.stem)
def test_the_page_has_each_tested_agent_as_it_is(script: Path) -> None:
    assert script.read_text() in BLOCKS


def test_each_tested_agent_is_a_row_of_the_table() -> None:
    rows = {
        cells[0].rpartition(" ")[0]: (cells[1].strip("`"), cells[2], cells[4], cells[5])
        for cells in ROWS
        if "`/v1/" in cells[1]
    }
    assert rows == {
        one.name: (
            f"/v1{one.api}",
            "yes" if one.streams else "no",
            "text" if not one.called else "tools" if one.returned else "results as text",
            "yes" if one.grammar else "no",
        )
        for one in FRAMEWORKS
    }


def test_the_versions_of_the_table_are_those_that_are_installed() -> None:
    versions = {name: version for name, _, version in (cells[0].rpartition(" ") for cells in ROWS)}
    for one in FRAMEWORKS:
        pinned = {re.split(r"[\[>]", package)[0]: package for package in PACKAGES[one.environment]}
        assert f">={versions[one.name]},<" in pinned[one.package]


def test_the_page_says_what_each_sends() -> None:
    rows = {cells[0]: tuple(re.findall(r"`(\w+)`", cells[1])) for cells in ROWS if len(cells) == 3}
    assert rows.items() >= {one.name: one.sends for one in FRAMEWORKS}.items()


def test_the_loop_of_the_page_uses_names_that_exist() -> None:
    (loop,) = (block for block in BLOCKS if "async def main() -> None:" in block and "train(" in block)
    imports = [node for node in ast.walk(ast.parse(loop)) if isinstance(node, ast.ImportFrom)]
    (ours,) = (node for node in imports if node.module == "art_langgraph")
    assert all(hasattr(art_langgraph, alias.name) for alias in ours.names)
