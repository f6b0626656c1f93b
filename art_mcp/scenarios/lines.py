"""Texts as servers and people write them: their lines, paths that lead into them, the values that they mention."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

_LINE = re.compile(
    r"\s*(?:[-*•]\s+|\d{1,3}[.)]\s+)?(?:\[(?P<tag>[A-Za-z ]{1,12})\]\s+)?(?:(?P<key>[A-Za-z][\w ]{0,30}):\s+)?"
    r"(?P<value>\S.*?)\s*"
)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_MARKUP = re.compile(r"\s*</?[A-Za-z][^<>]*>")
_QUOTES = "'\"`"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a text.

    Args:
        key: What precedes its value: `Author: ` or `[FILE] `, as words. Empty: nothing does.
        value: The value, without bullet, number, key and quotation marks.
        tagged: Whether the key is a tag in brackets, which says of what kind the value is.
    """

    key: str
    value: str
    tagged: bool = False


def lines(text: str) -> list[Line]:
    """The lines of a text that are not blank, without the tags of HTML and XML in those that begin with one."""
    found_lines = []
    for line in text.splitlines():
        if _MARKUP.match(line):
            line = " ".join(_TAG.sub(" ", line).split())
        if match := _LINE.fullmatch(line):
            key = (match["key"] or match["tag"] or "").strip()
            value = match["value"]
            if len(value) > 1 and value[0] in _QUOTES and value[-1] == value[0]:
                value = value[1:-1]
            found_lines.append(Line(key, value, tagged=bool(match["tag"]) and not match["key"]))
    return found_lines


def in_text(text: str, path: Sequence[str | int]) -> str:
    """The value at a path in a text: `["Author", 0]` is the first value with the key Author, `[2]` the third line.

    Raises:
        LookupError: The text has nothing at this path.
    """
    match list(path):
        case [int(at)]:
            return lines(text)[at].value
        case [str(key), int(at)]:
            return [line.value for line in lines(text) if line.key == key][at]
    raise LookupError(f"nothing is at {list(path)!r} of a text")


def mentions(text: str, fact: str) -> bool:
    """Whether a text contains a fact as whole words. Case, spaces, Markdown and thousands separators are ignored.

    Args:
        text: The text.
        fact: The value.
    """
    plain, target = _plain(text), _plain(fact)
    if re.fullmatch(r"-?\d+(\.\d+)?", target):
        value = Decimal(target)  # a float would take long ids for one another
        return any(Decimal(number) == value for number in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?", plain))
    return re.search(rf"(?<!\w){re.escape(target)}(?!\w)", plain) is not None


def _plain(text: str) -> str:
    """The text in lower case without Markdown, thousands separators and repeated spaces."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", re.sub(r"[*_`]", "", text))
    return " ".join(text.split()).casefold()
