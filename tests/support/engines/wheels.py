"""Which versions of vLLM have what the plugins change or use: read from the source in their wheels.

`python -m tests.support.engines.wheels` fetches each wheel, 250 MB, one at a time, and compares what it finds with the
table in docs/scaling/vllm-versions.md; `--write` writes the table. Nothing of vLLM is imported.
"""

from __future__ import annotations

import ast
import difflib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.support.engines.plugins import engine_plugin

PAGE = Path(__file__).parents[3] / "docs" / "scaling" / "vllm-versions.md"
BEGIN, END = "<!-- versions of vLLM: `make vllm-table ARGS=--write` -->", "<!-- end of the versions -->"
OLDEST = (0, 25)
SERVER = {
    "token ids in answers": (
        "vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest.return_token_ids",
    ),
    "tokens as a prompt of chats": ("vllm.renderers.online_renderer:_reused_prompt_token_ids(request)",),
}
"""What the server asks of vLLM's HTTP API, besides what every version has."""
_SURROUND = (ast.If, ast.Try, ast.With)
"""Statements around definitions of a module or class."""

Definition = tuple[str, ast.AST]
"""A definition, and the module that it is in."""


def features() -> dict[str, dict[str, tuple[str, ...]]]:
    """By plugin, or `server`: by feature, the parts that it needs."""
    names = (*engine_plugin("art_parts").PLUGINS, "art_registry")
    return {"server": SERVER, **{name: dict(engine_plugin(name).PARTS) for name in names}}


class Sources:
    """The modules of a package as text.

    Args:
        read: The source of a file by its path, `vllm/config/__init__.py`; None: there is no such file.
    """

    def __init__(self, read: Callable[[str], str | None]) -> None:
        self._read = read
        self._tree = cache(self._parse)

    def has(self, part: str) -> bool:
        """Whether a part is there, as `art_parts.present` decides it in a running vLLM."""
        module, _, rest = part.partition(":")
        name, _, arguments = rest.rstrip(")").partition("(")
        owner, _, attribute = name.partition(".self.")
        first, *members = owner.split(".")
        definition = self._find(module, first)
        for member in members:
            definition = definition and self._member(definition, member)
        if definition is None or not attribute:
            return definition is not None and (not arguments or _takes(definition[1], arguments))
        return self._sets(definition, attribute)

    def _parse(self, module: str) -> tuple[str, ast.Module] | None:
        """The package that relative imports of a module begin at, and its tree."""
        path = module.replace(".", "/")
        if (source := self._read(f"{path}/__init__.py")) is not None:
            return module, ast.parse(source)
        if (source := self._read(f"{path}.py")) is not None:
            return module.rpartition(".")[0], ast.parse(source)
        return None

    def _find(self, module: str, name: str) -> Definition | None:
        """The definition of a name of a module, wherever it is imported from."""
        entry = self._tree(module)
        if entry is None:
            return None
        package, tree = entry
        for node in _statements(tree):
            if name in _names(node):
                return module, node
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if alias.name == "*" or (alias.asname or alias.name) == name:
                        source = _absolute(package, node)
                        if definition := self._find(source, name if alias.name == "*" else alias.name):
                            return definition
        return None

    def _bases(self, definition: Definition) -> Iterator[Definition]:
        module, node = definition
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            name = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(name, ast.Name) and (base_definition := self._find(module, name.id)):
                yield base_definition

    def _member(self, definition: Definition, name: str) -> Definition | None:
        if not isinstance(definition[1], ast.ClassDef):
            return None
        for node in _statements(definition[1]):
            if name in _names(node):
                return definition[0], node
        members = (self._member(base, name) for base in self._bases(definition))
        return next(filter(None, members), None)

    def _sets(self, definition: Definition, attribute: str) -> bool:
        own = any(
            isinstance(node, ast.Attribute)
            and node.attr == attribute
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
            for node in ast.walk(definition[1])
        )
        return own or any(self._sets(base, attribute) for base in self._bases(definition))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*_SURROUND, ast.ExceptHandler)):
            yield from _statements(child)
        else:
            yield child


def _names(node: ast.AST) -> Sequence[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return (node.name,)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _absolute(package: str, node: ast.ImportFrom) -> str:
    above = package.split(".")[: len(package.split(".")) - max(0, node.level - 1)]
    return ".".join([*above, *filter(None, [node.module])]) if node.level else str(node.module)


def _takes(node: ast.AST, arguments: str) -> bool:
    if not isinstance(node, ast.FunctionDef):
        return False
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    expected_names = [argument.strip() for argument in arguments.split(",")]
    return names[names[:1] in (["self"], ["cls"]) :][: len(expected_names)] == expected_names


def versions() -> list[str]:
    """All releases from the oldest on, that first."""
    output = _pip("index", "versions", "vllm")
    match = re.search(r"^Available versions: (.*)$", output, re.MULTILINE)
    if match is None:
        raise RuntimeError(f"pip lists no versions of vLLM:\n{output}")
    numbers = {name: tuple(map(int, name.split("."))) for name in match[1].split(", ") if re.fullmatch(r"[\d.]+", name)}
    return sorted((name for name, number in numbers.items() if number >= OLDEST), key=numbers.__getitem__)


def lacking(version: str) -> dict[str, list[str]]:
    """By feature: the parts that a release has not. Its wheel is on the disk meanwhile."""
    with tempfile.TemporaryDirectory() as where:
        _pip("download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", where, f"vllm=={version}")
        (wheel,) = Path(where).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            names = set(files.namelist())
            sources = Sources(lambda path: files.read(path).decode() if path in names else None)
            return {
                feature: [part for part in parts if not sources.has(part)]
                for by_feature in features().values()
                for feature, parts in by_feature.items()
            }


def table(missing_by_version: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """The table of the documentation: feature × version, and what is missing.

    Args:
        found: By version: what `lacking` answers.
    """
    lines = [
        "| of | feature | " + " | ".join(missing_by_version) + " |",
        "|---|---|" + "---|" * len(missing_by_version),
    ]
    for owner, by_feature in features().items():
        for feature in by_feature:
            cells = ("–" if missing[feature] else "yes" for missing in missing_by_version.values())
            lines.append(f"| `{owner}` | {feature} | {' | '.join(cells)} |")
    without: dict[tuple[str, str], list[str]] = {}
    for version, missing in missing_by_version.items():
        for feature, parts in missing.items():
            for part in parts:
                without.setdefault((feature, part), []).append(version)
    lines += ["", *(f"- {feature}: `{part}` is not in {', '.join(of)}." for (feature, part), of in without.items())]
    return "\n".join(lines).rstrip()


def documented_table() -> str:
    """The table that the documentation has."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip()


def _pip(*words: str) -> str:
    line = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    result = subprocess.run(line, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"`pip {' '.join(words)}` failed:\n{result.stderr[-1000:]}")
    return result.stdout


def missing_by_version() -> dict[str, dict[str, list[str]]]:
    """By version: what it lacks."""
    return {version: lacking(version) for version in versions()}


def main() -> None:
    now, before = table(missing_by_version()), documented_table()
    if "--write" in sys.argv[1:]:
        page = PAGE.read_text()
        head, _, rest = page.partition(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n\n{now}\n\n{END}{rest.partition(END)[2]}")
    elif now != before:
        print("\n".join(difflib.unified_diff(before.splitlines(), now.splitlines(), "the table", "the wheels", "", "")))
        sys.exit(f"{PAGE} has another table: make vllm-table ARGS=--write")


if __name__ == "__main__":
    main()
