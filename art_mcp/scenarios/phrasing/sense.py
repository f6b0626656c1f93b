"""What a tool does, as the words of its name say: a verb and a noun."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from art_mcp.client.effects import words
from art_mcp.scenarios.catalog import CatalogTool
from art_mcp.scenarios.phrasing.english import is_plural
from art_mcp.scenarios.phrasing.language import VERBS, WORDS, Verb

COMMON = 0.7
"""A first word that this share of the tools have is the name of the server, and says nothing of a tool."""

_UNKNOWN = Verb(("run", "use", "do"), reads=False)
_NOUN_ALONE = Verb(("get", "give me", "show me", "look at", "check"), names=True)


@dataclass(frozen=True, slots=True)
class Sense:
    """What a tool does.

    Args:
        verb: How its verb is said.
        noun: What it is done to, or what is got. May be empty: `echo`.
        tail: What follows in the name: "with sizes".
        acts: Whether its verb says that something is changed.
    """

    verb: Verb
    noun: str
    tail: str
    acts: bool

    @property
    def names(self) -> bool:
        """Whether the noun alone says what the call gives: "the price"."""
        return self.verb.names and bool(self.noun)

    @property
    def many(self) -> bool:
        """Whether the noun is a plural."""
        return bool(self.noun) and is_plural(self.noun)


def senses(tools: Sequence[CatalogTool], server: str = "") -> dict[str, Sense]:
    """What each tool does, by its name.

    Args:
        tools: All tools of a server. A word that most names begin with is left out.
        server: Name of the server, whose words are left out as well.
    """
    split = {tool.name: tool.words or [tool.name] for tool in tools}
    first = Counter(name[0] for name in split.values() if len(name) > 1)
    common = {word for word, count in first.items() if len(tools) > 2 and count >= COMMON * len(tools)}
    common |= set(words(server))
    return {tool.name: _sense(tool, split[tool.name], common) for tool in tools}


def acts(name: str) -> bool:
    """Whether the verb in the name of a tool says that something is changed, wherever it stands at the beginning."""
    verbs = [VERBS[word] for word in words(name)[:2] if word in VERBS]
    return bool(verbs) and not verbs[0].reads


def _sense(tool: CatalogTool, name_words: list[str], common: set[str]) -> Sense:
    """The sense of a tool. name_words: the words of its name; common: words that say nothing."""
    while len(name_words) > 1 and name_words[0] in common and name_words[0] not in VERBS:
        name_words = name_words[1:]
    if (
        len(name_words) > 1
        and name_words[0] not in VERBS
        and name_words[-1] in VERBS
        and name_words[-2] not in WORDS.prepositions
    ):
        name_words = [name_words[-1], *name_words[:-1]]  # `issue.create`
    rest = name_words[1:] if name_words[0] in VERBS else name_words
    at = next((at for at, word in enumerate(rest) if word in WORDS.prepositions), len(rest))
    noun = [word for word in rest[:at] if word not in WORDS.fillers]
    tail = rest[at:] if rest[at : at + 1] != ["by"] and len(rest) > at + 1 else []
    if len(noun) > 1 and noun[-1].endswith("ed"):
        noun = [noun[-1], *noun[:-1]]  # diff unstaged → unstaged diff
    verb = VERBS.get(name_words[0])
    if verb is None:
        verb = _NOUN_ALONE if tool.reads or noun else _UNKNOWN
    return Sense(verb, " ".join(noun), " ".join(tail), acts=not verb.reads)
