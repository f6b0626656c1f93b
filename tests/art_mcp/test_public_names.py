"""`import art_mcp`: the public names, and what is loaded before one of them is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import art_mcp

HEAVY = ("langchain_core", "langgraph", "langchain_openai", "litellm", "torch", "transformers", "mcp")


def test_imports_for_type_checkers_agree_with_the_table_and_with_all() -> None:
    tree = ast.parse(Path(art_mcp.__file__).read_text())
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    statements = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    imports = {node.module: tuple(alias.name for alias in node.names) for node in statements}
    assert imports == art_mcp._MODULES
    assert sorted(art_mcp.__all__) == sorted(art_mcp._MODULE_OF)


def test_every_public_name_can_be_imported() -> None:
    for name in art_mcp.__all__:
        assert getattr(art_mcp, name).__name__ == name
    assert set(art_mcp.__all__) <= set(dir(art_mcp))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        art_mcp.nothing  # noqa: B018


def test_no_public_name_hides_a_module_and_no_module_hides_a_name() -> None:
    modules = {path.stem for path in Path(art_mcp.__file__).parent.iterdir()}
    assert not modules & set(art_mcp.__all__)
    for folder in ("client", "scenarios", "specialization", "worlds"):
        text = (Path(art_mcp.__file__).parent / folder / "__init__.py").read_text()
        assert not [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]


def test_importing_the_package_and_its_commands_loads_nothing_heavy() -> None:
    code = f"import sys, art_mcp, art_mcp.cli; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == [], done.stderr
