"""`import art_langgraph`: the public names, and what is loaded before one of them is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import art_langgraph

HEAVY = ("langchain_core", "langgraph", "langchain", "langchain_openai", "litellm", "torch", "transformers", "mcp")


def loaded_by(code: str) -> list[str]:
    """Heavy packages that a fresh interpreter has loaded after some code."""
    code = f"import sys\n{code}\nprint(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()


def test_imports_for_type_checkers_agree_with_the_table_and_with_all() -> None:
    tree = ast.parse(Path(art_langgraph.__file__).read_text())
    (checked,) = (one for one in tree.body if isinstance(one, ast.If))
    imports = {
        one.module: tuple(name.name for name in one.names) for one in checked.body if isinstance(one, ast.ImportFrom)
    }
    assert imports == art_langgraph._MODULES
    assert sorted(art_langgraph.__all__) == sorted(art_langgraph._MODULE_OF)


def test_every_public_name_can_be_imported() -> None:
    for name in art_langgraph.__all__:
        assert getattr(art_langgraph, name).__name__ == name
    assert set(art_langgraph.__all__) <= set(dir(art_langgraph))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        art_langgraph.nothing  # noqa: B018


@pytest.mark.slow
def test_every_public_name_can_be_the_first_that_is_imported() -> None:
    """Each in a process of its own, forked after the packages of others are loaded."""
    code = """
import os, httpx, langchain_openai, langgraph.graph, mcp
import art_langgraph
for name in art_langgraph.__all__:
    if not os.fork():
        getattr(art_langgraph, name)
        os._exit(0)
    assert os.wait()[1] == 0, name
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_module_has_the_name_of_a_public_name() -> None:
    """It would take the name's place as soon as somebody imports it."""
    modules = {path.stem for path in Path(art_langgraph.__file__).parent.iterdir()}
    assert not modules & set(art_langgraph.__all__)


@pytest.mark.slow
def test_public_functions_can_be_called_whatever_was_imported_before() -> None:
    code = "import art_langgraph.auto_rl.autorl, art_langgraph.loop.train\nfrom art_langgraph import autorl, train"
    loaded_by(f"{code}\nassert callable(autorl) and callable(train)")


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("import art_langgraph") == []
