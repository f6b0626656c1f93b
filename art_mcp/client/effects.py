"""Whether a tool only reads or may change something: by its annotations, else by its name and description."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any


def words(name: str) -> list[str]:
    """The words and numbers in a name, in lower case: `getUser_id` → get, user, id; `getURLText` → get, url, text."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})", " ", name)
    return re.findall(r"[a-z]+|\d+", apart.lower())


READING_VERBS = frozenset(
    words(
        "analyze analyse calculate check compare compute convert count decode describe detect diff echo encode "
        "estimate explain fetch find get has help inspect is list lookup parse ping preview read retrieve search show "
        "summarize summarise translate validate verify view"
    )
)
"""First words in the names of tools that only read. They decide for tools without annotations."""

CHANGING_VERBS = frozenset(
    words(
        "add append apply cancel clear create delete deploy destroy disable drop edit enable erase exec "
        "execute expunge flush insert install kill modify move overwrite prune publish purge put reboot "
        "remove rename replace reset restart restore revert revoke rm rollback send shutdown stop submit "
        "terminate truncate uninstall unlink update upload upsert wipe write"
    )
)
"""Words that say, anywhere in a name, that a tool without annotations does more than read: `get_or_create_user`."""

_NAMESPACE = frozenset({"tool", "mcp"})
"""First words in the names of tools that say nothing of what a tool does."""

_CHANGING_PHRASES = frozenset({("check", "in"), ("check", "off"), ("check", "out")})
"""First words that say something else together than the first of them."""

_CHANGING_CLAUSE = re.compile(
    rf"(?:^|[.,;]\s+|\b(?:and|then|or)\s+)({'|'.join(sorted(CHANGING_VERBS - {'exec', 'execute'}))})e?s?\b",
    re.IGNORECASE,
)
"""A verb at the beginning of a clause of a description that says that the tool does more than read. A tool that
executes a query may well only read."""


def why_changing(name: str, description: str, annotations: Mapping[str, Any]) -> str | None:
    """Why a call of a tool may change or destroy something. None: the tool only reads.

    `readOnlyHint` decides, and so does `destructiveHint: true`. `destructiveHint: false` does not: such a tool changes
    something without destroying it. A tool without these hints only reads if its name begins with a reading verb, or
    ends with the one that its description begins with, and neither its name nor its description says that it does more.

    Args:
        name: Name of the tool.
        description: What the tool does, in the server's words.
        annotations: Hints of the protocol.
    """
    read_only = annotations.get("readOnlyHint")
    if read_only:
        return None
    if read_only is False or annotations.get("destructiveHint"):
        return "its annotations say so"
    if why := _changing(name, description):
        return f"it has no annotations, and its name does not say that it only reads: {why}"
    return None


def readers(tools: Iterable[Mapping[str, Any]]) -> set[str]:
    """The names of the tools that only read.

    Args:
        tools: Tools as the protocol's JSON.
    """
    return {
        str(tool["name"])
        for tool in tools
        if why_changing(str(tool["name"]), str(tool.get("description") or ""), tool.get("annotations") or {}) is None
    }


def _changing(name: str, description: str) -> str | None:
    """What speaks against a tool that only reads. None: nothing does."""
    name_words = words(name)
    if len(name_words) > 1 and name_words[0] in _NAMESPACE:
        del name_words[0]
    if tuple(name_words[:2]) in _CHANGING_PHRASES:
        return f"{' '.join(name_words[:2])!r} changes something"
    if not name_words or not (name_words[0] in READING_VERBS or _ends_with_verb(name_words, description)):
        return f"{name_words[0] if name_words else name!r} is no reading verb"
    changing = next((word for word in name_words if word in CHANGING_VERBS), None)
    if changing:
        return f"it has the word {changing!r}"
    match = _CHANGING_CLAUSE.search(description.strip())
    return match and f"its description says {match[1]!r}"


def _ends_with_verb(name_words: list[str], description: str) -> bool:
    """Whether a name ends with the reading verb that the description begins with: `url_parse`, "Parse a URL".

    Either alone does not count: `mark_read` changes something, and so may "Find the user and ban them". Nor does a verb
    of a phrase that changes something, since its other word may come later ("Check a book out"), or a description that
    has another word of the name as a verb: `mark_read`, "Read the message and mark it".
    """
    *others, last = name_words
    if last not in READING_VERBS or not others or any(last == phrase[0] for phrase in _CHANGING_PHRASES):
        return False
    begins = words(description[:40])[:1] in ([last], [f"{last}s"], [f"{last}es"])
    return begins and not re.search(rf"(?:[.,;]|\b(?:and|then|or))\s+(?:{'|'.join(others)})e?s?\b", description, re.I)
