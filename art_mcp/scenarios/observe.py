"""What can be read out of a result: its values, where they are, and which of them a task may lean on."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.scenarios.catalog import words

Path = tuple[str | int, ...]

_SAME = {
    "revision": "commit",
    "sha": "commit",
    "ref": "commit",
    "target": "commit",
    "dir": "directory",
    "folder": "directory",
    "filename": "file",
    "filepath": "path",
    "identifier": "id",
    "uuid": "id",
}
"""Words that name the same thing."""

_WRAPPERS = frozenset({"result", "content"})
"""The key under which servers put what is no object."""

MAX_FACTS = 3
"""Facts of one result that an answer must mention."""

MAX_FACT = 80
"""Characters of a fact: nobody repeats a page."""

_ERROR = re.compile(r"\s*(\w+ ){0,2}(error|exception|traceback)\b.{0,20}:", re.IGNORECASE)
_NOTHING = re.compile(
    r"\W*(none|nothing( \w+){0,2}|no( \w+){1,4}|0 (\w+ ){0,2}(found|results?|matches))\W*", re.IGNORECASE
)
_LINE = re.compile(r"\s*(?:[-*•]\s*)?(?:(?P<key>[A-Za-z][\w ]{0,30}):\s+)?(?P<value>\S.*?)\s*")
_TOKEN = re.compile(r"[\"'`]([^\"'`\n]{2,60})[\"'`]|(?<![\w.])((?:[A-Za-z]+[_./-]?)*-?\d[\w./:%-]*\w|\d)(?!\w)")
_PATH = re.compile(r"(?<![\w/:])/(?:[\w.@+-]+/)*[\w.@+-]+")


def parsed(text: str, structured: Any = None) -> Any:
    """The value of a result: its structured content, or its text read as JSON or as a Python literal, or the text."""
    if isinstance(structured, dict) and len(structured) == 1 and structured.keys() <= _WRAPPERS:
        structured = next(iter(structured.values()))
        return parsed(structured) if isinstance(structured, str) else structured
    if structured is not None:
        return structured
    stripped = text.strip()
    if stripped[:1] in ("{", "["):
        for read in (json.loads, ast.literal_eval):
            try:
                return read(stripped)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    return text


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All scalars of a value and where they are; empty texts and nulls are none."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from leaves(one, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from leaves(one, (*path, index))
    elif value is not None and value != "":
        yield path, value


def at(value: Any, path: Sequence[str | int]) -> Any:
    """The part of a value that a path leads to. Raises LookupError."""
    for key in path:
        if not isinstance(value, dict | list | tuple):
            raise LookupError(f"nothing is at {key!r}")
        value = value[key]  # type: ignore[index]
    return value


def picked(text: str, structured: Any, path: Sequence[str | int]) -> Any:
    """What a reference into a result stands for: the part that its path leads to, or the whole text for an empty one.
    Raises LookupError and TypeError."""
    whole = parsed(text, structured)
    return at(whole, path) if path else text.strip()


def problem(text: str, value: Any) -> tuple[str, str] | None:
    """Why a result is of no use, though the server calls it none: kind and reason. None: it is of use."""
    if isinstance(value, str):
        if _ERROR.match(value):
            return "error", value.strip()[:200]
        if not value.strip() or _NOTHING.fullmatch(value):
            return "empty", f"the result is {text.strip()[:80]!r}"
    elif not any(True for _ in leaves(value)):
        return "empty", f"the result is {canonical(value)[:80]}"
    return None


@dataclass(frozen=True, slots=True)
class Finding:
    """A value of a result that may serve as an argument of another tool.

    path: where it is; None: somewhere in the text. own: words that name it. about: words of what it belongs to, and of
    the tool that gave it.
    """

    path: Path | None
    own: tuple[str, ...]
    about: frozenset[str]
    value: str | int

    def fits(self, name: str, taken: Collection[frozenset[str]]) -> bool:
        """Whether it could be what a parameter asks for: both end with the same word, and the others say what it
        belongs to. taken: meanings of the parameters of the tool that gave it: what it takes itself is not what its
        own name says that it gives (`describe_table(table_name)` gives names, but not of tables)."""
        order = meanings(name)
        wanted = frozenset(order)
        if not order or not wanted <= self.about.union(self.own) or (self.own and self.own[-1] != order[-1]):
            return False
        return wanted <= set(self.own) or wanted not in taken


def findings(tool: str, value: Any) -> Iterator[Finding]:
    """What a result of a tool offers."""
    about = frozenset(meanings(tool))
    if not isinstance(value, str):
        for path, leaf in leaves(value):
            keys = [tuple(meanings(key)) for key in path if isinstance(key, str)]
            if type(leaf) in (str, int):
                yield Finding(path, keys[-1] if keys else (), about.union(*keys[:-1]), leaf)
        return
    if len(value) <= MAX_FACT and len(value.split()) == 1:
        yield Finding((), (), about, value)
    for found in _PATH.findall(value):
        if not found.startswith(("/dev/", "/proc/")):
            kind = "file" if "." in found.rpartition("/")[2] else "directory"
            yield Finding(None, ("path",), frozenset({kind}), found)
    for line in value.splitlines():
        if (match := _LINE.fullmatch(line)) and len(match["value"]) <= MAX_FACT:
            own = meanings(match["key"]) if match["key"] else ["name"]
            yield Finding(None, tuple(own), about, match["value"].strip("'\"`,;"))


def meanings(name: str) -> list[str]:
    """What a name says, in order: `tableNames` → table, name."""
    return [_SAME.get(singular(word), singular(word)) for word in words(name)]


def singular(word: str) -> str:
    """tables → table, queries → query."""
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def stable_facts(first: Any, second: Any, known: Sequence[Any]) -> list[str]:
    """What an answer must mention of a result: short values that were the same in two executions and are not in the
    task already (`known`), at most MAX_FACTS, those that tell most first. Of free text, the numbers and names in it.

    Without booleans, which nobody repeats, and without what comes from the clock: two executions a second apart do not
    tell that a weekday changes.
    """
    told = " ".join(canonical(one) for one in known).casefold()
    candidates: list[Any]
    if isinstance(first, str):
        candidates = _tokens(first, [str(one) for one in known]) if first == second else []
    else:
        later = dict(leaves(second))
        candidates = [leaf for path, leaf in leaves(first) if canonical(leaf) == canonical(later.get(path))]
    found: list[str] = []
    for one in candidates:
        text = one.strip() if isinstance(one, str) else canonical(one)
        if isinstance(one, bool) or not 0 < len(text) <= MAX_FACT or "\n" in text or text in found:
            continue
        if text.casefold() not in told and not _of_the_clock(text):
            found.append(text)
    return sorted(found, key=lambda text: len(text) < 2 + text.isalpha())[:MAX_FACTS]


def _tokens(text: str, known: Sequence[str]) -> list[str]:
    """Of free text, what an answer would repeat: all of it if it is short and new, else numbers, names, quotations."""
    bare = text.strip().strip("*•- ")
    if len(bare.split()) <= 3 and not bare.endswith(":") and not any(one in bare for one in known):
        return [bare]
    lines = [line for line in text.splitlines() if not _of_the_clock(line)]
    return [quoted or token for line in lines for quoted, token in _TOKEN.findall(line)]


def _of_the_clock(text: str) -> bool:
    """Whether a text names today, or a day beside it: by date, weekday, month, or seconds since 1970."""
    now = datetime.now(UTC)
    lowered = text.casefold()
    for day in (now - timedelta(days=1), now, now + timedelta(days=1)):
        names = (f"{day:%A}", f"{day:%B}", f"{day:%Y-%m-%d}", f"{day:%d/%m/%Y}", f"{day:%m/%d/%Y}", f"{day:%b %d}")
        if any(name.casefold() in lowered for name in names):
            return True
    numbers = [int(one) for one in re.findall(r"\d{10,13}", text)]
    return any(abs(one / 10 ** (3 * (one > 10**11)) - now.timestamp()) < 172_800 for one in numbers)
