"""The house: which package may import which, no circles.

import-linter holds the layers (pyproject.toml); the tests here hold what it cannot say, and that its contracts break
when they should.
"""

from __future__ import annotations

import ast
import functools
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("art_langgraph", "art_mcp", "trainer_server")
TABLES = {"trainer_server/process/child.py"}
"""Files that keep a table from the formatter."""
WHERE = ROOT / "docs" / "contributing" / "folders.md"
CLIENT_ROOM, SERVER_ROOM = "art_langgraph/client/planted.py", "trainer_server/jobs/planted.py"
CLIENT_LAYERS = "cli -> auto_pilot, auto_rl, project -> loop"
"""How the name of the contract about the rooms of art_langgraph begins."""


def settings() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]


def folders(*names: str) -> Iterator[Path]:
    """Every folder below these that holds Python files."""
    for name in names:
        yield from sorted({path.parent for path in (ROOT / name).rglob("*.py")})


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {module_name(path): path for path in found if "vllm_plugins" not in path.parts}  # those are vLLM's modules


@functools.cache
def imports(source: str) -> list[ast.Import | ast.ImportFrom]:
    """What a file imports anywhere: at its top, in functions, under TYPE_CHECKING."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))]


def imported(source: str, known: set[str]) -> set[str]:
    """The modules among `known` that a file imports."""
    names: set[str] = set()
    for node in imports(source):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif node.module and not node.level:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names.update(name if name in known else node.module for name in inner)
    return names & known


def test_no_import_circle_also_under_type_checking() -> None:
    found = modules()
    arrows = {name: imported(path.read_text(), set(found)) - {name} for name, path in found.items()}
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        pytest.fail(f"modules import one another in a circle: {' <- '.join(error.args[1])}")


def test_a_circle_under_type_checking_is_seen() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a.b import c\n"
    assert imported(source, {"a.b.c", "a.b"}) == {"a.b.c"}
    assert imported(source, {"a.b"}) == {"a.b"}


def test_imports_name_their_module_in_full() -> None:
    """Relative imports would hide from the tests here."""
    for path in modules().values():
        relative = [
            node.lineno for node in imports(path.read_text()) if isinstance(node, ast.ImportFrom) and node.level
        ]
        assert not relative, f"{path}: lines {relative}"


def bound_names(source: str) -> Iterator[str]:
    """The names that a file gives to variables, attributes and parameters, each as often as it does so."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
                | ast.arg(arg=name)
                | ast.ExceptHandler(name=str(name))
            ):
                yield name


@pytest.mark.parametrize("package", PACKAGES)
def test_names_say_what_they_are_and_the_formatter_formats(package: str) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        source, file = path.read_text(), str(path.relative_to(ROOT))
        vague = {"one", "found"} & set(bound_names(source))
        assert not vague, f"{file} names {' and '.join(vague)}: name a thing by what it is (row, completion, version)"
        assert "# fmt: skip" not in source or file in TABLES, f"{file}: write lines that read well as ruff formats them"


@pytest.mark.parametrize(
    "source",
    [
        "one = 1",
        "one: int = 1",
        "self.one = 1",
        "first, (one, *rest) = values",
        "if one := values: pass",
        "for one in values: pass",
        "total = sum(one.size for one in values)",
        "def add(one, /): pass",
        "lambda *one: one",
        "with opened() as one: pass",
        "try: pass\nexcept OSError as one: pass",
    ],
)
def test_each_way_to_give_a_name_is_counted(source: str) -> None:
    assert list(bound_names(source)).count("one") == 1


def named_folders() -> set[str]:
    """The folders that docs/contributing/folders.md names. A line is a folder, indented by two spaces for each folder
    around it, and what is in it."""
    named, around = set(), [""] * 8
    for line in WHERE.read_text().splitlines():
        if match := re.match(r"( *)(\w+/) +\S", line):
            depth = len(match[1]) // 2
            around[depth] = match[2]
            named.add("".join(around[: depth + 1]))
    return named


def test_what_is_where_names_every_folder_of_the_packages() -> None:
    there = {f"{folder.relative_to(ROOT).as_posix()}/" for folder in folders(*PACKAGES)}
    named = {folder for folder in named_folders() if folder.startswith(PACKAGES)}
    page = WHERE.relative_to(ROOT)
    assert there - named == set(), f"{page}: add a line for each of these, below its folder, with what is in it"
    assert named - there == set(), f"{page}: take out the lines of these, which are not there"


