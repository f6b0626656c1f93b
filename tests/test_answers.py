"""docs/answers.md: every row names a public thread and tests, and every test exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = [
    line
    for line in (ROOT / "docs" / "answers.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| problem |")
]


@cache
def names_in(path: str) -> set[str]:
    """Names of the tests in a file."""
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def test_there_are_rows() -> None:
    assert len(ROWS) >= 16


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_a_row_names_a_thread_and_tests_that_exist(row: str) -> None:
    problem, _, tests = row.strip("| ").split(" | ")
    assert re.search(r"\]\(https://github\.com/[\w.-]+/[\w.-]+/(issues/\d+|blob/main/\S+)\)", problem), problem
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)
    assert named, tests
    for path, name in named:
        assert (ROOT / path).is_file(), path
        assert name in names_in(path), f"{path} has no {name}"
