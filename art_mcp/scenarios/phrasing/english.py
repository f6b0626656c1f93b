"""English words: articles, plurals, gerunds, lists."""

from __future__ import annotations

import re
from collections.abc import Sequence

from art_mcp.scenarios.observe import singular
from art_mcp.scenarios.phrasing.language import LEXICON, WORDS

_SHORT_VERB = re.compile(r"[^aeiou]*[aeiou][bdgklmnprtz]")
"""Verbs that double their last letter: getting."""

_PARTICIPLE = re.compile(r"\w{2,}[^e\W]ed")


def article(noun: str) -> str:
    """The noun with "a" or "an"."""
    low = noun.casefold()
    vowel = low.startswith(WORDS.vowel_sounds) or (low[:1] in "aeiou" and not low.startswith(WORDS.consonant_sounds))
    return f"{'an' if vowel else 'a'} {noun}"


def is_participle(word: str) -> bool:
    """Whether a word is a participle, or an adverb that is used like one: reserved, shown, due."""
    return word in WORDS.participles or _PARTICIPLE.fullmatch(word) is not None


def is_plural(noun: str) -> bool:
    """Whether the head of a noun phrase is a plural: the word before its first preposition, or the last one."""
    parts = noun.split() or [""]
    end = next((at for at, word in enumerate(parts) if at and (word in WORDS.prepositions or word == "it")), len(parts))
    last = parts[end - 1].casefold()
    return last in LEXICON.plurals.values() or (singular(last) != last and last not in WORDS.mass_nouns)


def plural(noun: str) -> str:
    """The plural of a noun phrase: table → tables, entry → entries. A plural stays as it is."""
    head, _, last = noun.rpartition(" ")
    if is_plural(noun) or last in WORDS.mass_nouns:
        return noun
    if last in LEXICON.plurals:
        form = LEXICON.plurals[last]
    elif last.endswith("y") and last[-2:-1] not in ("a", "e", "i", "o", "u", ""):
        form = f"{last[:-1]}ies"
    else:
        form = f"{last}es" if last.endswith(("s", "x", "z", "ch", "sh")) else f"{last}s"
    return f"{head} {form}".strip()


def one_of(noun: str) -> str:
    """The singular of a noun phrase: text files → text file."""
    head, _, last = noun.rpartition(" ")
    singulars = {many: single for single, many in LEXICON.plurals.items()}
    return f"{head} {singulars.get(last) or singular(last)}".strip()


def gerund(verb: str) -> str:
    """The gerund of a verb phrase: create → creating, check out → checking out, get rid of → getting rid of."""
    first, space, rest = verb.partition(" ")
    if first.endswith("ie"):
        stem = f"{first[:-2]}y"
    elif first.endswith("e") and not first.endswith(("ee", "oe", "ye")):
        stem = first[:-1]
    else:
        doubles = first in WORDS.doubling or _SHORT_VERB.fullmatch(first)
        stem = f"{first}{first[-1] if doubles else ''}"
    return f"{stem}ing{space}{rest}"


def join_items(items: Sequence[str], last: str = "and") -> str:
    """Items as a list in a sentence: a, b and c."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}" if items else ""


def capital(text: str) -> str:
    """The text with a capital first letter. Paths, addresses and values in quotation marks stay as they are."""
    first = text.split(" ", 1)[0]
    return (
        text if any(mark in first for mark in "/_.@`\"'") and not first.endswith(".") else text[:1].upper() + text[1:]
    )


def uncapital(text: str) -> str:
    """The text with a small first letter, unless its first word is "I" or a value."""
    first = text.split(" ", 1)[0].rstrip(",.:;?!")
    plain = first[1:].isalpha() and first[1:].islower()
    return text[:1].lower() + text[1:] if plain else text
