"""Reads results of tools: their values with paths, and the values that a check of an answer can rely on."""

from __future__ import annotations

import ast
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.client.effects import words
from art_mcp.scenarios.lines import Line, in_text, lines

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
"""Keys under which servers wrap structured content that is not an object."""

_BLOCKS = {"text": "text", "image": "data", "audio": "data"}
"""The key that a content block of the protocol has, by its type."""

MAX_FACTS = 2
"""Facts of each result that an answer must mention, at most."""

MAX_FACT = 40
"""Characters of a fact at most: agents do not repeat long texts."""

MAX_VALUE = 80
"""Characters of a text that may be an argument of another tool, at most."""

_ERROR = re.compile(r"\s*(\w+ ){0,2}(error|exception|traceback)\b[^:\n]{0,60}:", re.IGNORECASE)
_FAILED_ITEM = re.compile(r"[^:]{1,200}: error\b", re.IGNORECASE)
"""Begins a line that says that something could not be done with an item: "a.txt: Error - no such file"."""
_NOTHING = re.compile(
    r"\W*(none|nothing( \w+){0,2}|no( \w+){1,4}|0 (\w+ ){0,2}(found|results?|matches))\W*", re.IGNORECASE
)
_ZERO = re.compile(r"\W*([a-z]\w*\W+){0,2}0+(\.0+)?(\W+[a-z]\w*){0,3}\W*", re.IGNORECASE)
_REFUSAL = re.compile(
    r"(?:failed to|could not|cannot|can't|unable to|invalid|unknown|no such)\b.{1,160}"
    r"|.{1,120}\b(?:not found|does not exist|do not exist|doesn't exist|already exists)\b.{0,60}",
    re.IGNORECASE,
)
"""A line that says that something could not be done."""
_FAILED_STATUS = re.compile(r"error|fail(?:ed|ure)?|invalid|.*not[_ -]?found|.*[_ -](?:error|failed)", re.IGNORECASE)
_JOINED = re.compile(r"(?=[^,]*[A-Za-z])[\w./@+-]+(?:,(?=[^,]*[A-Za-z])[\w./@+-]+)+")
_TAGS = {"file": ("file",), "dir": ("directory",), "directory": ("directory",), "folder": ("directory",)}
"""Words for the tags of lines."""
_TOKEN = re.compile(r"[\"'`]([^\"'`\n]{2,60})[\"'`]|(?<![\w.])((?:[A-Za-z][_./-]?)*-?\d[\w./:%-]*\w|\d)(?!\w)")
_NOTE = re.compile(r"[(\[{]([^()\[\]{}]*\w: [^()\[\]{}]*)[)\]}]")
"""Keys and values in brackets: (ID: 77)."""
_KEYED = re.compile(r"([A-Za-z][\w ]{0,30}): ([^,;]{1,80})")
_ITEM = re.compile(r"\w[\w./@+-]*(?: [\w./@+-]+){0,2}")
"""An item of a list in a line."""
_FILE = re.compile(r"(?:[\w.-]+/)*[\w-][\w.-]*\.[A-Za-z]\w{0,4}")
_PATH = re.compile(r"(?<![\w/:])/(?:[\w.@+-]+/)*[\w.@+-]+")

_DAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day"
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)"
)
_NTH = r"\d{1,2}(?:st|nd|rd|th)?"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s*(?:[ap]m|Z|UTC|[+-]\d{2}:?\d{2})\b)?"
_DATES = (
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}",  # 2024-03-09
    r"\d{1,2}[-/.]\d{1,2}[-/.]\d{4}",  # 09/03/2024
    rf"(?:{_NTH}\.?\s+(?:of\s+)?{_MONTH}|{_MONTH}\.?\s+{_NTH})\b(?:,?\s+\d{{4}})?",  # 9th of March, Mar 9, 2024
    rf"{_MONTH}\.?,?\s+\d{{4}}",  # March 2024
    r"1\d{9}(?:\d{3})?(?:\.\d+)?",  # seconds or milliseconds since 1970, from 2001 to 2033
    _DAY,
)
_DATE = re.compile(
    rf"(?<![\w.-])(?:{'|'.join(_DATES)})(?:[T,\s]+(?:at\s+)?{_CLOCK}(?:\s+\d{{4}}\b)?)?(?!\w)", re.IGNORECASE
)
"""A date, a time stamp or a weekday, with the time of day that follows it."""
_DAY_OR_MONTH = re.compile(rf"{_DAY}|{_MONTH}", re.IGNORECASE)


