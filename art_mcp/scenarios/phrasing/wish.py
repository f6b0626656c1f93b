"""A call in words, and the questions about its result in words."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from art_mcp.scenarios.catalog import CatalogTool
from art_mcp.scenarios.phrasing.arguments import join_phrases, render_arguments
from art_mcp.scenarios.phrasing.english import gerund, is_plural, one_of, plural
from art_mcp.scenarios.phrasing.language import WORDS
from art_mcp.scenarios.phrasing.questions import Question
from art_mcp.scenarios.phrasing.sense import Sense

_ABOUT = {"info", "information", "detail", "metadata"}
"""Nouns of results that tell what a thing is like."""

_CLAUSE = 0.4
"""How often a short thing is asked for in a clause: "tell me what the price of it-77 is"."""

_CLAUSE_WORDS = 6
"""Words of such a thing, at most."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A call in words.

    Args:
        do: What is to be done, in the imperative: "show me the log of /world/site".
        doing: The same as a gerund.
        noun_phrase: What the call gives, as a noun phrase: "the log of /world/site". Empty: no noun names it.
        noun: The noun alone: "log".
        many: Whether the noun is a plural.
        where: What is said beside the noun: "of /world/site". Empty: there is more to it than this.
        first: What is to be done before, in the imperative. Empty: nothing is.
        loose: Whether a sentence goes on behind it after a comma.
        alone: Whether questions about it say all: nobody needs to hear where the answer is.
    """

    do: str
    doing: str
    noun_phrase: str = ""
    noun: str = ""
    many: bool = False
    where: str = ""
    first: str = ""
    loose: bool = False
    alone: bool = False


def wish(
    tool: CatalogTool,
    sense: Sense,
    arguments: Mapping[str, Any],
    rng: random.Random,
    wordings: Mapping[str, str] | None = None,
) -> Wish:
    """Puts a call into words.

    Args:
        tool: The tool.
        sense: What it does.
        arguments: Its arguments.
        rng: Chooses among ways to say it.
        wordings: Words for arguments that are described instead of told.
    """
    sense, arguments = _choose_noun(sense, arguments)
    call = render_arguments(sense, arguments, rng, wordings)
    verb = rng.choice(sense.verb.phrases)
    if not call.thing:  # `reset`, `status` of nothing
        verb = sense.verb.phrases[0]
    do = join_phrases(verb, call.whole)
    doing = join_phrases(gerund(verb), call.whole)
    noun_phrase = call.whole if sense.names and call.thing and call.plain else ""
    # "the files of /world" says all beside its noun; "the file with the name a.txt" does not: it is named as a whole.
    many, noun = sense.many and call.bare, sense.noun
    if noun_phrase.startswith(call.thing) and call.thing.endswith(f" {plural(noun)}"):  # the local branches
        noun = plural(noun)
    return Wish(do, doing, noun_phrase, noun, many, call.where if call.bare else "", loose=call.loose)


def _choose_noun(sense: Sense, arguments: Mapping[str, Any]) -> tuple[Sense, Mapping[str, Any]]:
    """The noun that an argument chooses, and the other arguments: of `insert_rows_or_columns(axis, count)`, rows."""
    nouns = sense.noun.split(" or ")
    chosen = next((name for name, value in arguments.items() if len(nouns) > 1 and value in nouns), None)
    if chosen is None:
        return sense, arguments
    others = {name: value for name, value in arguments.items() if name != chosen}
    return replace(sense, noun=arguments[chosen]), others


@dataclass(frozen=True, slots=True)
class QuestionPhrases:
    """A question in words.

    Args:
        question: The question: "what is the price of it-77?"
        wh: What somebody can tell: "what the price of it-77 is", or "the price of it-77".
        thing: What is asked for: "the price of it-77". Empty: no noun phrase names it.
    """

    question: str
    wh: str
    thing: str = ""


def phrase_question(question: Question, call: Wish, whole: bool, rng: random.Random) -> QuestionPhrases:
    """Puts a question into words.

    Args:
        question: The question.
        call: The call that it is about.
        whole: Whether the question says what it is about. Otherwise the text has said it before.
        rng: Chooses among ways to say it.
    """
    if question.kind == "count":
        return _count(question, call, whole)
    if question.kind == "contains":
        items = _items(question, call, whole)
        among = items if items.startswith("all ") else f"the {items}"
        return QuestionPhrases(f"is {question.item} among {among}?", f"whether {question.item} is among {among}")
    thing = _thing(question, call, whole)
    if re.match(r"the (first|last) line\b", thing):
        return QuestionPhrases(f"what does {thing} say?", f"what {thing} says", thing)
    many = call.many if not question.head and whole else is_plural(thing)
    verb = "are" if many else "is"
    clause = len(thing.split()) <= _CLAUSE_WORDS and " it " not in thing and rng.random() < _CLAUSE
    return QuestionPhrases(f"what {verb} {thing}?", f"what {thing} {verb}" if clause else thing, thing)


def _thing(question: Question, call: Wish, whole: bool) -> str:
    """What is asked for."""
    head, last = question.head, one_of(call.noun.rpartition(" ")[2])
    if not whole or not call.noun_phrase:
        if is_plural(call.noun):
            head = re.sub(rf"\b(the (?:first|last)) (?:{re.escape(one_of(call.noun))}|{last})$", r"\1 one", head)
        simple = head.startswith("the ") and len(head.split()) <= 3 and not set(head.split()) & {"first", "last", "it"}
        named = call.noun_phrase not in ("", f"the {call.noun}") and not (call.many or call.where)
        owns = named and not set(call.noun.split()) & WORDS.containers
        return f"its {head[4:]}" if simple and owns else head or "the result"
    if not head or (question.kind == "leaf" and head.endswith(last)):
        return call.noun_phrase  # not "the count of the count", nor "the datetime of the current time"
    if " it " in head:
        return head.replace(" it ", f" {call.noun_phrase} ")
    if call.many and f" {last}" in head:
        return join_phrases(head, call.where)
    if head in (f"the first {last}", f"the last {last}") and call.noun != last and f" {call.noun} " in call.noun_phrase:
        return f"{head.removesuffix(f' {last}')} of {call.noun_phrase}"  # the last of the local branches
    if last in _ABOUT and call.where.startswith("of "):  # the size of a.txt, not in the file info of it
        return f"{head} {call.where}"
    thing = call.noun_phrase
    if last in head.split():  # the first directory in /w, not in the directory /w
        thing = re.sub(rf"^the {re.escape(call.noun)} (?=\S*[/.])", "", thing)
    inside = " of " in head or is_plural(call.noun) or set(call.noun.split()) & WORDS.containers
    return f"{head} {'in' if inside else 'of'} {thing}"


def _items(question: Question, call: Wish, whole: bool) -> str:
    """The entries that are counted or looked through, with where they are if the text has not said it."""
    if not whole or not call.noun_phrase:
        return question.items
    if call.many:
        return join_phrases(question.items, call.where)
    same = is_plural(call.noun) and call.noun.split()[-1] == question.items.split()[-1]
    return call.noun_phrase.removeprefix("the ") if same else f"{question.items} in {call.noun_phrase}"


def _count(question: Question, call: Wish, whole: bool) -> QuestionPhrases:
    items = _items(question, call, whole)
    some = question.items.partition(" under ")[0]
    here = items.removeprefix(some)  # "how many entries are there in the log?"
    counted, here = (items, "") if here == items or here.startswith(" of ") else (some, here)
    many, here = f"how many {counted.removeprefix('all ')}", f"{here} in all" if counted.startswith("all ") else here
    return QuestionPhrases(f"{many} are there{here}?", f"{many} there are{here}", f"the number of {items}")