def test_every_package_says_what_it_is() -> None:
    for folder in folders(*PACKAGES):
        if folder.name == "vllm_plugins":
            continue
        assert (folder / "__init__.py").exists(), f"{folder} holds Python files and is no package"
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), f"{folder} has no docstring"


def test_what_is_installed_is_what_is_there() -> None:
    listed = set(settings()["setuptools"]["packages"])
    there = {module_name(path) for path in modules().values() if path.name == "__init__.py"}
    assert {name for name in listed if not name.startswith("art_examples")} == there


def test_contracts_name_every_room_of_the_server() -> None:
    rooms = {
        f"trainer_server.{path.stem}"
        for path in (ROOT / "trainer_server").iterdir()
        if (path.is_dir() and (path / "__init__.py").exists()) or (path.suffix == ".py" and path.stem != "__init__")
    }
    contracts = {contract["name"]: contract for contract in settings()["importlinter"]["contracts"]}
    client = next(contract for name, contract in contracts.items() if name.startswith("the client knows"))
    torch = next(contract for name, contract in contracts.items() if name.startswith("torch"))
    named = {name for name in client["forbidden_modules"] if name.startswith("trainer_server.")}
    assert named == rooms - {"trainer_server.common", "trainer_server.tracking", "trainer_server.wire"}
    assert set(torch["source_modules"]) == rooms - {"trainer_server.training"}


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages, to be broken."""
    where = tmp_path_factory.mktemp("house")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, where / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", where)
    return where


def lint(where: Path) -> tuple[int, str]:
    code = "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports_command as run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=where, capture_output=True, text=True, timeout=900
    )
    return done.returncode, re.sub(r"\s+", " ", done.stdout + done.stderr)


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        (SERVER_ROOM, "import torch", "torch and what is built on it: in the trainer process only BROKEN"),
        (
            CLIENT_ROOM,
            "import trainer_server.jobs",
            "the client knows the wire contract, what is common",
        ),
        (
            "art_mcp/client/planted.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from trainer_server.process.child import Child",
            "trainer_server.process",
        ),
        ("trainer_server/engines/planted.py", "import trainer_server.policies.store", "trainer_server.policies"),
        (CLIENT_ROOM, "from art_langgraph.capture.scope import current", CLIENT_LAYERS),
        ("art_langgraph/project/planted.py", "import art_langgraph.auto_rl.autorl", CLIENT_LAYERS),  # side by side
        ("art_langgraph/planted.py", "", CLIENT_LAYERS),  # a room that no layer names
        ("art_langgraph/loop/planted.py", "import art_langgraph.exports.names", "nothing imports an extension"),
    ],
)
def test_an_import_that_is_not_allowed_breaks_a_contract(copied: Path, file: str, line: str, broken: str) -> None:
    planted = copied / file
    planted.write_text(line + "\n")
    try:
        status, said = lint(copied)
    finally:
        planted.unlink()
    assert status == 1, said
    assert broken in said
    assert "BROKEN" in said
    assert file.removesuffix(".py").replace("/", ".") in said.replace(" ", ""), said


def test_without_such_an_import_the_contracts_are_kept(copied: Path) -> None:
    status, said = lint(copied)
    assert status == 0, said


def test_participles_and_verbs_of_speech_are_refused_as_names(tmp_path: Path) -> None:
    source = (
        "class Recorded:\n"
        "    offered: int\n"
        "    full: bool\n"
        "    cancelled: bool\n"
        "    def told(self, given, kept: bool, left, right): self.made = given\n"
        "    def closed(self) -> bool: return True\n"
        "    def need(self, _asked, rows_read): self._noted = 1\n"
    )
    path = tmp_path / "unshown.py"
    path.write_text(source)
    done = subprocess.run([sys.executable, ".ci/names", str(path)], cwd=ROOT, capture_output=True, text=True)
    found = [line.split(": ")[1] for line in done.stdout.splitlines()[:-1]]
    assert sorted(found) == sorted(
        ["module unshown", "class Recorded", "attribute offered", "function told", "parameter given", "attribute made",
         "parameter _asked"]
    )  # fmt: skip
    assert done.returncode == 1


def test_no_console_makes_emoji_of_what_users_wrote() -> None:
    """rich replaces `:name:` by a picture, also in text that is escaped."""
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    calls = [(path, call) for path in sources for call in re.findall(r"\bConsole\([^\n]*", path.read_text())]
    assert calls
    assert [(path.name, call) for path, call in calls if "emoji=False" not in call] == []
