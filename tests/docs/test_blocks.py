"""Code blocks of the documentation: what they need, and that names, commands and links in them exist."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

import art_langgraph
import art_mcp
from tests.support.cli import parsed
from tests.support.pages.blocks import BLOCKS, DOCS, PAGES, READMES, ROOT, Block, words_of

NEEDED = {
    "vLLM": 4,
    "vLLM, mcp-server-time and mcp-server-git": 1,
    "vLLM and mcp-server-time": 1,
    "mcp-server-git": 4,
    "a GPU": 1,
    "Ray": 1,
    "a PostgreSQL server": 3,
    "8 GPUs": 1,
    "several machines": 3,
    "a certificate": 1,
    "an account": 1,
    "a key of LangSmith": 4,
    "a deployment": 2,
    "a LangGraph server": 1,
    "a server with this loss": 1,
    "a server of yours": 1,
    "a collector": 1,
    "a network": 2,
    "a training that goes on": 1,
    "docker": 1,
    "docker and the repository": 1,
    "an account of a cloud": 1,
    # Agents of other frameworks: tests/frameworks runs them, with the real packages.
    "ag2": 2, "autogen": 1, "crewai": 1, "dspy": 1, "llama-index": 1, "openai-agents": 1, "pydantic-ai": 1,
    "smolagents": 1, "agno": 1, "google-adk": 1,
    # tests/art_mcp/test_verifiers.py runs them.
    "verifiers": 4,
    # tests/docs/test_bfcl.py runs them.
    "bfcl-eval": 2,
    # tests/docs/test_openenv.py runs them.
    "openenv": 3,
    # Run by hand: Harbor needs Python 3.12.
    "harbor": 3,
    # tests/art_langgraph/judge/test_evaluators.py runs it.
    "openevals": 1,
}  # fmt: skip
"""How many blocks need what the tests of the pages do not have. Such a block is the exception: raise a number only if
its code cannot run against the small engine."""


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def test_what_blocks_need_is_listed(record_property: Callable[[str, object], None]) -> None:
    for block in BLOCKS:
        if block.needs:
            record_property("| a block needs | page and line |\n|---|---|", f"| {block.needs} | {block} |")
    assert Counter(block.needs for block in BLOCKS if block.needs) == NEEDED


def test_commands_and_code_are_known_as_such() -> None:
    assert {block.language for block in BLOCKS} == {"", "console", "json", "python", "yaml"}
    assert [str(block) for block in of("") if re.search(r"^(art-langgraph|pip|make|\$) ", block.text, re.M)] == []
    assert [str(block) for block in of("console") if not block.commands] == []


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_names_that_a_block_imports_exist(block: Block) -> None:
    tree = compile(block.text, str(block), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(tree, ast.Module)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("art_langgraph", "art_mcp"):
            package = art_langgraph if node.module == "art_langgraph" else art_mcp
            assert {alias.name for alias in node.names} <= set(package.__all__), f"{block}: {node.module}"


COMMANDS = [(block, command) for block in of("console") for command in block.commands]


@pytest.mark.parametrize(("block", "command"), COMMANDS, ids=[f"{block} {command[:60]}" for block, command in COMMANDS])
def test_a_command_has_the_options_that_a_page_gives_it(block: Block, command: str) -> None:
    """Also of blocks that need something, and of commands such as `serve`, which go on until they are stopped."""
    parsed(words_of(command))


def test_an_option_that_does_not_exist_is_seen() -> None:
    with pytest.raises(Exception, match="No such option: --no-such"):
        parsed(words_of("art-langgraph engine command --no-such 1"))


def test_programs_of_examples_have_the_options_that_a_page_gives_them() -> None:
    known = set(re.findall(r'"(--[a-z-]+)"', (ROOT / "examples" / "learning" / "program.py").read_text())) | {"--help"}
    programs = [words for _, command in COMMANDS if "art_examples." in command for words in [command.split()]]
    assert len(programs) > len(READMES)
    for python, dash, module, *words in programs:
        assert (python, dash) == ("python", "-m")
        assert (ROOT / "examples" / module.removeprefix("art_examples.") / "__main__.py").exists(), module
        assert {word for word in words if word.startswith("--")} <= known, module


def pip_extras() -> Iterator[tuple[Block, str]]:
    for block, command in COMMANDS:
        if command.startswith("pip install"):
            yield from ((block, extra) for names in re.findall(r"\[([\w,]+)\]", command) for extra in names.split(","))


def test_extras_and_targets_of_make_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {extra for _, extra in pip_extras()} <= set(project["optional-dependencies"])
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    targets |= {f"example-{readme.parent.name}" for readme in READMES if (readme.parent / "__main__.py").exists()}
    assert {command.split()[1] for _, command in COMMANDS if command.startswith("make ")} <= targets


def test_links_of_the_readme_lead_somewhere() -> None:
    """Those of the pages are checked by `make docs`."""
    for link in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / "README.md").read_text()):
        assert (ROOT / link).exists(), link


def test_every_public_name_is_in_the_reference() -> None:
    listed = {
        match
        for page in (DOCS / "reference").glob("*.md")
        for match in re.findall(r"^::: (\S+)$", page.read_text(), re.M)
    }
    public = {f"art_langgraph.{name}" for name in art_langgraph.__all__} | {f"art_mcp.{n}" for n in art_mcp.__all__}
    assert listed == public


def test_a_page_is_no_longer_than_two_screens() -> None:
    """Pages of the reference are made of docstrings."""
    assert {page.name: lines for page in PAGES if (lines := page.read_text().count("\n")) > 130} == {}


def test_names_of_trl_in_the_table_of_its_page_are_trls() -> None:
    """Read, not imported: TRL takes seconds."""
    from importlib.util import find_spec

    spec = find_spec("trl")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = next(iter(spec.submodule_search_locations))
    source = (ROOT / folder / "trainer" / "grpo_config.py").read_text()
    fields = set(re.findall(r"^    (\w+): ", source, re.M))
    page = (DOCS / "moving" / "trl.md").read_text()
    same = next(line for line in page.splitlines() if "the same names in `GRPOConfig`" in line)
    names = set(re.findall(r"`(\w+)`", same)) - {"GRPOConfig"}
    assert names <= fields
    assert names <= set(art_langgraph.GRPOConfig.model_fields)
