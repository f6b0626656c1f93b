"""Code blocks of README.md, of docs/ and of the READMEs of the examples.

What a block needs is its title, which readers see: ```` ```python title="needs an account" ````. A block without such a
title is run by the tests.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
READMES = sorted(ROOT.glob("examples/*/README.md"))
"""Of examples. Their blocks are read, and not run: `make examples` runs the programs that they name."""

_FENCE = re.compile(r'^```(?P<language>\w*)(?: title="needs (?P<needs>[^"]+)")?\n(?P<text>.*?)^```$', re.M | re.S)
_HEAD = re.compile(r"^```[^`\n]+$", re.M)


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page.

    Args:
        page: The page, by its path in the repository.
        line: Number of the line that opens the block.
        language: As the fence names it; empty: none.
        needs: What the block needs that the tests do not have. None: the tests run it.
        text: The code.
    """

    page: str
    line: int
    language: str
    needs: str | None
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The command lines of a console block, without their comments and without what they print."""
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        return [re.sub(r"\s+#\s.*$", "", line.removeprefix("$ ")).strip() for line in lines if line.startswith("$ ")]


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in their order.

    Raises:
        ValueError: A fence says something that is neither a language nor `title="needs …"`.
    """
    text, name = page.read_text(), page.relative_to(ROOT).as_posix()
    found = [
        Block(name, text[: match.start()].count("\n") + 1, match["language"], match["needs"], match["text"])
        for match in _FENCE.finditer(text)
    ]
    if len(found) != len(_HEAD.findall(text)) + sum(not block.language for block in found):
        raise ValueError(f'{name}: a fence is neither ```LANGUAGE nor ```LANGUAGE title="needs …"')
    return found


BLOCKS = [block for page in (*PAGES, *READMES) for block in blocks_of(page)]


def words_of(command: str) -> list[str]:
    """The words of `art-langgraph …`, without the variables before it and without the pipe behind it; none for another
    program."""
    words = shlex.split(command.split(" | ")[0].removesuffix(" &"))
    words = words[len(variables_of(command)) :]
    return words[1:] if words[:1] == ["art-langgraph"] else []


def variables_of(command: str) -> dict[str, str]:
    """The variables before a command: `NAME=value program …`."""
    words = takewhile(re.compile(r"[A-Z_]+=").match, shlex.split(command))
    return dict(word.split("=", 1) for word in words)