def parse_result(text: str, structured_content: Any = None) -> Any:
    """The value of a result: its structured content, else its text parsed as JSON or a Python literal, else the text.

    Names with commas between them are a list, as some languages write one: a,b,c.

    Args:
        text: Text of the result.
        structured_content: Its structured content. None: it has none.
    """
    if isinstance(structured_content, dict) and len(structured_content) == 1 and structured_content.keys() <= _WRAPPERS:
        structured_content = next(iter(structured_content.values()))
        if (blocks := _text_of_blocks(structured_content)) is not None:
            structured_content = blocks
        return parse_result(structured_content) if isinstance(structured_content, str) else structured_content
    if structured_content is not None:
        return structured_content
    bare = text.strip()
    if _JOINED.fullmatch(bare):
        return bare.split(",")
    if bare[:1] in ("{", "["):
        for read in (json.loads, ast.literal_eval):
            try:
                return read(bare)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    return text


def _text_of_blocks(value: Any) -> str | None:
    """The texts of a list of the protocol's content blocks, which some servers repeat as structured content. None: it
    is no such list."""
    is_list = isinstance(value, list) and value and all(isinstance(item, dict) for item in value)
    if not is_list or not all(_BLOCKS.get(str(item.get("type")), "type") in item.keys() - {"type"} for item in value):
        return None
    return "\n".join(item["text"] for item in value if item["type"] == "text")


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yields all scalars of a value with their paths. Empty texts and nulls are left out.

    Args:
        value: A JSON value.
        path: Path of `value` itself, put before every path.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    elif value is not None and value != "":
        yield path, value


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yields the objects in a value that hold values, each before those in it."""
    if isinstance(value, dict):
        if any(isinstance(item, str | int) for item in value.values()):
            yield value
        for item in value.values():
            yield from objects(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from objects(item)


def at(value: Any, path: Sequence[str | int]) -> Any:
    """The part of a value at a path.

    Raises:
        LookupError: The value has nothing at this path.
    """
    for key in path:
        if not isinstance(value, dict | list | tuple):
            raise LookupError(f"nothing is at {key!r}")
        value = value[key]  # type: ignore[index]
    return value


def pick_value(text: str, structured_content: Any, path: Sequence[str | int]) -> Any:
    """The value that a reference to a result stands for.

    Args:
        text: Text of the result.
        structured_content: Its structured content. None: it has none.
        path: Path into the parsed result, or into its text (`lines.in_text`). An empty path stands for the whole text.

    Raises:
        LookupError: The result has nothing at this path.
        TypeError: The path has a key of a wrong type.
    """
    whole = parse_result(text, structured_content)
    if not path:
        return text.strip()
    return in_text(whole, path) if isinstance(whole, str) else at(whole, path)


def problem(text: str, value: Any) -> tuple[str, str] | None:
    """Finds results that are useless although the server did not mark them as errors.

    Args:
        text: Text of the result.
        value: The result, as `parse_result` returns it.

    Returns:
        "error" or "empty", and the reason. None: the result is usable.
    """
    if isinstance(value, str):
        if _ERROR.match(value) or _REFUSAL.fullmatch(value.strip()) or _fails_throughout(value):
            return "error", value.strip()[:200]
        if not value.strip() or _NOTHING.fullmatch(value):
            return "empty", f"the result is {text.strip()[:80]!r}"
    elif isinstance(value, dict) and _reports_failure(value):
        return "error", canonical(value)[:200]
    elif not any(True for _ in leaves(value)):
        return "empty", f"the result is {canonical(value)[:80]}"
    return None


def is_nothing(text: str) -> bool:
    """Whether a short text says that there is nothing: `0`, `Total: 0`, `No results`."""
    return bool(_NOTHING.fullmatch(text) or _ZERO.fullmatch(text))


def _fails_throughout(text: str) -> bool:
    """Whether each line of a text says that something could not be done with an item."""
    content = [line for line in text.splitlines() if any(character.isalnum() for character in line)]
    return bool(content) and all(_FAILED_ITEM.match(line) for line in content)


def _reports_failure(value: dict[str, Any]) -> bool:
    """Whether an object says that the call failed, as servers do that do not mark their errors."""
    error, status = value.get("error") or value.get("errors"), value.get("status")
    return (
        value.get("success") is False
        or value.get("ok") is False
        or (isinstance(status, str) and bool(_FAILED_STATUS.fullmatch(status)) and len(value) <= 4)
        or error is True
        or (bool(error) and isinstance(error, str | dict) and len(value) <= 4)
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """A value of a result that may be an argument of another tool.

    Args:
        path: Path of the value in the result, as `pick_value` takes it. None: the value is somewhere in the text.
        own: Words that name the value.
        about: Words of the objects that contain the value, and of the tool that gave it.
        value: The value.
    """

    path: Path | None
    own: tuple[str, ...]
    about: frozenset[str]
    value: str | int

    def fits(self, name: str, parameters: Collection[frozenset[str]]) -> bool:
        """Whether the value could be an argument for a parameter.

        Both names must end with the same word, and the other words of the parameter must describe the value. Words of
        the tool's name do not count for a parameter that the tool takes itself: `describe_table(table_name)` gives
        names, but not names of tables.

        Args:
            name: The parameter.
            parameters: Meanings of the parameters of the tool that gave the value.
        """
        order = _meanings(name)
        if not order or (self.own and self.own[-1] != order[-1]):
            return False
        parameter_words = frozenset(order)
        if not parameter_words <= self.about.union(self.own):
            return False
        return parameter_words <= set(self.own) or parameter_words not in parameters


def findings(tool: str, value: Any) -> Iterator[Finding]:
    """Yields the values of a result that may be arguments of other tools.

    Args:
        tool: Name of the tool.
        value: The result, as `parse_result` returns it.
    """
    about = frozenset(meanings(tool))
    if not isinstance(value, str):
        for path, leaf in leaves(value):
            keys = [tuple(meanings(key)) for key in path if isinstance(key, str)]
            if type(leaf) in (str, int):
                yield Finding(path, keys[-1] if keys else (), about.union(*keys[:-1]), leaf)
        yield from _names_as_keys(value, (), about)
        return
    if len(value) <= MAX_VALUE and len(value.split()) == 1:
        yield Finding((), (), about, value)
    for file_path in _PATH.findall(value):
        if not file_path.startswith(("/dev/", "/proc/")):
            kind = "file" if "." in file_path.rpartition("/")[2] else "directory"
            yield Finding(None, ("path",), frozenset({kind}), file_path)
    key_counts: Counter[str] = Counter()
    for number, line in enumerate(lines(value)):
        where: Path = (line.key, key_counts[line.key]) if line.key else (number,)
        key_counts[line.key] += 1
        if len(line.value) <= MAX_VALUE and any(character.isalnum() for character in line.value):
            own = meanings(line.key) if line.key and not line.tagged else ["name"]
            tags = _TAGS.get(line.key.casefold(), ()) if line.tagged else ()
            if is_file(line.value):
                yield Finding(where, ("file",), about, line.value)
            yield Finding(where, tuple(own), about.union(tags), line.value.strip("'\"`,;:"))
        yield from _inside(line, about)


def _inside(line: Line, about: frozenset[str]) -> Iterator[Finding]:
    """The values within a line: those with a key of their own, as in "The sextant (ID: 77)", what precedes them, and
    the items of a list."""
    if match := _NOTE.search(line.value):
        for key, value in _KEYED.findall(match[1]):
            yield Finding(None, tuple(meanings(key)), about, value.strip())
        if 0 < len(head := line.value[: match.start()].strip()) <= MAX_VALUE:
            yield Finding(None, ("name",), about, head)
    items = [item.strip() for item in line.value.split(",")]
    if line.key and len(items) > 1 and all(_ITEM.fullmatch(item) for item in items):
        for item in items:
            yield Finding(None, tuple(meanings(line.key)), about, item)


def _names_as_keys(value: Any, parents: tuple[str, ...], about: frozenset[str]) -> Iterator[Finding]:
    """The keys of objects that are names of things: their values are alike, as the sheets of a workbook are by name.

    Args:
        value: A part of a result.
        parents: The words of the key that it has.
        about: Words of the objects that contain it.
    """
    if isinstance(value, dict):
        kinds = {frozenset(item) if isinstance(item, dict) else type(item) for item in value.values()}
        names = [key for key in value if isinstance(key, str) and 0 < len(key) <= MAX_VALUE]
        if (len(kinds) == 1 and any(isinstance(item, dict | list) for item in value.values())) or (
            len(kinds) == 1 and len(value) > 1 and any(not key.isidentifier() for key in names)
        ):
            for key in names:
                yield Finding(None, parents, about, key)
        for key, item in value.items():
            yield from _names_as_keys(item, tuple(meanings(str(key))), about.union(parents))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _names_as_keys(item, parents, about)


def is_file(text: str) -> bool:
    """Whether a text looks like the name of a file, or like a relative path of one."""
    return bool(_FILE.fullmatch(text))


def meanings(name: str) -> list[str]:
    """The words of a name in order, singular, with one word for all synonyms: `tableNames` → table, name."""
    return list(_meanings(name))


@lru_cache(maxsize=4096)
def _meanings(name: str) -> tuple[str, ...]:
    return tuple(_SAME.get(singular(word), singular(word)) for word in words(name))


def singular(word: str) -> str:
    """The singular of an English noun: tables → table, queries → query."""
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "sses", "xes")) and word not in ("caches", "niches", "axes"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def stable_facts(first: Any, second: Any, argument_values: Sequence[Any]) -> list[str]:
    """The facts of a result that an answer must mention.

    Facts are short values that were the same in two executions and are not among the arguments. Of free text, they are
    its numbers and names. Booleans are left out, because answers do not repeat them. Dates are left out, whichever they
    are: two executions a second apart do not show that a weekday changes, and answers write dates in many ways. What is
    left out depends on nothing but the results.

    Args:
        first: The result of the first execution, as `parse_result` returns it.
        second: The result of the second execution.
        argument_values: Values of the arguments, which the task states already.

    Returns:
        At most MAX_FACTS facts; single characters and very short words come last.
    """
    argument_text = " ".join(canonical(argument) for argument in argument_values).casefold()
    candidates: list[Any]
    if isinstance(first, str):
        candidates = _tokens(first, [str(argument) for argument in argument_values]) if first == second else []
    else:
        later = dict(leaves(second))
        candidates = [leaf for path, leaf in leaves(first) if canonical(leaf) == canonical(later.get(path))]
    facts: list[str] = []
    for candidate in candidates:
        text = candidate.strip() if isinstance(candidate, str) else canonical(candidate)
        if isinstance(candidate, bool) or not 0 < len(text) <= MAX_FACT or "\n" in text or text in facts:
            continue
        if text.casefold() not in argument_text and not changes_with_time(text):
            facts.append(text)
    return sorted(facts, key=lambda text: len(text) < 2 + text.isalpha())[:MAX_FACTS]


def changes_with_time(text: str) -> bool:
    """Whether a text is or has a date, a time stamp, a weekday, or a month."""
    return bool(_DATE.search(text) or _DAY_OR_MONTH.fullmatch(text))


def is_local(text: str) -> bool:
    """Whether a text has a path of this machine, which is another one elsewhere or in the next run."""
    places = (tempfile.gettempdir(), os.getcwd(), str(FilePath.home()))
    return any(len(place) > 1 and place in text for place in places)


def tokens(text: str) -> list[str]:
    """The numbers, names and quotations in a text, without its dates."""
    return [quotation or token for quotation, token in _TOKEN.findall(_DATE.sub(" ", text))]


def _tokens(text: str, argument_values: Sequence[str]) -> list[str]:
    """The parts of free text that an answer would repeat: all of a short new text, else numbers, names, quotations."""
    bare = text.strip().strip("*•- ")
    if len(bare.split()) <= 3 and not bare.endswith(":") and not any(argument in bare for argument in argument_values):
        return [bare]
    return tokens(text)
