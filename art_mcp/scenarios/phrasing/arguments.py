"""Arguments of a call in words: "the branch login", "in /world/site", "after 1965", "(shelf F2, priority high)"."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.client.effects import words
from art_mcp.scenarios.observe import leaves, meanings, singular
from art_mcp.scenarios.phrasing.english import article, is_plural, join_items, one_of, plural
from art_mcp.scenarios.phrasing.language import LEXICON, SENTENCES, WORDS, ArgumentKind
from art_mcp.scenarios.phrasing.sense import Sense

LONG_TEXT = 80
"""Characters of a text that stands in a sentence, at most. Longer ones come at its end, behind a colon."""

_PATH = re.compile(r"(?:~|\.{0,2})/\S*|[\w./-]*\w\.[A-Za-z]\w{0,4}")
"""A value that is seen to be a path, or the name of a file."""

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
    if plain and len(value.split()) == 1 and not quote:
        return value
    if plain and not quote and len(value.split()) <= 3 and all(word[:1].isupper() for word in value.split()):
        return value  # a proper name
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
        loose: Whether it ends with a list of notes, behind which a sentence goes on after a comma.
    """

    thing: str = ""
    where: str = ""
    bare: bool = False
    loose: bool = False

    @property
    def whole(self) -> str:
        """The thing with all that is said of it."""
        return join_phrases(self.thing, self.where)


def join_phrases(*phrases: str) -> str:
    """Phrases as one. One that begins with a comma or a colon follows the one before without a space."""
    return "".join(
        f"{'' if phrase[0] in ',:' or not at else ' '}{phrase}" for at, phrase in enumerate(filter(None, phrases))
    )


def label(name: str) -> str:
    """The name of a parameter as words, without a last one that says nothing: `range_str` → range."""
    parts = words(name)
    return " ".join(parts[:-1] if len(parts) > 1 and parts[-1] in WORDS.suffixes else parts) or name


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
    descriptions = dict(wordings or {})
    return _Teller(sense, rng, descriptions).render({**arguments, **descriptions})


