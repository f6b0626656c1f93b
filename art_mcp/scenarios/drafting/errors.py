"""What the error of a call tells: which arguments were wrong, and which values the server would take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from art_mcp.client.effects import words
from art_mcp.scenarios.drafting.pools import Slot, parameter_name
from art_mcp.scenarios.observe import leaves, parse_result, singular
from art_mcp.worlds.alias import WORLD

MAX_OFFERS = 40
"""Values that are read from an error, at most."""

MAX_MESSAGE = 4_000
"""Characters of an error that are read, at most."""

MAX_REASON = 120
"""Characters of an error that an answer repeats, at most."""

_PREFIX = re.compile(r"^(?:[\w ]*\b(?:error|exception)\b[^:\n]*:\s*)+", re.IGNORECASE)
"""What an SDK puts before an error: `Error executing tool NAME: `."""
_USAGE = re.compile(r"\busage: .{0,3000}?\berror: ", re.DOTALL)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):(?:\s*\n[ \t].*)+\n*")
_QUOTED = re.compile(r"(?<!\w)'([^'\n]{1,80})'(?!\w)|\"([^\"\n]{1,80})\"|`([^`\n]{1,80})`")
_NAME = r"""['"][^'"\n]{1,80}['"]"""
_CODE = re.compile(
    rf"""(?:\bname {_NAME} is not defined|{_NAME} object (?=has|is|does)|\b(?:type object|module) {_NAME} (?=has)
    |has no attribute {_NAME}|\bno module named {_NAME}|cannot import name {_NAME}(?: from {_NAME})?
    |local variable {_NAME}|positional arguments?: {_NAME}(?: and {_NAME})?|keyword argument {_NAME}
    |operand type\(s\) for \S+ {_NAME}(?: and {_NAME})?|{_NAME} not supported between instances of {_NAME} and {_NAME}
    |\bKeyError: {_NAME})(?:\. Did you mean: {_NAME}\?)?""".replace("\n    ", ""),
    re.IGNORECASE,
)
"""What Python says of names in the code of a server."""
_LIST = re.compile(r"[:\[({]\s*([^:\[\](){}\n]*,[^:\[\](){}\n]*)")
"""Items with commas between them, after a colon or in brackets."""
_ENDING = re.compile(r"(?<![\w/.*-])\*?(\.[A-Za-z][A-Za-z0-9]{1,4})\b(?![/(])")
_GAP = "\0"
"""Stands for a quotation."""
_DRIVE = re.compile(r"[A-Za-z]:[\\/]|file:")
_ITEM = re.compile(r"[\w./@+-]+(?: [\w./@+-]+){0,3}")
_NUMBER = re.compile(r"(?<![\d.])\d{1,9}(?![\d.]*\d)")
_EXAMPLE = re.compile(r"(?<![\w-])(?=[^\s,;]*\d)[\w.:/+-]{2,40}(?!\w)")
"""A word with digits: a date, a time, a reference of a cell."""


def message_of(text: str) -> str:
    """An error without the keys of its JSON, which are no words of the server, and without what programs print around
    their errors: how they are used, and where in their code they failed."""
    value = parse_result(text)
    text = text if isinstance(value, str) else ". ".join(_sentences(value))
    return _TRACEBACK.sub("", _USAGE.sub("", text))


def _sentences(value: Any) -> Iterator[str]:
    """The values in some JSON, and its lists of values in brackets, as an error in words has what it offers."""
    items = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list) else None
    if items is None:
        yield str(value)
    elif isinstance(value, list) and len(value) > 1 and not any(isinstance(item, Mapping | list) for item in value):
        yield f"[{', '.join(map(str, value))}]"
    else:
        for item in items:
            yield from _sentences(item)


def reason_of(text: str) -> str:
    """The last part of an error, without what the server's SDK puts before it. Empty: it is long or several lines."""
    reason = _PREFIX.sub("", message_of(text).strip()).strip().rstrip(".")
    return reason if "\n" not in reason and len(reason) <= MAX_REASON else ""


def blame(message: str, values: Mapping[Slot, Any]) -> dict[Slot, float]:
    """Which slots of a call an error blames, with the share of each.

    A slot is blamed if the error has its value, or else its name, or a word of it. Empty: it has nothing of any.

    Args:
        message: The error.
        values: The values of the call.
    """
    text = message[:MAX_MESSAGE]
    has_value = {slot for slot, value in values.items() if len(str(value)) > 1 and _is_in(str(value), text)}
    text_words = {form for word in words(text) for form in (word, singular(word))}
    has_name = {
        slot
        for slot in values
        if (name := parameter_name(slot[1])) in text or (words(name) and set(words(name)) <= text_words)
    }
    has_word = {slot for slot in values if any(len(word) > 2 and word in text_words for word in words(slot[1]))}
    slots = (has_value & has_name) or has_value or has_name or has_word
    return dict.fromkeys(slots, 1 / max(len(slots), 1) ** 0.5)


def is_foreign(text: str) -> bool:
    """Whether a text is a path of a machine and not of the world: nothing may be written there."""
    return (text.startswith(("/", "~", "\\")) and not f"{text}/".startswith(f"{WORLD}/")) or bool(_DRIVE.match(text))


def _is_in(value: str, text: str) -> bool:
    """Whether a text has a value, and not only as a part of a word."""
    return value in text and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None


def parameters_in(message: str, names: Iterable[str]) -> list[str]:
    """The parameters that an error names.

    Args:
        message: The error.
        names: The parameters of the tool.
    """
    text_words = set(re.findall(r"\w+", message[:MAX_MESSAGE]))
    return [name for name in names if name in text_words and (len(name) > 3 or "_" in name)]


def numbers_in(message: str, arguments: Iterable[Any]) -> list[int]:
    """The whole numbers that an error has, without those that the call had."""
    numbers = dict.fromkeys(int(digits) for digits in _NUMBER.findall(message[:MAX_MESSAGE]))
    return [number for number in numbers if number not in arguments][:MAX_OFFERS]


def offers(message: str, arguments: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The values that a message offers, and the endings of files.

    Args:
        message: An error, or the description of a parameter.
        arguments: The arguments of the call, which are not offered.
    """
    text = _CODE.sub("", message[:MAX_MESSAGE])
    candidates = ["".join(groups) for groups in _QUOTED.findall(text)]
    bare = _QUOTED.sub(_GAP, text)
    for items in _LIST.findall(bare):
        parts = [item.strip().removeprefix("and ").removeprefix("or ") for item in items.split(",")]
        if not any(_GAP in part for part in parts):  # else it is a sentence: "not a directory, scandir 'x'"
            candidates += parts
    candidates += _EXAMPLE.findall(bare)
    candidates = [candidate.strip(" '\"`").rstrip(".:,;") for candidate in candidates]
    used = {str(leaf) for _, leaf in leaves(dict(arguments))} | set(arguments)
    values = dict.fromkeys(
        candidate
        for candidate in candidates
        if candidate
        and not is_foreign(candidate)
        and not _ENDING.fullmatch(candidate)
        and any(character.isalnum() for character in candidate)
        and candidate not in used
        and len(candidate) <= 80
        and (_ITEM.fullmatch(candidate) or len(candidate) < 20)
    )
    return list(values)[:MAX_OFFERS], list(dict.fromkeys(_ENDING.findall(text)))[:8]
