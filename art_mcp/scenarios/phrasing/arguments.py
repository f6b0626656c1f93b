"""Arguments of a call in words: "the branch login", "in /world/site", "after 1965", "with priority high"."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.client.effects import words
from art_mcp.scenarios.observe import leaves, meanings, singular
from art_mcp.scenarios.phrasing.english import article, is_participle, is_plural, join_items, one_of, plural
from art_mcp.scenarios.phrasing.language import LEXICON, SENTENCES, UNITS, WORDS
from art_mcp.scenarios.phrasing.objects import (
    IDENTIFIERS,
    has_objects,
    is_nested,
    is_result,
    label,
    lead_of,
    object_of,
    origin_goal_pairs,
)
from art_mcp.scenarios.phrasing.sense import NOUN_ALONE, Sense

LONG_TEXT = 80
"""Characters of a text that stands in a sentence, at most. Longer ones come at its end, behind a colon."""

_PATH = re.compile(r"(?:~|\.{0,2})/\S*|[\w./-]*\w\.[A-Za-z]\w{0,4}")
"""A value that is seen to be a path, or the name of a file."""

_DATED = re.compile(r"\d{4}-\d\d|\d\d?:\d\d")

_MARKS = tuple("\"'“")
_QUOTES = ('"{}"', '"{}"', "'{}'", "“{}”")


def render_value(value: Any, rng: random.Random, quote: bool = False) -> str:
    """A value in a sentence. Texts of several words, and odd ones, are in quotation marks.

    Args:
        value: The value. A list is told as a list of its items.
        rng: Chooses the quotation marks.
        quote: Whether also a single word is in quotation marks.
    """
    if isinstance(value, list) and value and not any(isinstance(item, dict | list) for item in value):
        return join_items([render_value(item, rng, quote) for item in value])
    if not isinstance(value, str):
        return canonical(value)
    plain = bool(value) and value == value.strip() and not set(value) & set("\"'\n`“”,;")
    proper = len(value.split()) <= 3 and all(word[:1].isupper() for word in value.split())
    if plain and not quote and (len(value.split()) == 1 or proper):
        return value
    if '"' in value or "\n" in value:
        return f"'{value}'" if "'" not in value and "\n" not in value else canonical(value)
    return rng.choice(_QUOTES if "'" not in value else _QUOTES[:1]).format(value)


def spell_value(value: Any) -> Iterator[str]:
    """The texts that must be in a task so that a value can be read from it. Truth values are told otherwise.

    Args:
        value: The value of an argument.
    """
    for _, leaf in leaves(value):
        if not isinstance(leaf, bool):
            yield leaf if isinstance(leaf, str) else canonical(leaf)


@dataclass(frozen=True, slots=True)
class RenderedCall:
    """A call in words.

    Args:
        thing: What is done something to, with its article: "the branch login". Empty: the verb has no object.
        where: What else is said of it: "in /world/site, at most 5".
        bare: Whether the thing is a noun without any value, so that `where` has all that the call says.
        loose: Whether it ends with a long value, behind which a sentence goes on after a comma.
        plain: Whether a question can be about all of it: it has no wishes, such as "in detail", and no long values.
    """

    thing: str = ""
    where: str = ""
    bare: bool = False
    loose: bool = False
    plain: bool = True

    @property
    def whole(self) -> str:
        """The thing with all that is said of it."""
        return join_phrases(self.thing, self.where)


def join_phrases(*phrases: str) -> str:
    """Phrases as one. One that begins with a comma or a colon follows the one before without a space."""
    return "".join(
        f"{'' if phrase[0] in ',:' or not at else ' '}{phrase}" for at, phrase in enumerate(filter(None, phrases))
    )


def render_arguments(
    sense: Sense, arguments: Mapping[str, Any], rng: random.Random, wordings: Mapping[str, str] | None = None
) -> RenderedCall:
    """Puts the arguments of a call into words.

    Args:
        sense: What the tool does.
        arguments: The arguments.
        rng: Chooses among ways to say it.
        wordings: Words for arguments that are described instead of told: "the first branch".
    """
    values = {name: value for name, value in arguments.items() if value != {}}  # nobody says that there are none
    return _Writer(sense, rng, dict(wordings or {}), values).render({**values, **(wordings or {})})


class _Writer:
    """Puts the arguments of one call into words."""

    def __init__(
        self, sense: Sense, rng: random.Random, wordings: dict[str, str], arguments: Collection[str] = ()
    ) -> None:
        self._sense, self._verb, self._rng = sense, sense.verb, rng
        self._wordings = {name: self._identify(name, wording) for name, wording in wordings.items()}
        self._noun = sense.noun.split()
        self._nouns = {singular(word) for word in self._noun}
        self._phrases: list[tuple[int, str]] = []  # with its rank in the sentence
        # A name, its value, and both: "weight", "24 kg", "a weight of 24 kg".
        self._notes: list[tuple[str, str, str]] = []
        self._wishes: list[str] = []
        self._ends: list[str] = []  # long values
        self._makes = sense.verb.makes and "copy" not in sense.verb.phrases  # what is copied is there
        if self._verb.edits and len(self._noun) > 1 and self._noun[-1] in arguments:
            self._noun.pop()  # update_deal_stage(deal_id, stage)
        self._tail = sense.tail if " " in sense.tail else ""
        self._bare = True  # whether the object has no value

    def render(self, arguments: Mapping[str, Any]) -> RenderedCall:
        rest = dict(arguments)
        thing = self._thing(rest, self._adjective(rest))
        sole = len(arguments) == 1 and not (self._sense.many and self._verb is not NOUN_ALONE)  # divisors(n)
        letters = self._letters(rest, 2 if thing and not sole else 1, sole)
        if thing and letters:
            self._phrases.append((0, letters if letters.startswith("at ") else f"of {letters}"))
        self._pairs(rest)
        place = self._place(rest)
        for name in [name for name in rest if name != place]:
            self._add_argument(name, rest[name])
        if place is not None:
            form = self._place_form(rest[place], thing)
            self._phrases.append((0 if form == "owner" else 6, self._fill(form, place, rest[place])))
        if self._verb.edits and thing and self._notes:  # change the price of it-7 to 20
            (own, text, _), *others = self._notes
            changes = [f"to {text}", *(f"the {own} to {text}" for own, text, _ in others)]
            thing, self._notes = f"the {own} of {thing}", []
            self._phrases.append((5, join_items(changes)))
        plain = not (self._tail or self._wishes or self._ends)
        return RenderedCall(thing or letters, self._where(), self._bare, bool(self._ends), plain)

    def _identify(self, name: str, wording: str) -> str:
        """A description, or the thing that it identifies: not "delete the id"."""
        _, key, *where = wording.split(" ", 2) if " " in wording else ("", "")
        own = " ".join(word for word in label(name).split() if word not in IDENTIFIERS) or one_of(self._sense.noun)
        if key not in IDENTIFIERS or not own:
            return (
                f"that {own}" if wording == f"the {own}" else wording.replace(f"the {own} in the", f"the {own} of the")
            )
        return f"the {own} {where[0]}" if where else f"that {own}"

    def _where(self) -> str:
        """All that is said beside the thing."""
        phrases = [self._tail, *(phrase for _, phrase in sorted(self._phrases, key=lambda ranked: ranked[0]))]
        parts = [wish.removeprefix("with ") for wish in self._wishes if wish.startswith("with ")]
        wishes = join_items([wish for wish in self._wishes if not wish.startswith(("with ", ","))])
        if self._verb.reads and self._sense.many and self._notes and not parts and self._rng.random() < 0.7:
            clauses = [f"the {own} {'are' if is_plural(own) else 'is'} {text}" for own, text, _ in self._notes]
            phrases += [f"where {join_items(clauses)}", wishes and f", {wishes}"]
        else:
            parts = [*(phrase for _, _, phrase in self._notes), *parts]
            phrases += [f"with {join_items(parts)}" if parts else "", wishes]
        phrases += [wish for wish in self._wishes if wish.startswith(",")]
        return join_phrases(*phrases, f", {'; '.join(self._ends)}" if self._ends else "")

    def _value(self, name: str, value: Any, quote: bool = False) -> str:
        return self._wordings.get(name) or render_value(value, self._rng, quote)

    def _fill(self, kind: str, name: str, value: Any, own: str = "") -> str:
        """A value in a form of the table `arguments`. own: its name in words."""
        in_value = name in self._wordings or (own and str(value).casefold().startswith(own))  # not "task task-7"
        own = "" if in_value and kind != "as" else own
        form = self._rng.choice(SENTENCES.arguments[kind])
        return form.replace("{own} ", f"{own} " if own else "").format(text=self._value(name, value), own=own)

    def _adjective(self, rest: dict[str, Any]) -> str:
        """The value of `branch_type` for a tool of branches, before the noun: local branches."""
        for name, value in rest.items():
            own, kind = meanings(name)[-2:-1], meanings(name)[-1:]
            fits = self._noun and own == meanings(self._sense.noun)[-1:] and set(kind) & WORDS.kinds
            if fits and isinstance(value, str) and value.isidentifier() and name not in self._wordings:
                return str(rest.pop(name))
        return ""

    def _thing(self, rest: dict[str, Any], adjective: str) -> str:
        """The object of the verb, with the argument that is it. That argument is taken out of `rest`."""
        noun = " ".join([adjective, *self._noun]).strip()
        noun = plural(noun) if adjective and self._sense.names else noun  # the local branches
        short = {name: value for name, value in rest.items() if not self._is_long(name, value)}
        name = object_of(self._sense, short, rest.keys())
        if name is None:
            self._bare = not adjective
            return self._moved_thing(rest) or self._owner_thing(rest) or self._bare_noun(noun, adjective)
        value, self._bare = rest.pop(name), False
        if has_objects(value):
            items = value if isinstance(value, list) else [value]
            return join_items([self._render_item(item, one_of(noun or label(name))) for item in items])
        last = (meanings(name) or [name])[-1]
        text = self._value(name, value, quote=last == "text" or (self._makes and last in WORDS.texts))
        if name in self._wordings:
            return text
        if not noun:
            kind = " ".join(word for word in label(name).split() if word not in WORDS.names | {"path", "id"})
            kind = one_of(kind) if isinstance(value, list) and len(value) == 1 else kind
            phrase = f"{kind} {text}" if kind.isascii() and len(kind) > 1 else text
            if self._sense.key:  # filter_by_project(project)
                return f"by {phrase}"
            return text if last == "id" or phrase == text else self._rng.choice((f"the {phrase}", text, *_alone(text)))
        if name in WORDS.amounts or isinstance(value, list):  # insert_rows(count), delete_entities(names)
            counted = one_of(noun) if value == 1 or (isinstance(value, list) and len(value) == 1) else plural(noun)
            return f"the {counted} {text}" if isinstance(value, list) else f"{text} {counted}"
        if self._makes and last in WORDS.names - {"name", "title"}:
            self._notes.append((last, text, f"the {last} {text}"))
            return article(noun)
        if self._makes and last in {"name", "title", "path", "file"}:
            return f"{article(noun)} {'titled' if last == 'title' else self._rng.choice(('named', 'called'))} {text}"
        noun = one_of(noun)
        if text.casefold().startswith(noun.split()[-1]):  # not "the task task-7"
            return text
        return f"{noun} {text}" if text.isdigit() else self._rng.choice((f"the {noun} {text}", *_alone(text)))

    def _moved_thing(self, rest: dict[str, Any]) -> str:
        """What goes from one place to another, if it is told by where it is: `move_file(source, destination)`."""
        for origin, goal, own in origin_goal_pairs(list(rest)):
            if not own and set(self._noun) & WORDS.path_nouns and not (self._makes or self._verb.reads):
                self._bare = False
                self._phrases.append((3, self._fill("goal", goal, rest.pop(goal))))
                return self._value(origin, rest.pop(origin))
        return ""

    def _owner_thing(self, rest: dict[str, Any]) -> str:
        """A noun with the thing that has it, if one is told: the loans of member Ada. Empty: none is."""
        noun = self._sense.noun
        for name, value in rest.items():
            owner = " ".join(part for part in meanings(name) if part not in ("id", "name"))
            alone = not owner and name in IDENTIFIERS and self._sense.names and self._sense.many
            owner = noun.rpartition(" ")[0] if alone else owner
            if owner and noun.startswith(f"{owner} ") and not isinstance(value, bool | list | dict):
                self._phrases.append((0, self._fill("owner", name, rest.pop(name), owner)))
                return f"the {noun.removeprefix(f'{owner} ')}"
        return ""

    def _bare_noun(self, noun: str, adjective: str) -> str:
        """A noun without a value."""
        is_mass = is_plural(noun) or set(noun.split()[-1:]) & WORDS.mass_nouns
        if not noun or adjective == "all" or (self._makes and is_mass):
            return noun
        bare = self._sense.many and not self._sense.names and self._rng.random() < 0.5
        return article(noun) if self._makes else noun if bare else f"the {noun}"

    def _letters(self, rest: dict[str, Any], least: int, sole: bool) -> str:
        """Takes at least so many arguments that are letters out of `rest`, as the object: 3 and 4, x 3 and y 4."""
        others = {name for name in rest if name in WORDS.search_terms or isinstance(rest[name], bool)}
        letters = [name for name in rest if len(name) == 1 and name.isalpha() and name not in others]
        if len(letters) < least:
            return ""
        first = sole or "".join(sorted(letters)) == "abcdefgh"[: len(letters)]
        self._bare = False
        phrase = join_items([f"{'' if first else f'{name} '}{self._value(name, rest.pop(name))}" for name in letters])
        return phrase if first else f"at {phrase}"

    def _pairs(self, rest: dict[str, Any]) -> None:
        """Says an origin and its goal, from A1 to C3, and to what a property is set: `set_status(status)`."""
        pairs = origin_goal_pairs(list(rest))
        for origin, goal, own in pairs:
            if origin in rest and goal in rest:
                self._phrases.append((2, self._fill("origin", origin, rest.pop(origin), own if len(pairs) > 1 else "")))
                self._phrases.append((3, self._fill("goal", goal, rest.pop(goal))))
        for name in [name for name in rest if is_result(self._sense, name, rest)]:
            self._phrases.append((5, self._fill("goal", name, rest.pop(name))))

    def _place(self, rest: Mapping[str, Any]) -> str | None:
        """The argument that says in what something is done: a path, or a place by its name. None: there is none."""
        paths = [name for name in rest if isinstance(rest[name], str) and _PATH.fullmatch(rest[name])]
        named = [name for name in rest if set(words(name)[-1:]) & WORDS.places and label(name) != self._sense.key]
        return next((name for name in paths or named if not lead_of(words(name))), None)

    def _place_form(self, place: Any, thing: str) -> str:
        """How a place is said: a key of the table `arguments`."""
        texts = [phrase for rank, phrase in self._phrases if rank != 0]
        if self._bare and self._makes and not texts and not self._notes:
            return "new_path"
        has_goal = any(rank == 4 and phrase.startswith(("to ", "from ")) for rank, phrase in self._phrases)
        if has_goal or not (self._verb.removes or self._verb.inward):
            owned = self._sense.names and not is_plural(thing) and _PATH.fullmatch(str(place))
            return "owner" if owned else "in"  # the log of /world/site, the weather in Oslo
        return "out_of" if self._verb.removes else "into"

    def _render_item(self, item: Mapping[str, Any], noun: str) -> str:
        """An object with its keys: "the entity Ada with type person"."""
        rest, thing = dict(item), article(noun) if self._makes else f"the {noun}"
        own, kinds = {"name", "title", *meanings(noun)}, WORDS.texts | {*meanings(noun)}
        names = [key for key in item if {*meanings(key)[-1:]} & {"name", "title"} and meanings(key)[0] in own]
        texts = [key for key, value in item.items() if {*meanings(key)[-1:]} & kinds and not has_objects(value)]
        if names and isinstance(item[names[0]], str):
            thing = join_phrases(thing, "named" if self._makes else "", render_value(rest.pop(names[0]), self._rng))
        elif texts:
            many = isinstance(item[texts[0]], list) and len(item[texts[0]]) > 1
            text = render_value(rest.pop(texts[0]), self._rng, quote=True)
            thing = f"the {plural(noun) if many else noun} {text}"
        inner = _Writer(Sense(self._verb, noun, "", acts=True), self._rng, {})
        inner._pairs(rest)
        for name in rest:
            inner._add_argument(name, rest[name])
        return join_phrases(thing, inner._where())

    def _is_long(self, name: str, value: Any) -> bool:
        """Whether a value is too long for the middle of a sentence."""
        long_text = isinstance(value, str) and (len(value) > LONG_TEXT or "\n" in value)
        return name not in self._wordings and (long_text or is_nested(value))

    def _add_argument(self, name: str, value: Any) -> None:
        """Adds an argument to what is said."""
        parts = label(name).split() or [name]
        if isinstance(value, bool):
            self._switch(parts, value)
        elif isinstance(value, list) and value and all(map(_change_of, value)):
            self._phrases.append((8, f"by {join_items([_change_of(item) for item in value])}"))
        elif self._is_long(name, value) or has_objects(value):
            text = canonical(value) if not isinstance(value, str) else value if '"' in value else f'"{value}"'
            self._ends.append(f"with {'these' if label(name).endswith('s') else 'this'} {label(name)}: {text}")
        elif isinstance(value, str | list) or not self._number(parts, value):
            self._add_phrase(name, parts, value)

    def _number(self, parts: list[str], value: Any) -> bool:
        """Says a number as people say it. False: nothing special is known of it."""
        number, bound = render_value(value, self._rng), LEXICON.bounds.get(parts[0], "") if len(parts) > 1 else ""
        limits = self._verb.reads and WORDS.limits & set(parts) and set(parts) <= WORDS.limits | WORDS.amounts
        forms = LEXICON.numbers["limit"] if limits else LEXICON.numbers.get(" ".join(parts))
        *own, last = parts[bool(bound) :]
        unit = UNITS.get(last) if (own or bound) and not UNITS.keys() & own[-1:] else None  # ft_lb is one unit
        if value == 1:
            forms = tuple(re.sub(r"(?<=\{\} )\w+", lambda match: one_of(match[0]), form) for form in forms or ())
            last = last if last.endswith("ms") else one_of(last)
        amount = f"{bound} {unit.format(number, last) if unit else number}".strip()
        if forms:
            self._wishes.append(self._rng.choice(forms).format(number))
        elif unit:  # a weight of 24 kg, at most 3 days
            self._wishes += [] if own else [f"with {amount}"]
            self._notes += [_measure(" ".join(own), amount)] if own else []
        elif is_plural(parts[-1]):  # at least 3 pages
            self._wishes.append(f"with {amount} {' '.join([*own, last])}")
        elif bound or isinstance(value, float):
            self._notes.append(_measure(" ".join([*own, last]), amount))
        else:
            return False
        return True

    def _switch(self, parts: list[str], value: bool) -> None:
        """Adds a truth value."""
        if parts[-1] == "only":  # low_stock_only
            parts = [parts[-1], *parts[:-1]]
        rest, of_words = " ".join(parts[1:]), LEXICON.switches.get(parts[0])
        if parts[0] in WORDS.prepositions and not of_words:  # in_stock
            of_words = (f"{parts[0]} {{}}", f"not {parts[0]} {{}}")
        if of_words and ("{}" in of_words[0]) is bool(rest):
            ones = " ones" if rest and is_participle(parts[-1]) else ""
            self._wishes.append(of_words[not value].format(f"{rest}{ones}"))
        elif (parts[0] == "is" and rest) or (is_participle(parts[-1]) and not rest):
            self._wishes.append(f"{'' if value else 'not '}marked as {rest if parts[0] == 'is' else ' '.join(parts)}")
        else:
            parts = parts[:-1] if parts[1:] and parts[-1] in WORDS.prepositions else parts
            self._wishes.append(f"{'with' if value else 'without'} {' '.join(parts)}")

    def _add_phrase(self, name: str, parts: list[str], value: Any) -> None:
        """Adds a text, a list or a number: by its preposition, as a thing of the server, or as a note."""
        described, text, rest = name in self._wordings, self._value(name, value), " ".join(parts[1:])
        tail, _, of = self._sense.tail.partition(" ")
        if lead := lead_of(parts):
            form = self._rng.choice(LEXICON.leads.get(lead, (f"{lead} {{text}}",)))
            if lead == "not" and rest in LEXICON.leads:  # not_contains
                form = f"not {LEXICON.leads[rest][0]}"
            own = f"{rest} " if rest and not described else ""
            self._phrases.append((5, form.replace("{own} ", own).format(text=text)))
            return
        if parts[-1] in WORDS.prepositions and len(parts) > 1:  # assigned_to, created_after, sort_by
            ending = "ed" if parts[-1] == "by" and not is_participle(parts[-2]) else ""
            self._phrases.append((5, f"{' '.join(parts[:-1])}{ending} {parts[-1]} {text}"))
            return
        if label(name) == self._sense.key and self._sense.many and not self._verb.names:  # filter_by_project
            self._phrases.append((1, f"by {text}" if described else f"by {self._sense.key} {text}"))
            return
        if tail and (of in (parts[0], parts[-1], " ".join(parts)) if of else not self._phrases):  # members_in(city)
            self._tail, own = "", f"{of} " if of and parts[-1] in ("id", "name") and not described else ""
            self._phrases.append((0, f"{tail} {own}{text}"))
            return
        entity = self._entity(parts, value)
        kind = self._form(parts, value) or self._thing_form(entity, described)
        own = entity or (rest if len(parts) > 1 and singular(parts[0]) in self._nouns else " ".join(parts))
        spot = "in" if parts[-1] in WORDS.sections else "on" if parts[-1] in WORDS.surfaces else ""
        if described and not entity and kind in ("as", "other") and own in text:  # on that shelf, with that priority
            self._phrases.append((4, f"{spot or 'with'} {text}"))
            return
        if kind is None and (is_participle(parts[-1]) or (spot and not (self._verb.edits or isinstance(value, list)))):
            own = f"{own} {text}"  # on shelf F2, due May 1
            self._phrases.append((2, f"{spot} {own}") if spot else (7, f", {own}"))
            return
        if kind is None:
            own = one_of(own) if isinstance(value, list) and len(value) == 1 else own
            text = self._value(name, value, quote=parts[-1] in WORDS.texts)
            self._notes.append((own, text, f"{'the ' if text[:1] in _MARKS else ''}{own} {text}"))
            return
        if kind in ("start", "end") and _DATED.match(text):
            rest = ""  # starting at 2025-01-01, not at timestamp
        known = kind == "owner" and parts[-1] == "id" and self._sense.names and _alone(text)
        patterns = kind == "without" and set(parts[1:]) <= WORDS.search_terms | {"patterns", "contains"}
        own = rest if kind in ("start", "end", "without") else own
        own = "" if known or patterns or (kind == "in" and not entity) else own
        self._phrases.append((1 if kind in ("query", "pattern") else 4, self._fill(kind, name, value, own)))

    def _thing_form(self, entity: str, described: bool) -> str | None:
        """How an argument is said that names a thing of the server, or is described. None: as a note."""
        verb, ranks = self._verb, {rank for rank, _ in self._phrases}
        if verb.inward and not verb.makes and not ranks & {3, 4}:  # move_book(title, shelf)
            return "into"
        if not entity or 4 in ranks:
            return ("other" if verb.reads else "as") if described else None
        if verb.removes or verb.inward:
            return "out_of" if verb.removes else "into"
        if not verb.reads:
            return "owner" if self._bare and not self._makes else "other"
        return "in" if 1 in ranks else "owner"

    def _entity(self, parts: list[str], value: Any) -> str:
        """The thing that an argument names: item for `item_id`, sheet where a tool lists sheets. Empty: none."""
        known = parts[-1] in ("id", "ids", "name", "names") and len(parts) > 1
        own = " ".join(parts[:-1]) if known else " ".join(parts)
        own_noun = one_of(own) == one_of(self._sense.noun)
        if own_noun or parts[0] in WORDS.origins | WORDS.goals or not (known or one_of(own) in self._sense.things):
            return ""
        return one_of(own) if not isinstance(value, list) else plural(own) if known else ""

    def _form(self, parts: list[str], value: Any) -> str | None:
        """How an argument is said whose name says it: a key of the table `arguments`. None: it is not one of these."""
        last, few, text = singular(parts[-1]), len(parts) <= 2, isinstance(value, str)
        ways = {
            "against": parts[0] in WORDS.goals and len(parts) == 1 and self._noun[-1:] == ["diff"],
            "without": parts[0] in WORDS.negations and len(parts) > 1,
            "query": few and last in WORDS.queries,
            "pattern": few and last in WORDS.search_terms,
            "start": few and parts[0] in ("start", "begin"),
            "end": few and parts[0] == "end",
            "time": parts in (["time"], ["hour"]),
            "date": parts in (["date"], ["day"]),
            "in": text and len(parts) == 1 and last in WORDS.places and not _PATH.fullmatch(str(value)),
            "text": text and last in WORDS.texts and self._sense.acts and not self._noun,
        }
        return next((way for way, fits in ways.items() if fits), None)


def _measure(own: str, amount: str) -> tuple[str, str, str]:
    """A note of a number that is one of what its name says."""
    return own, amount, f"{own if is_plural(own) else article(own)} of {amount}"


def _change_of(item: Any) -> str:
    """An object with an old text and a new one in words. Empty: it has more, or less."""
    pairs = origin_goal_pairs(list(item)) if isinstance(item, dict) and len(item) == 2 else []
    texts = [item[name] for name in pairs[0][:2]] if pairs else []
    if not texts or not all(isinstance(text, str) and text and "\n" not in text for text in texts):
        return ""
    old, new = (text if '"' in text else f'"{text}"' for text in texts)
    return f"replacing {old} with {new}"


def _alone(text: str) -> tuple[str, ...]:
    """A value that is seen to be one without its noun, a path, or a name with digits. Empty: it is not."""
    return (text,) if not text.isdigit() and text[:1] not in _MARKS and re.search(r"[/._@0-9]", text) else ()