class _Teller:
    """Puts the arguments of one call into words."""

    def __init__(self, sense: Sense, rng: random.Random, wordings: dict[str, str]) -> None:
        self._sense = sense
        self._rng = rng
        self._spoken = wordings
        self._noun = sense.noun.split()
        self._nouns = {singular(word) for word in self._noun}
        self._phrases: list[tuple[int, str]] = []  # with its rank in the sentence
        self._notes: list[tuple[str, str]] = []  # a name and its value: shelf, F2
        self._wishes: list[str] = []
        self._ends: list[str] = []  # long values
        self._unfit: set[str] = set()  # ways to say notes that would be wrong
        self._makes = sense.verb.makes and "copy" not in sense.verb.phrases  # what is copied is there
        self._tail = sense.tail if " " in sense.tail else ""
        self._bare = True  # whether the object has no value

    def render(self, arguments: Mapping[str, Any]) -> RenderedCall:
        rest = dict(arguments)
        thing = self._thing(rest, self._adjective(rest))
        letters = self._letters(rest, 2 if thing else 1)
        if thing and letters:
            preposition = "" if letters.startswith("at ") else "of " if self._sense.names else self._pick("of ", "for ")
            self._phrases.append((0, f"{preposition}{letters}"))
        self._pairs(rest)
        place = self._place(rest)
        for name in rest:
            if name != place:
                self._add_argument(name, rest[name])
        if place is not None:
            self._phrases.append((6, self._render(self._place_form(rest, rest[place]), place, rest[place], "")))
        where, loose = self._where()
        return RenderedCall(thing or letters, where, self._bare, loose)

    def _where(self) -> tuple[str, bool]:
        """All that is said beside the thing, and whether a sentence goes on behind it after a comma."""
        told = [phrase for _, phrase in sorted(self._phrases, key=lambda ranked: ranked[0])]
        told = [self._tail, *told]
        notes, reads = [f"{own} {text}" for own, text in self._notes], self._sense.verb.reads
        styles = ["brackets"] if self._sense.names else ["brackets", "commas", "commas"]
        styles += ["with"] * 3 if self._makes or reads else []
        styles += ["where"] * 2 if self._sense.many and reads else []
        style = self._pick(*[style for style in styles if style not in self._unfit])
        if not notes:
            told += [join_items(self._wishes)]
        elif style == "brackets":
            told += [f"({', '.join([*notes, *self._wishes])})"]
        elif style == "commas":
            told += [f", {', '.join([*notes, *self._wishes])}"]
        elif style == "with":
            told += [join_items(self._wishes), f"with {join_items(notes)}"]
        else:
            clauses = [f"the {own} {'are' if is_plural(own) else 'is'} {text}" for own, text in self._notes]
            told += [join_items(self._wishes), f"where {join_items(clauses)}"]
        told += [f", {'; '.join(self._ends)}"] if self._ends else []
        return join_phrases(*told), bool(self._ends or (notes and style == "commas"))

    def _pick(self, *choices: str) -> str:
        return self._rng.choice(choices)

    def _value(self, name: str, value: Any, quote: bool = False) -> str:
        return self._spoken.get(name) or render_value(value, self._rng, quote)

    def _render(self, kind: ArgumentKind, name: str, value: Any, own: str = "") -> str:
        """A value in a form of the table `arguments`. own: its name in words."""
        forms = SENTENCES.arguments[kind]
        spoken = name in self._spoken
        form = forms[0] if spoken else self._rng.choice(forms)
        own = "" if spoken and kind != "as" else own
        return form.replace("{own} ", f"{own} " if own else "").format(text=self._value(name, value), own=own)

    def _adjective(self, rest: dict[str, Any]) -> str:
        """The value of `branch_type` for a tool of branches, before the noun: local branches."""
        own = singular(self._noun[-1]) if self._noun else ""
        for name, value in rest.items():
            parts = meanings(name)
            is_kind = len(parts) > 1 and parts[-1] in WORDS.kinds and parts[-2] == own
            if is_kind and isinstance(value, str) and value.isidentifier() and name not in self._spoken:
                del rest[name]
                return value
        return ""

    def _thing(self, rest: dict[str, Any], adjective: str) -> str:
        """The object of the verb, with the argument that is it. That argument is taken out of `rest`."""
        noun = " ".join([adjective, *self._noun]).strip()
        name = self._object(rest)
        if name is None:
            self._bare = not adjective
            return self._owner_thing(rest) or self._bare_noun(noun, adjective)
        value, self._bare = rest.pop(name), False
        if _has_objects(value):
            items = value if isinstance(value, list) else [value]
            return join_items([self._render_item(item, one_of(noun or label(name))) for item in items])
        last = (meanings(name) or [name])[-1]
        text = self._value(name, value, quote=last == "text" or (self._makes and last in WORDS.texts))
        if name in self._spoken:
            return text
        if not noun:
            kind = " ".join(word for word in label(name).split() if word not in WORDS.names | {"path", "id"})
            told = f"the {kind} {text}" if kind.isascii() and len(kind) > 1 else text
            return self._pick(text, told if last == "id" else text, told)
        if name in WORDS.amounts:  # insert_rows(count)
            return f"{text} {one_of(noun) if value == 1 else noun}"
        if isinstance(value, list):
            return f"the {plural(noun) if len(value) > 1 else one_of(noun)} {text}"
        if self._makes and last in WORDS.names | {"path", "file"}:
            named = f"with the {last}" if last in WORDS.names - {"name"} else self._pick("named", "called")
            return f"{article(noun)} {named} {text}"
        noun = one_of(noun)
        return self._pick(f"{noun} {text}", *([] if isinstance(value, int) else [f"the {noun} {text}"]), *_alone(text))

    def _object(self, rest: Mapping[str, Any]) -> str | None:
        """The argument that names the object of the verb. None: there is none."""
        made = {name for name, value in rest.items() if not isinstance(value, bool) and not self._is_long(name, value)}
        names = [name for name in rest if name in made and (self._makes or not isinstance(rest[name], dict))]
        if not self._noun:
            return self._object_alone(rest, names)
        keys = [name for name in names if self._sense.key and label(name) == self._sense.key]
        counted = self._sense.many and not self._sense.verb.reads
        named = keys or [name for name in names if counted and name in WORDS.amounts]
        named = named or [name for name in names if self._is_named(name, rest)]
        if not named and (self._sense.verb.makes or not self._sense.many):
            own = {*WORDS.names, "id", "number", *({"new_name", "newName"} if self._makes else ())}
            named = [name for name in names if name in own]
        alike = [] if self._sense.verb.sets else names
        same = [name for name in alike if singular(label(name)) == one_of(self._sense.noun)]
        sole = [name for name in names if len(names) == 1 and self._sense.acts and _has_objects(rest[name])]
        return next(iter([*named, *same, *sole]), None)

    def _object_alone(self, rest: Mapping[str, Any], names: Sequence[str]) -> str | None:
        """The same for a verb without a noun: `show(revision)`, `add(files)`, `echo(message)`."""
        containers = [name for name in names if isinstance(rest[name], list | dict)]
        others = [name for name in names if len(names) == 1 or not set(meanings(name)) & WORDS.places]
        skipped = WORDS.search_terms
        if self._sense.acts and not self._sense.verb.makes and self._sense.verb.phrases[0] not in WORDS.text_verbs:
            skipped = skipped | WORDS.texts
        others = [name for name in others if len(name) > 1 and not set(words(name)[-1:]) & skipped]
        return next(iter(containers if len(containers) == 1 else others), None)

    def _becomes(self, name: str, rest: Mapping[str, Any]) -> bool:
        """Whether an argument is what a property becomes: `set_status(item_id, status)`."""
        parts, sets = meanings(name), self._sense.verb.sets and bool(self._noun)
        if parts[-1:] == ["id"] and self._sense.verb.phrases[0] == "set" and len(rest) > 1:  # set_parent(id, parent_id)
            parts = parts[:-1]
        return sets and parts == meanings(self._sense.noun)

    def _is_named(self, name: str, rest: Mapping[str, Any]) -> bool:
        """Whether an argument is the name of what the noun says."""
        nouns, parts, value = self._nouns, meanings(name), rest[name]
        if not parts or self._becomes(name, rest):
            return False
        last = singular(self._noun[-1])
        if parts[0] in nouns:  # create_branch(branch_name), get_item(item_id), delete_entities(entityNames)
            single = parts[0] == last and (not self._sense.many or isinstance(value, list))
            identifies = parts[-1] in ("name", "id", "path", "key") and (not self._sense.names or single)
            if (len(parts) == 1 and parts[0] == last) or identifies:
                return True
        if parts == ["name"] and isinstance(value, list) and not self._sense.verb.makes:
            return True  # open_nodes(names)
        whole = isinstance(value, list) or not is_plural(self._sense.noun)
        path = parts[-1] in ("path", "file", "directory", "name", "url", "uri")
        return whole and path and last in WORDS.path_nouns and not set(words(name)[:1]) & WORDS.goals  # read_file(path)

    def _owner_thing(self, rest: dict[str, Any]) -> str:
        """A noun with the thing that has it, where the noun begins with what that is: `member_loans(member)`. Empty: it
        does not."""
        for name, value in rest.items():
            owner = " ".join(part for part in meanings(name) if part not in ("id", "name"))
            if owner and self._sense.noun.startswith(f"{owner} ") and not isinstance(value, bool | list | dict):
                rest.pop(name)
                noun, text = self._sense.noun.removeprefix(f"{owner} "), self._value(name, value)
                if (
                    text[:1].isupper()
                    and text.replace(" ", "").isalpha()
                    and self._sense.names
                    and not self._sense.many
                ):
                    self._bare = False
                    return f"{text}'s {noun}"
                self._phrases.append((0, self._render("owner", name, value, owner)))
                return f"the {noun}"
        return ""

    def _bare_noun(self, noun: str, adjective: str) -> str:
        """A noun without a value."""
        if not noun or adjective == "all":
            return noun
        if self._makes:
            return noun if is_plural(noun) or noun.split()[-1] in WORDS.mass_nouns else article(noun)
        return f"the {noun}" if self._sense.names or not self._sense.many else self._pick(f"the {noun}", noun)

    def _letters(self, rest: dict[str, Any], least: int) -> str:
        """The values of arguments whose names are letters, as the object: 3 and 4, x 3 and y 4. They are taken out of
        `rest`. Empty: there are not at least so many."""
        letters = [name for name in rest if re.fullmatch("[A-Za-z]", name) and not isinstance(rest[name], bool)]
        letters = [name for name in letters if name not in WORDS.search_terms]
        if len(letters) < least:
            return ""
        first = "".join(sorted(letters)) == "abcdefgh"[: len(letters)]
        self._bare = self._bare and not letters
        told = join_items([f"{'' if first else f'{name} '}{self._value(name, rest.pop(name))}" for name in letters])
        return told if first else f"at {told}"

    def _pairs(self, rest: dict[str, Any]) -> None:
        """Says pairs of an origin and a goal, from A1 to C3, and to what a property is set: `set_status(status)`."""
        pairs = []
        for origin in rest:
            for goal in rest:
                start, end = words(origin), words(goal)
                ways = ((start[:1], start[1:], end[:1], end[1:]), (start[-1:], start[:-1], end[-1:], end[:-1]))
                for first, of_first, last, of_last in ways:
                    if of_first == of_last and set(first) & WORDS.origins and set(last) & WORDS.goals:
                        pairs.append((origin, goal, " ".join(word for word in of_first if word not in ("id", "name"))))
                        break
        for origin, goal, own in pairs:
            if origin in rest and goal in rest:
                own = own if len(pairs) > 1 or self._rng.random() < 0.4 else ""
                self._phrases.append((2, self._render("origin", origin, rest.pop(origin), own)))
                self._phrases.append((3, self._render("goal", goal, rest.pop(goal))))
        for name in list(rest):
            if self._becomes(name, rest):
                self._phrases.append((5, self._render("goal", name, rest.pop(name))))

    def _place(self, rest: Mapping[str, Any]) -> str | None:
        """The argument that says in what something is done: a path, or a place by its name. None: there is none."""
        paths = [name for name in rest if isinstance(rest[name], str) and _PATH.fullmatch(rest[name])]
        named = [name for name in rest if words(name)[-1:] and words(name)[-1] in WORDS.places]
        return next((name for name in paths or named if not _lead(words(name))), None)

    def _place_form(self, rest: Mapping[str, Any], value: Any) -> ArgumentKind:
        """How a place is said: a key of the table `arguments`."""
        alone = len([name for name in rest if not isinstance(rest[name], bool | int | float)]) == 1
        sole_path = alone and _PATH.fullmatch(str(value))
        if self._bare and self._makes and sole_path:
            return "new_path"
        if any(rank == 4 and phrase.startswith(("to ", "from ", "into ")) for rank, phrase in self._phrases):
            return "in"
        if self._sense.verb.removes or self._sense.verb.inward:
            return "out_of" if self._sense.verb.removes else "into"
        return "of_or_in" if sole_path and self._sense.names and not self._sense.many else "in"

    def _render_item(self, item: Mapping[str, Any], noun: str) -> str:
        """An object with its keys: "the entity Ada (type person, observations …)"."""
        rest, named = dict(item), ""
        key = next((key for key in rest if meanings(key)[-1:] == ["name"] and isinstance(rest[key], str)), None)
        if key is not None and meanings(key)[0] in {"name", *meanings(noun)}:
            named = f"{self._pick('named ', 'called ') if self._makes else ''}{render_value(rest.pop(key), self._rng)}"
        inner = _Teller(Sense(self._sense.verb, noun, "", acts=True), self._rng, {})
        inner._pairs(rest)
        for name in rest:
            inner._add_argument(name, rest[name])
        return join_phrases(article(noun) if self._makes else f"the {noun}", named, inner._where()[0])

    def _is_long(self, name: str, value: Any) -> bool:
        """Whether a value is too long for the middle of a sentence."""
        long_text = isinstance(value, str) and (len(value) > LONG_TEXT or "\n" in value)
        return name not in self._spoken and (long_text or _is_nested(value))

    def _add_argument(self, name: str, value: Any) -> None:
        """Adds an argument to what is said."""
        parts = label(name).split() or [name]
        if isinstance(value, bool):
            self._switch(parts, value)
        elif self._is_long(name, value):
            text = f'"{value}"' if isinstance(value, str) and '"' not in value else value
            text = text if isinstance(text, str) else canonical(text)
            self._ends.append(
                f"{self._pick('with these ' if label(name).endswith('s') else 'with this ', '')}{label(name)}: {text}"
            )
        elif _has_objects(value):
            whole = [value] if isinstance(value, dict) else value
            items = [item if isinstance(item, dict) else {"": item} for item in whole]
            told = [
                ", ".join(f"{label(key)} {render_value(part, self._rng)}".strip() for key, part in item.items())
                for item in items
            ]
            self._ends.append(f"{label(name)}: {'; '.join(told)}")
        elif isinstance(value, str | list) or not self._counted(parts, value):
            self._add_phrase(name, parts, value)

    def _counted(self, parts: list[str], value: Any) -> bool:
        """Says a number as people say it. False: nothing special is known of it."""
        number, rest = render_value(value, self._rng), " ".join(parts[1:])
        bound = LEXICON.bounds.get(parts[0], "") if rest else ""
        unit = one_of(parts[-1]) if value == 1 else parts[-1]
        limits = self._sense.verb.reads and set(parts) <= WORDS.limits
        forms = LEXICON.numbers["limit"] if limits else LEXICON.numbers.get(" ".join(parts))
        if forms:
            wish = self._rng.choice(forms).format(number)
            self._wishes.append(re.sub(r"(?<=\b1 )\w+", lambda match: one_of(match[0]), wish) if value == 1 else wish)
        elif is_plural(parts[-1]):  # with at least 3 pages
            self._notes.append((f"{bound} {number}".strip(), " ".join([*(parts[1:-1] if bound else parts[:-1]), unit])))
            self._unfit.add("where")
        elif bound:
            self._notes.append((rest, f"{bound} {number}"))
        return bool(forms or bound or is_plural(parts[-1]))

    def _switch(self, parts: list[str], value: bool) -> None:
        """Adds a truth value."""
        rest = " ".join(parts[1:])
        words_of = LEXICON.switches.get(parts[0], ("", ""))[0 if value else 1]
        if parts[0] in WORDS.prepositions and not words_of:  # in_stock
            words_of = f"{parts[0]} {{}}" if value else f"not {parts[0]} {{}}"
        if words_of and ("{}" in words_of) is bool(rest):
            self._wishes.append(words_of.format(rest))
            return
        own = rest if parts[0] == "is" and rest else " ".join(parts)
        if own == rest or self._rng.random() < 0.5:
            self._notes.append((f"{own}:", "yes" if value else "no"))
        else:
            self._notes.append((own, "on" if value else "off"))
        self._unfit.add("where")

    def _add_phrase(self, name: str, parts: list[str], value: Any) -> None:
        """Adds a text, a list or a number: by its preposition, as a thing of the server, or as a note."""
        lead, rest, spoken, text = _lead(parts), " ".join(parts[1:]), name in self._spoken, self._value(name, value)
        if lead:
            form = self._rng.choice(LEXICON.leads.get(lead, (f"{lead} {{own}} {{text}}",)))
            form = form.replace("{own} ", f"{rest} " if rest and not spoken and self._rng.random() < 0.3 else "")
            self._phrases.append((5, form.format(text=text)))
            return
        if parts[-1] in WORDS.prepositions and parts[-2].endswith("ed"):  # assigned_to, created_after
            self._phrases.append((5, f"{' '.join(parts)} {text}"))
            return
        tail, _, of = self._sense.tail.partition(" ")
        if tail and (of in (parts[-1], " ".join(parts)) if of else not self._phrases):  # members_in(city)
            self._tail = ""
            self._phrases.append((0, f"{tail} {text}"))
            return
        entity = self._entity(parts, value)
        kind = self._form(parts, value) or self._thing_form(entity, spoken)
        if kind is not None:
            own = entity or (rest if kind in ("start", "end", "without_noun") else " ".join(parts))
            short = kind == "start" or (kind == "owner" and parts[-1] == "id" and self._sense.names and _alone(text))
            own = "" if (short and self._rng.random() < 0.5) or (kind == "in" and not entity) else own
            self._phrases.append((1 if kind in ("query", "pattern") else 4, self._render(kind, name, value, own)))
            return
        own = entity or " ".join(parts[1:] if len(parts) > 1 and singular(parts[0]) in self._nouns else parts)
        text = self._value(name, value, quote=parts[-1] in WORDS.texts)
        self._unfit |= {"with"} if entity else {"with", "where"} if parts[-1] in WORDS.prepositions else set()
        self._notes.append((own, text))

    def _thing_form(self, entity: str, spoken: bool) -> ArgumentKind | None:
        """How an argument is said that names a thing of the server, or is described. None: as a note."""
        verb = self._sense.verb
        if not entity or any(rank == 4 for rank, _ in self._phrases):
            return "as" if spoken else None
        if verb.removes or verb.inward:
            return "out_of" if verb.removes else "into"
        if verb.reads and any(rank == 1 for rank, _ in self._phrases):
            return "in"
        return "owner" if verb.reads or self._bare else "other" if spoken else None

    def _entity(self, parts: list[str], value: Any) -> str:
        """The thing that an argument names: item for `item_id`, sheet where a tool lists sheets. Empty: none."""
        known = parts[-1] in ("id", "ids", "name", "names") and len(parts) > 1
        own = " ".join(parts[:-1]) if known else " ".join(parts)
        own_noun = one_of(own) == one_of(self._sense.noun)
        if own_noun or parts[0] in WORDS.origins | WORDS.goals or not (known or one_of(own) in self._sense.things):
            return ""
        return one_of(own) if not isinstance(value, list) else plural(own) if known else ""

    def _form(self, parts: list[str], value: Any) -> ArgumentKind | None:
        """How an argument is said whose name says it: a key of the table `arguments`. None: it is not one of these."""
        last = singular(parts[-1])
        if parts[0] in WORDS.negations and len(parts) > 1:
            return "without" if set(parts[1:]) <= WORDS.search_terms | {"patterns", "contains"} else "without_noun"
        if last in WORDS.search_terms and len(parts) <= 2:
            return "query" if last in ("query", "q", "term", "search", "keyword", "phrase") else "pattern"
        if parts[0] in ("start", "begin", "end") and len(parts) <= 2:
            return "end" if parts[0] == "end" else "start"
        if parts in (["time"], ["hour"], ["date"], ["day"]):
            return "time" if last in ("time", "hour") else "date"
        if last in WORDS.places and isinstance(value, str) and len(parts) == 1 and not _PATH.fullmatch(value):
            return "in"
        if last in WORDS.texts and self._sense.acts and isinstance(value, str) and not self._noun:
            return "text"
        return None


def _lead(parts: Sequence[str]) -> str:
    """The preposition with which the name of a parameter begins. Empty: there is none."""
    known = parts and parts[0] in WORDS.prepositions | LEXICON.leads.keys()
    return parts[0] if known and len(parts) <= 3 else ""


def _alone(text: str) -> list[str]:
    """A value that is seen to be one without its noun, a path, or a name with digits. Empty: it is not."""
    marked = not text.isdigit() and re.search(r"[/._@\"'`“0-9-]", text)
    return [text] if marked else []


def _is_nested(value: Any, depth: int = 0) -> bool:
    """Whether a value has lists in lists, or objects in objects."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return depth > 2 or any(
        type(item) is type(value) or _is_nested(item, depth + 1) for item in inside if isinstance(item, dict | list)
    )


def _has_objects(value: Any) -> bool:
    """Whether an argument is an object, or a list of objects."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value))
