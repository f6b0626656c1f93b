"""`import art_langgraph`: the public names, and what is loaded before one of them is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import art_langgraph
import art_mcp

HEAVY = ("langchain_core", "langgraph", "langchain", "langchain_openai", "litellm", "torch", "transformers", "mcp")


def loaded_by(code: str) -> list[str]:
    """Heavy packages that a fresh interpreter has loaded after some code."""
    code = f"import sys\n{code}\nprint(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize("package", [art_langgraph, art_mcp])
def test_imports_for_type_checkers_agree_with_the_table_and_with_all(package: Any) -> None:
    tree = ast.parse(Path(package.__file__).read_text())
    (checked,) = (one for one in tree.body if isinstance(one, ast.If))
    imports = {
        one.module: tuple(name.name for name in one.names) for one in checked.body if isinstance(one, ast.ImportFrom)
    }
    assert imports == package._MODULES
    assert sorted(package.__all__) == sorted(package._MODULE_OF)


@pytest.mark.parametrize("package", [art_langgraph, art_mcp])
def test_every_public_name_can_be_imported(package: Any) -> None:
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018


@pytest.mark.parametrize("package", [art_langgraph, art_mcp])
def test_no_module_has_the_name_of_a_public_name(package: Any) -> None:
    """It would take the name's place as soon as somebody imports it."""
    modules = {path.stem for path in Path(package.__file__).parent.iterdir()}
    assert not modules & set(package.__all__)


def test_public_functions_can_be_called_whatever_was_imported_before() -> None:
    code = "import art_langgraph.auto_rl.autorl, art_langgraph.loop.train\nfrom art_langgraph import autorl, train"
    loaded_by(f"{code}\nassert callable(autorl) and callable(train)")


def test_importing_the_packages_loads_nothing_heavy() -> None:
    assert loaded_by("import art_langgraph, art_mcp") == []
