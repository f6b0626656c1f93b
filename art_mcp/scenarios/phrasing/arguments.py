"""Arguments of a call in words: "the branch login", "in /world/site", "named Ada", "at most 5"."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.client.effects import words
from art_mcp.scenarios.observe import leaves, meanings, singular
from art_mcp.scenarios.phrasing.english import article, is_plural, join_items, one_of, plural
from art_mcp.scenarios.phrasing.language import LEXICON, SENTENCES, WORDS, ArgumentKind
from art_mcp.scenarios.phrasing.sense import Sense

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


@dataclass(slots=True)
class RenderedCall:
    """A call in words.

    Args:
        thing: What is done something to, with its article: "the branch login". Empty: the verb has no object.
        phrases: What else is said of it, in order: "in /world/site".
        wishes: Further wishes, which can also be sentences of their own: "at most 5".
    """

    thing: str = ""
    phrases: list[str] = field(default_factory=list)
    wishes: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        """All that is said beside the thing."""
        return " ".join([*self.phrases, *([join_items(self.wishes)] if self.wishes else [])])

    @property
    def whole(self) -> str:
        """The thing with all that is said of it."""
        return " ".join(part for part in (self.thing, self.where) if part)


def label(name: str, schema: Mapping[str, Any] | None = None) -> str:
    """The name of a parameter as words."""
    title = str((schema or {}).get("title") or "")
    source = title if title and len(title.split()) <= 3 and words(title) == words(name) else name
    return " ".join(words(source)) or name


def render_arguments(
    sense: Sense,
    schema: Mapping[str, Any],
    arguments: Mapping[str, Any],
    rng: random.Random,
    wordings: Mapping[str, str] | None = None,
) -> RenderedCall:
    """Puts the arguments of a call into words.

    Args:
        sense: What the tool does.
        schema: JSON schema of its arguments.
        arguments: The arguments.
        rng: Chooses among ways to say it.
        wordings: Words for arguments that are described instead of told: "the first branch".
    """
    descriptions = dict(wordings or {})
    whole = {name: descriptions.get(name, value) for name, value in arguments.items()}
    return _Teller(sense, dict(schema.get("properties") or {}), rng, descriptions).render(whole)


class _Teller:
    """Puts the arguments of one call into words."""

    def __init__(self, sense: Sense, properties: dict[str, Any], rng: random.Random, wordings: dict[str, str]) -> None:
        self._sense = sense
        self._properties = properties
        self._rng = rng
        self._spoken = wordings
        self._noun = sense.noun.split()
        self._alone = False

    def render(self, arguments: Mapping[str, Any]) -> RenderedCall:
        rest = dict(arguments)
        out = RenderedCall()
        adjective = self._adjective(rest)
        out.thing = self._thing(rest, adjective)
        if self._sense.tail:
            out.phrases.append(self._sense.tail)
        bare = [name for name in rest if len(name) == 1 and not isinstance(rest[name], bool)]
        if bare and (len(bare) > 1 or not out.thing):
            values = join_items([self._value(name, rest.pop(name)) for name in bare])
            if out.thing:
                out.phrases.append(f"{'of' if self._sense.names else self._pick('of', 'for')} {values}")
            else:
                out.thing = values
        self._alone = len([name for name in rest if not isinstance(rest[name], bool | int)]) == 1
        for name in sorted(rest, key=lambda name: self._rank(name, rest[name])):
            self._add_argument(name, rest[name], out)
        return out

    def _pick(self, *choices: str) -> str:
        return self._rng.choice(choices)

    def _value(self, name: str, value: Any, quote: bool = False) -> str:
        return self._spoken.get(name) or render_value(value, self._rng, quote)

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
            return noun if adjective == "all" else self._bare_noun(noun)
        value = rest.pop(name)
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            items = self._properties.get(name, {}).get("items", {})
            return join_items([self._render_item(item, items, noun or singular(label(name))) for item in value])
        if isinstance(value, dict):
            return self._render_item(value, self._properties.get(name, {}), noun or label(name))
        text = self._value(name, value)
        if name in self._spoken:
            return text
        if not noun:
            kind = label(name, self._properties.get(name))
            kind = " ".join(word for word in kind.split() if word not in ("path", "name", "id")) or kind
            plain = [text, text, f"the {kind} {text}"]
            return self._rng.choice(plain if kind.isascii() and len(kind) > 1 else plain[:2])
        if isinstance(value, list):
            return f"the {plural(noun) if len(value) > 1 else one_of(noun)} {text}"
        if self._sense.verb.makes and not set(WORDS.texts) & set(meanings(name)[-1:]):
            return f"{article(noun)} {self._pick('named', 'called', 'with the name')} {text}"
        if self._sense.verb.makes:
            return f"the {noun} {self._value(name, value, quote=True)}"
        return self._pick(
            f"the {noun} {text}", f"the {noun} {text}", f"{text}" if _marked(text) else f"the {noun} {text}"
        )

    def _object(self, rest: Mapping[str, Any]) -> str | None:
        """The argument that names the object of the verb. None: there is none."""
        names = [name for name in rest if not isinstance(rest[name], bool)]
        if not self._noun:
            return self._object_alone(rest, names)
        for name in names:
            if self._is_named(name, rest[name]):
                return name
        if self._sense.verb.makes and "name" in names:
            return "name"
        containers = [name for name in names if isinstance(rest[name], list | dict)]
        objects = len(containers) == 1 and _has_objects(rest[containers[0]])
        return containers[0] if objects else None

    def _object_alone(self, rest: Mapping[str, Any], names: Sequence[str]) -> str | None:
        """The same for a verb without a noun: `show(revision)`, `add(files)`, `echo(message)`."""
        containers = [name for name in names if isinstance(rest[name], list | dict)]
        if len(containers) == 1:
            return containers[0]
        others = [name for name in names if not set(meanings(name)) & WORDS.places or len(names) == 1]
        if self._sense.acts and not self._sense.verb.makes and self._sense.verb.phrases[0] not in WORDS.text_verbs:
            others = [name for name in others if not set(words(name)[-1:]) & WORDS.texts]
        return others[0] if others else None

    def _is_named(self, name: str, value: Any) -> bool:
        """Whether an argument is the name of what the noun says."""
        nouns, parts = {singular(word) for word in self._noun}, meanings(name)
        if not parts:
            return False
        last = singular(self._noun[-1])
        if parts[0] in nouns:  # create_branch(branch_name), get_item(item_id), delete_entities(entityNames)
            identifies = parts[-1] in ("name", "id", "path", "key") and (not self._sense.verb.names or parts[0] == last)
            if len(parts) == 1 or identifies:
                return True
        if parts == ["name"] and isinstance(value, list) and not self._sense.verb.makes:
            return True  # open_nodes(names)
        whole = isinstance(value, list) or not is_plural(self._sense.noun)
        path = (
            parts[-1] in ("path", "file", "directory", "name", "url", "uri") and not set(words(name)[:1]) & WORDS.goals
        )
        return whole and path and last in WORDS.path_nouns  # read_file(path)

    def _bare_noun(self, noun: str) -> str:
        """A noun without a value."""
        if not noun:
            return ""
        if self._sense.verb.makes:
            return noun if noun.endswith("s") else article(noun)
        return f"the {noun}"

    def _render_item(self, item: Mapping[str, Any], schema: Mapping[str, Any], noun: str) -> str:
        """An object with its keys: "the entity Ada of the type person with the observations …"."""
        properties = dict(schema.get("properties") or {})
        rest = dict(item)
        key = next((key for key in rest if meanings(key)[-1:] == ["name"] and isinstance(rest[key], str)), None)
        noun = one_of(noun)
        head = article(noun) if self._sense.verb.makes else f"the {noun}"
        parts = []
        if key is not None and meanings(key)[0] in {"name", *meanings(noun)}:
            parts.append(
                f"{self._pick('named', 'called')} {render_value(rest.pop(key), self._rng)}"
                if self._sense.verb.makes
                else render_value(rest.pop(key), self._rng)
            )
        elif key is not None:
            whose = f"{' '.join(meanings(key)[:-1])} {render_value(rest.pop(key), self._rng)}"
            parts.append(f"{self._pick('for', 'of')} the {whose}".replace("  ", " "))
        inner = _Teller(self._sense, properties, self._rng, {})
        more = RenderedCall()
        for name in sorted(rest, key=lambda name: inner._rank(name, rest[name])):
            inner._add_argument(name, rest[name], more)
        return " ".join([head, *parts, *more.phrases, *more.wishes])

    def _rank(self, name: str, value: Any) -> int:
        """Where an argument stands in the sentence: origins, goals, names, other things, places, wishes."""
        first, last = words(name)[:1], words(name)[-1:]
        if isinstance(value, bool) or (last[:1] and (last[0] in WORDS.limits or last[0] in LEXICON.numbers)):
            return 9
        if first and first[0] in WORDS.origins:
            return 2
        if first and first[0] in WORDS.goals:
            return 3
        if last and last[0] in WORDS.search_terms:
            return 1
        return 6 if last and last[0] in WORDS.places else 4

    def _add_argument(self, name: str, value: Any, out: RenderedCall) -> None:
        """Adds an argument to what is said."""
        parts = words(name) or [name]
        own, schema = label(name, self._properties.get(name)), self._properties.get(name, {})
        if name in self._spoken:
            out.phrases.append(self._phrase(name, parts, own, value, self._spoken[name]))
            return
        if isinstance(value, bool):
            out.wishes.append(self._switch(parts, own, value))
            return
        if _has_objects(value):
            items = value if isinstance(value, list) else [value]
            inner = schema.get("items", schema) if isinstance(value, list) else schema
            out.phrases.append(f"with {join_items([self._render_item(item, inner, singular(own)) for item in items])}")
            return
        if not isinstance(value, str | list) and self._counted(parts, value, out):
            return
        text = self._value(name, value, quote=parts[-1] in WORDS.texts)
        out.phrases.append(self._phrase(name, parts, own, value, text))

    def _counted(self, parts: list[str], value: Any, out: RenderedCall) -> bool:
        """Says a number as people say it. False: nothing special is known of it."""
        forms = LEXICON.numbers.get(parts[-1]) if len(parts) == 1 else None
        if forms is None and set(parts) & WORDS.limits:
            forms = LEXICON.numbers["limit"]
        if forms is None and is_plural(parts[-1]):
            forms = (f"with {{}} {' '.join(parts)}",)
        if not forms:
            return False
        wish = self._rng.choice(forms).format(render_value(value, self._rng))
        if value == 1:
            wish = re.sub(r"(?<=\b1 )(\w+ )*(\w+)", lambda match: one_of(match[0]), wish)
        out.wishes.append(wish)
        return True

    def _switch(self, parts: list[str], own: str, value: bool) -> str:
        """A truth value as a wish."""
        rest = " ".join(parts[1:])
        if parts[0] in (LEXICON.switches if value else LEXICON.off):
            words_of = LEXICON.switches[parts[0]] if value else LEXICON.off[parts[0]]
            if rest and words_of.endswith(("ing", "with", "without")):
                return f"{words_of} {rest}"
            if not rest or parts[0] not in LEXICON.off:
                return words_of if value else f"with {own} off"
        return self._pick(f"with {own} switched {'on' if value else 'off'}", f"with {own} set to {str(value).lower()}")

    def _phrase(self, name: str, parts: list[str], own: str, value: Any, text: str) -> str:
        """An argument as a phrase behind the object."""
        forms = SENTENCES.arguments[self._form(name, parts, value)]
        if "{rest}" in forms[-1] and not parts[1:]:  # `from` alone: there is no word for what goes out
            forms = tuple(form.replace("the {rest} ", "") for form in forms)
        form = forms[0] if len(forms) == 1 else self._rng.choice(forms)
        owner = " ".join(parts[:-1]) or own
        return form.format(text=text, own=own, owner=owner, rest=" ".join(parts[1:]))

    def _form(self, name: str, parts: list[str], value: Any) -> ArgumentKind:
        """How an argument is said, by the words of its name: a key of the table `arguments`."""
        last, meaning, verb = singular(parts[-1]), meanings(name), self._sense.verb
        if name in self._spoken and meaning[-1:] and meaning[-1] in ("id", "name", "key"):
            return "of"
        if parts[0] in WORDS.negations and len(parts) > 1:
            return "without" if set(parts[1:]) <= WORDS.search_terms | {"patterns", "contains"} else "without_noun"
        if parts == ["contains"]:
            return "content"
        if last in WORDS.search_terms:
            return "query" if last in ("query", "q", "term", "search", "keyword", "phrase") else "pattern"
        if len(parts) <= 2 and parts[0] in WORDS.origins | WORDS.goals:
            return "origin" if parts[0] in WORDS.origins else "goal"
        if last in ("time", "hour", "date", "day"):
            return "time" if last in ("time", "hour") else "date"
        if last in WORDS.places:
            return self._place_form(last)
        if last in WORDS.texts:
            return "text"
        if last in WORDS.kinds or "enum" in self._properties.get(name, {}):
            return "kind"
        if meaning[-1:] == ["id"] and self._sense.names:
            return "id"
        if last in WORDS.names:
            if len(parts) == 1 or set(meaning[:-1]) & {singular(word) for word in self._noun}:
                return "new_name" if verb.makes else "of"
            return "other_name"
        return "list" if isinstance(value, list) else "other"

    def _place_form(self, last: str) -> ArgumentKind:
        """The same for a place, by the last word of its name."""
        if last in ("path", "dir", "directory", "folder", "file") and self._sense.verb.makes:
            return "new_path" if last in ("path", "file") else "in"
        if not self._sense.names or self._sense.many or last not in ("path", "file", "repo", "repository"):
            return "in"
        if last in ("path", "file"):
            return "of"
        return "of_or_in" if self._alone else "in"


def _marked(text: str) -> bool:
    """Whether a value is seen to be one without its noun: a path, a name with digits."""
    return any(mark in text for mark in "/._-@\"'`“") or any(digit.isdigit() for digit in text)


def _has_objects(value: Any) -> bool:
    """Whether an argument is an object, or a list of objects."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value))
