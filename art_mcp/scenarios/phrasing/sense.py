"""What a tool does, as the words of its name say: a verb and a noun."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from art_mcp.client.effects import CHANGING_VERBS, words
from art_mcp.scenarios.catalog import CatalogTool
from art_mcp.scenarios.phrasing.english import article, is_participle, is_plural, one_of, plural
from art_mcp.scenarios.phrasing.language import VERBS, WORDS, Verb

COMMON = 0.7
"""A first word that this share of the tools have is the name of the server, and says nothing of a tool."""

RUNS = Verb(("run",))
_NOUN_RUN = Verb(("run", "get"), names=True)
NOUN_ALONE = Verb(("get", "give me", "show me"), names=True)
"""The verb of a tool that has none in its name."""

_MAKES_VERBS = re.compile(r"[a-z]{3}(ify|ize)$")
"""Ends of words that are verbs: reclassify, tokenize."""


@dataclass(frozen=True, slots=True)
class Sense:
    """What a tool does.

    Args:
        verb: How its verb is said.
        noun: What it is done to, or what is got. May be empty: `echo`.
        tail: What follows in the name: "with sizes".
        acts: Whether its verb says that something is changed.
        key: By what the noun is told: "title" for `book_by_title`. Empty: the name does not say.
        things: The things that the server has, in the singular: those that its tools list, make or remove.
    """

    verb: Verb
    noun: str
    tail: str
    acts: bool
    key: str = ""
    things: frozenset[str] = frozenset()

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
    # link_add, link_rm: a word before several verbs that are hardly nouns is their noun, whatever else it may be.
    before = Counter(name[0] for name in split.values() if len(name) == 2 and name[1] in CHANGING_VERBS)
    nouns = {word for word, count in before.items() if count > 1} - CHANGING_VERBS - common
    every = {tool.name: _sense(tool, split[tool.name], common, nouns) for tool in tools}
    things = frozenset(
        one_of(sense.noun)
        for sense in every.values()
        if sense.many or sense.verb.makes or sense.verb.removes or sense.verb is VERBS["rename"]
    )
    plurals = [noun for noun, _ in Counter(sense.noun for sense in every.values() if sense.many).most_common(1)]
    about = {name: plurals[0] for name, sense in every.items() if sense.key and plurals}  # filter_by_project
    about |= {name: "entries" for name, sense in every.items() if sense.verb is VERBS["list"]}  # ls
    return {
        name: replace(sense, things=things, noun=sense.noun or about.get(name, "")) for name, sense in every.items()
    }


def acts(name: str) -> bool:
    """Whether the verb in the name of a tool says that something is changed, wherever it stands."""
    verbs = [(word, VERBS[word]) for word in words(name)[:2] if word in VERBS]
    if not verbs or verbs[0][1].reads:
        return False
    return verbs[0][0] != words(name)[0] or senses([CatalogTool(name=name)])[name].acts  # `book_by_title` books nothing


def _sense(tool: CatalogTool, name_words: list[str], common: set[str], nouns: set[str]) -> Sense:
    """The sense of a tool. name_words: the words of its name; common: words that say nothing; nouns: words that are no
    verb."""
    while len(name_words) > 1 and name_words[0] in common and name_words[0] not in VERBS:
        name_words = name_words[1:]
    if name_words[0] == "is" and len(name_words) > 1:  # is_prime(n), is_leap_year(year)
        said = " ".join(name_words[1:])
        return Sense(Verb(("check whether",)), "", f"is {article(said) if len(name_words) > 2 else said}", acts=False)
    doer = VERBS.get(name_words[-1].removesuffix("er")) if name_words[1:] and name_words[-1].endswith("er") else None
    if doer:  # duplicate_finder
        return Sense(doer, plural(" ".join(name_words[:-1])), "", acts=not doer.reads)
    after_noun = len(name_words) == 2 and name_words[0] in nouns and name_words[1] in VERBS
    begin = 1 if after_noun else _begin(tool, name_words)
    if begin and name_words[begin] in WORDS.verb_nouns:  # `semantic_search`
        return Sense(_NOUN_RUN, " ".join(name_words), "", acts=False)
    verb, rest = NOUN_ALONE, name_words
    if begin is not None:
        verb, rest = _verb(tool, name_words[begin:])
        rest = rest or name_words[:begin]  # `issue.create`
    elif words(tool.description[:80])[:1] in (["run"], ["runs"]):
        verb = RUNS  # `doctor`
    at = next((at for at, word in enumerate(rest) if word in WORDS.prepositions), len(rest))
    noun = [word for word in rest[:at] if word not in WORDS.fillers]
    tail, key = " ".join(rest[at:]), ""
    if rest[at : at + 1] == ["by"]:
        tail, key = "", " ".join(rest[at + 1 :])
    if len(noun) > 1 and is_participle(noun[-1]) and verb.phrases[0] in WORDS.judgements:
        noun, tail = noun[:-1], f"as {noun[-1]}"  # mark_task_done(task_id)
    elif len(noun) > 1 and is_participle(noun[-1]):
        noun = [noun[-1], *noun[:-1]]  # diff unstaged → unstaged diff
    if set(tail.split()[1:]) and set(tail.split()[1:]) <= common:
        tail = ""  # `write_data_to_excel` of a server with this name
    if len(noun) == 1 and not verb.reads and not tail and is_participle(noun[0]):  # propose_done(title)
        noun, tail = [], f"as {noun[0]}"
        if verb.phrases[0] not in WORDS.judgements:
            verb = replace(verb, phrases=tuple(f"{phrase} to mark" for phrase in verb.phrases))
    return Sense(verb, " ".join(noun), tail, acts=not verb.reads, key=key)


def _begin(tool: CatalogTool, name_words: list[str]) -> int | None:
    """Where the verb stands in a name. None: it has none.

    A word that is in no list is a verb if the description begins with it as people begin one: "Lend a book".
    """
    verb, last = VERBS.get(name_words[0]), len(name_words) - 1
    if (verb and (verb.reads or name_words[1:2] != ["by"])) or _MAKES_VERBS.search(name_words[0]):
        return 0
    told, after = (*words(tool.description[:80]), "", "")[:2]
    if after in WORDS.fillers | WORDS.prepositions - {"of"}:
        for at, word in enumerate(name_words):
            if not is_plural(word) and told in (word, f"{word}s", f"{word}es") and after != (*name_words, "")[at + 1]:
                return at
    return last if last and name_words[last] in VERBS and name_words[-2] not in WORDS.prepositions else None


def _verb(tool: CatalogTool, name_words: list[str]) -> tuple[Verb, list[str]]:
    """The verb that words begin with, and the words behind it."""
    first, second = name_words[0], name_words[1:2]
    verb = VERBS.get(first) or Verb((first,), reads=tool.reads)
    told = words(tool.description[:80])
    if first not in VERBS and set(told[1:2]) & WORDS.prepositions and set(told[2:3]) & WORDS.fillers:
        verb = replace(verb, phrases=(f"{first} {told[1]}",))  # "Comment on a ticket"
    if set(second) & WORDS.particles and first not in WORDS.prepositions:  # `check_out_book`
        return replace(verb, phrases=(f"{first} {second[0]}",), reads=tool.reads, names=False), name_words[2:]
    if set(second) & {"and", "or"} and len(name_words) > 2:  # `search_and_replace`
        both = VERBS.get(name_words[2]) or Verb((name_words[2],), reads=tool.reads)
        return replace(both, phrases=(" ".join(name_words[:3]),), names=False), name_words[3:]
    return verb, name_words[1:]
