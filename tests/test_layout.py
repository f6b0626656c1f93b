"""Tests are laid out as the packages are, and take what they share from tests/support and testbed."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("art_langgraph", "art_mcp", "trainer_server", "examples", "benchmarks")
OF_THEIR_OWN = ("tests/full/", "tests/frameworks/", "tests/docs/", "tests/test_")
"""What mirrors no package: programs as a user starts them, over the real vLLM; other frameworks; the code of the
documentation; what holds for all of the repository."""
OF_A_PACKAGE = {"public_names"}
"""What tests of a whole package, its `__init__`, are about."""

FILES = sorted(
    path for folder in ("tests", "benchmarks", "examples", "testbed") for path in (ROOT / folder).rglob("*.py")
)
TESTS = [path for path in FILES if path.name.startswith("test_")]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def imports(path: Path) -> set[str]:
    """The modules and names that a file imports, in functions too: `from a.b import c` gives `a.b` and `a.b.c`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def test_no_test_imports_from_a_test_or_a_conftest() -> None:
    """What two tests need is in tests/support."""
    wrong = set()
    for path in FILES:
        modules = [module.split(".") for module in imports(path) if module.startswith((".", "tests"))]
        if any(part.startswith("test_") or part == "conftest" for module in modules for part in module):
            wrong.add(relative(path))
    assert wrong == set()


def test_benchmarks_and_examples_import_no_tests() -> None:
    """What they and tests need is in testbed."""
    others = [path for path in FILES if not relative(path).startswith("tests/")]
    assert [relative(path) for path in others if any(one.split(".")[0] == "tests" for one in imports(path))] == []


def test_examples_import_no_benchmarks() -> None:
    """What both need is in examples/learning. An example is installed without benchmarks and testbed."""
    examples = [path for path in FILES if relative(path).startswith("examples/")]
    assert examples
    for path in examples:
        assert not {one.split(".")[0] for one in imports(path)} & {"benchmarks", "testbed"}, relative(path)


def test_a_test_file_mirrors_a_module_or_a_folder() -> None:
    """tests/PACKAGE/FOLDER/test_*.py is about PACKAGE/FOLDER, and tests/PACKAGE/test_NAME_*.py about PACKAGE/NAME. A
    module with many tests has a folder of them: tests/PACKAGE/NAME/test_*.py is about PACKAGE/NAME.py."""
    wrong = []
    for path in TESTS:
        if relative(path).startswith(OF_THEIR_OWN):
            continue
        package, *folders = path.parent.relative_to(ROOT / "tests").parts
        mirrored = ROOT.joinpath(package, *folders)
        names = {entry.stem for entry in mirrored.glob("*") if entry.suffix == ".py" or entry.is_dir()}
        words = path.stem.split("_")[1:]
        about = {"_".join(words[:count]) for count in range(1, len(words) + 1)}
        there = mirrored.is_dir() or mirrored.with_suffix(".py").is_file()
        if package not in PACKAGES or not there or not (folders or about & (names | OF_A_PACKAGE)):
            wrong.append(relative(path))
    assert wrong == []


def test_the_real_vllm_is_used_in_one_folder() -> None:
    """`make test` looks for its tests there alone, so that the others are not collected a third time."""
    others = [path for path in TESTS if not relative(path).startswith(("tests/full/", "tests/test_"))]
    assert [relative(path) for path in others if "mark.vllm" in path.read_text()] == []
