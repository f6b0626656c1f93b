"""What can be asked about a result, so that the answer is a short value: a leaf, a number of entries, the first one."""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from email.utils import parseaddr
from typing import Any, Literal

from art_mcp.canonical import canonical
from art_mcp.client.effects import words
from art_mcp.scenarios.lines import Line, lines
from art_mcp.scenarios.observe import Path, at, changes_with_time, is_local, leaves, tokens
from art_mcp.scenarios.phrasing.english import is_participle, is_plural, one_of, plural
from art_mcp.scenarios.phrasing.language import LEXICON, UNITS, WORDS

SHORT = 40
"""Characters of a fact, at most: a small model copies it without an error."""

LONG = 64
"""Characters of a value that changes with time, at most: its clock alone is a right answer."""

QuestionKind = Literal["value", "leaf", "count", "first", "last", "contains"]

WEIGHTS: dict[QuestionKind, int] = {"value": 4, "leaf": 4, "count": 1, "first": 1, "last": 1, "contains": 1}
"""How often each is asked. People ask for what has a name, and seldom for the last of a list."""

MAX_COUNT = 12
"""Entries that are asked to be counted, at most."""

MAX_NAMES = 4
"""Entries of a result that are asked about by their names, at most."""

_NAME = re.compile(r"[./@-]*\w[\w./@-]*(?: [./@-]*\w[\w./@-]*){0,2}")
"""A value that people would look for in a list."""

_IDENTIFYING = ("name", "title", "id", "key", "code", "label", "path", "message", "subject", "summary")
"""Last words of keys that tell entries of a list apart, the best first."""

_INLINE = re.compile(r"\b([A-Z][a-z]+(?: [a-z]+)?): (\w[\w.]*\w|\w)(?=[,.;]? |[,.;]?$)")
"""Keys and values in a sentence: Steps: 5."""

_ASSIGNMENT = re.compile(r"\+?\s*(?:export\s+)?([A-Za-z_][\w.-]{0,40})\s*=\s*([^\s=].*?)\s*")
"""A line that gives a name a value, as in settings and programs. One that a diff removes is none."""

_NUMBER_OR_HASH = re.compile(r"[0-9a-f]{6,64}|#?\d+")
"""A number or a hash, by which entries are known but not called."""

_SPEAKABLE = re.compile(r"[A-Za-z]+(?:[ _-][A-Za-z]+){0,2}")
"""A key that is made of words: no path, no number, no code."""

_UNNAMED = WORDS.prepositions | {"is", "has", "can"}
"""Words that no key has that is a noun."""

_MOMENTS = {
    "date": re.compile(r"\d{4}-\d\d-\d\d"),
    "time": re.compile(r"(?:\d{4}-\d\d-\d\d[T ])?\d\d?:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?"),
}
"""Values that people name by what happened then: the date created."""

_VAGUE = re.compile(r"the result|the (?:first|last) (?:entry|line)|entries|lines|message")
"""What is asked for where nothing has a name, unless it is something to read."""

_NO_ENTRIES = WORDS.containers | WORDS.path_nouns | WORDS.mass_nouns | {"result"}
"""Nouns of results that are no nouns of their entries."""

_PLACEHOLDER = re.compile(r"\[[^\[\]]*\]")
"""What stands for a picture or a link."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a result.

    Args:
        kind: What is asked.
        head: What is asked for, as a noun phrase: "the author", "the first line". Empty: the result itself.
        value: The right answer as text, as the result has it.
        items: The noun of the entries, in the plural, where they are counted or looked through.
        item: The entry that is looked for.
        path: Where the value is in the result, if it is another one in each run.
    """

    kind: QuestionKind
    head: str
    value: str
    items: str = ""
    item: str = ""
    path: Path | None = None

    @property
    def facts(self) -> list[str]:
        """What the answer must mention. Empty: what the run's own result has at `path`."""
        return [] if self.path is not None else [self.value]

    @property
    def key(self) -> tuple[str, str, str]:
        """The same for questions of other results that ask for the same."""
        return self.kind, self.head if self.kind in ("leaf", "first", "last") else "", self.items


def questions(
    first: Any, second: Any, *, noun: str, many: bool, argument_values: Sequence[Any], rng: random.Random
) -> list[Question]:
    """Everything that can be asked about a result.

    A value that the two executions gave differently, and a date, is asked for as it is in the run itself.

    Args:
        first: The result of the first execution, as `parse_result` returns it.
        second: The result of the second execution.
        noun: What the call gives, as a noun: "log", "tables".
        many: Whether the noun is a plural.
        argument_values: Values of the arguments. What the task says already is not asked for.
        rng: Chooses entries.
    """
    stated_texts = {text_of(value).casefold() for value in argument_values}
    finder = TextFinder if isinstance(first, str) else StructuredFinder
    unique: dict[tuple[str, str, str], Question] = {}
    for question in finder(first, second, noun, many, stated_texts, rng).find():
        if question.path is not None:
            usable = len(question.value) <= LONG and question.value.casefold() not in stated_texts
        else:
            usable = _fit(question.value, stated_texts, question.kind)
        if usable:
            unique.setdefault((question.kind, question.head or question.items, question.item), question)
    every = list(unique.values())
    exact = [question for question in every if not _VAGUE.fullmatch(question.head or question.items)]
    return every if is_readable(noun) and not many else exact or every


def _fit(value: str, stated_texts: set[str], kind: QuestionKind) -> bool:
    """Whether a value can be a fact. A heading, as of a list that is empty, is none."""
    if kind in ("count", "contains"):
        return True
    bare = value.strip()
    if not 0 < len(bare) <= SHORT or "\n" in bare or bare.endswith(":"):
        return False
    return not any(bare.casefold() in text for text in stated_texts)


def identifying(entries: Sequence[Any]) -> str | None:
    """The key whose values tell the entries of a list apart, in words that can be said. None: there is none."""
    keys = entries[0] if len(entries) > 1 and all(isinstance(entry, dict) for entry in entries) else {}
    fitting = []
    for key in keys:
        values, last = [entry.get(key) for entry in entries], "".join(words(name_of(key))[-1:])
        usable = all(isinstance(value, str) and 1 < len(value) <= SHORT and "\n" not in value for value in values)
        if last in _IDENTIFYING and usable and len({value.casefold() for value in values}) == len(values):
            fitting.append((_IDENTIFYING.index(last), key))
    return min(fitting)[1] if fitting else None


def scalars(entries: Sequence[Any], number: int) -> Iterator[tuple[str, Any]]:
    """The values of an entry that are neither lists nor objects, nor empty, by their keys.

    Numbers that are 0 or 1 in all of several entries say yes or no, and are left out.
    """
    for key, leaf in entries[number].items():
        is_flag = leaf in (0, 1) and len(entries) > 1 and all(entry.get(key) in (0, 1) for entry in entries)
        if isinstance(leaf, str | int | float) and not (isinstance(leaf, bool) or is_flag) and leaf != "":
            yield str(key), leaf


def find_part(value: Any, path: Path) -> Any:
    """The part of a value at a path. None: nothing is there."""
    try:
        return at(value, path)
    except (LookupError, TypeError):
        return None


def name_of(key: Any) -> str:
    """A key as a noun. Empty: no person would call it so, as it is a path, a letter, an abbreviation, or no noun."""
    parts = words(key) if isinstance(key, str) and _SPEAKABLE.fullmatch(key) else []
    spoken = all(len(word) > 1 and re.search("[aeiouy]", word) for word in parts) and 0 < len(parts) <= 3
    if not spoken or set(parts) & _UNNAMED or is_participle(parts[-1]) or parts[-1][1:] == "id":
        return ""
    parts = [LEXICON.abbreviations.get(part, part) for part in parts]
    return f"{' '.join(parts[:-1])} in {parts[-1]}" if is_measured(parts) else " ".join(parts)


def is_measured(parts: Sequence[str]) -> bool:
    """Whether the last word of a key says what its number is measured in: delay_minutes."""
    return len(parts) > 1 and parts[-1] in UNITS and "percent" not in parts[-1]


def number_of(name: str, value: Any) -> str:
    """The name of a value. That of a number of things says so: the number of connections."""
    return f"number of {name.removeprefix('total ')}" if is_plural(name) and text_of(value).isdecimal() else name


def moment_of(key: Any, value: Any) -> str:
    """A participle that is the key of a date or a time, as a noun: "time it was shown". Empty: it is none."""
    parts = words(key) if isinstance(key, str) else []
    moment = next((noun for noun, form in _MOMENTS.items() if form.fullmatch(text_of(value))), "")
    verb = "is" if parts == ["due"] else "was"
    return f"{moment} it {verb} {parts[0]}" if moment and len(parts) == 1 and is_participle(parts[0]) else ""


def is_readable(noun: str) -> bool:
    """Whether what a noun names has lines that people read."""
    return one_of(noun.rpartition(" ")[2]) in WORDS.readable


def is_moment(value: Any) -> bool:
    """Whether a value is a date or a time."""
    return any(form.fullmatch(text_of(value)) for form in _MOMENTS.values())


def text_of(value: Any) -> str:
    """A value as text."""
    return value.strip() if isinstance(value, str) else canonical(value)


@dataclass(slots=True)
class Finder(ABC):
    """Finds the questions about one result. It has the arguments of `questions`, and the texts that the task has."""

    first: Any
    second: Any
    noun: str
    many: bool
    task_texts: set[str]
    rng: random.Random

    @abstractmethod
    def find(self) -> Iterator[Question]:
        """Everything that can be asked."""

    def _of_values(self, values: Sequence[str], item: str, whole: bool = True, under: str = "") -> Iterator[Question]:
        """Questions about a list of texts. whole: they are all of the result; under: which of the items they are."""
        items = plural(item) + under
        if whole and 1 < len(values) <= MAX_COUNT and item != "line":
            yield Question("count", "", str(len(values)), items=items)
        ends: tuple[tuple[QuestionKind, str], ...] = (("first", values[0]), ("last", values[-1]))
        for kind, value in ends:
            if len(re.findall(r"\w", value)) > 2:
                yield Question(kind, f"the {kind} {item}{under}", value, items=items)
        short = [value for value in values if _NAME.fullmatch(value) and values.count(value) == 1]
        if len(short) > 2 and whole and item != "line":
            yield Question("contains", "", "yes", items=items, item=self.rng.choice(short))

    def _by_name(
        self, entries: Sequence[dict[str, Any]], later: Any, item: str, where: Callable[[int, str], Path]
    ) -> Iterator[Question]:
        """Questions about entries that their names tell apart: "the price of lamp".

        Args:
            entries: The entries.
            later: Those of the second execution, as many.
            item: Their noun in the singular.
            where: Where the result has a value of an entry, by its number and the value's key.
        """
        if (key := identifying(entries)) is None:
            return
        for number in self.rng.sample(range(len(entries)), min(len(entries), MAX_NAMES)):
            entry = entries[number]
            who = f'"{entry[key]}"' if " " in entry[key] and words(key)[-1] != "name" else entry[key]
            if words(key)[-1] == "id" and item != "entry":
                who = f"{item} {who}" if who.isdigit() else f"the {item} {who}"
            elif words(key)[-1] not in ("name", "title", item):
                who = f"the {item} with the {name_of(key)} {who}"
            elif item != "entry":
                who = f"the {item} {who}"
            for other, leaf in scalars(entries, number):
                name = number_of(name_of(other), leaf).removeprefix(f"{item} ")  # not "the entity type of the entity"
                if other != key and name not in ("", item):
                    same = canonical(leaf) == canonical(find_part(later, (number, other)))
                    yield self._leaf(f"the {name} of {who}", text_of(leaf), same, where(number, other))

    def _leaf(self, head: str, value: str, stable: bool, path: Path, kind: QuestionKind = "leaf") -> Question:
        """A question for a value. stable: both executions gave it."""
        if not stable or changes_with_time(value) or is_local(value):
            return Question(kind if head else "value", head, value, path=path)
        name, address = parseaddr(value)
        person = name and value.endswith(f"<{address}>")  # who asks for an author wants no address
        return Question(kind if head else "value", head, name if person else value)


class StructuredFinder(Finder):
    """Finds the questions about structured content."""

    def find(self) -> Iterator[Question]:
        """Questions about its leaves and its lists, or about all of a single value."""
        candidates = list(self._leaves())
        for path, entries in _lists(self.first):
            other = find_part(self.second, path)
            if isinstance(other, list | tuple) and len(other) == len(entries):
                candidates += self._of_list(path, list(entries))
        if not candidates and len(pairs := list(leaves(self.first))) == 1:  # its key cannot be said, but need not be
            candidates.append(self._at(pairs[0][0], "", text_of(pairs[0][1])))
        yield from candidates

    def _at(self, path: Path, head: str, value: str, kind: QuestionKind = "leaf") -> Question:
        """A question for the value at a path."""
        same = canonical(find_part(self.first, path)) == canonical(find_part(self.second, path))
        return self._leaf(head, value, same, path, kind)

    def _leaves(self) -> Iterator[Question]:
        """Questions for values by their keys."""
        pairs = [(path, leaf) for path, leaf in leaves(self.first) if path and not isinstance(leaf, bool)]
        ends, twos = (Counter(path[-length:] for path, _ in pairs) for length in (1, 2))
        for path, leaf in pairs:
            *parents, name = map(name_of, path)
            name = name or moment_of(path[-1], leaf)
            # Under a plural stand entries, whose keys are values: {"pages": {"home": 3}}.
            if not name or not all(isinstance(key, str) for key in path) or any(map(is_plural, parents)):
                continue
            beside = set(words(str(path[-2]))[-1:]) if len(path) > 1 else set()
            if beside & WORDS.origins and is_moment(leaf):
                continue  # nobody asks for what goes in
            if name in WORDS.outcomes or (beside & WORDS.goals and is_moment(leaf)):
                yield self._at(path, "", text_of(leaf))
            elif ends[path[-1:]] == 1:
                question = self._at(path, f"the {name}", text_of(leaf))
                items = self.noun if self.many and name in ("count", "total", "total count") else name
                if isinstance(leaf, int) and is_plural(items) and question.path is None:
                    question = replace(question, kind="count", items=items.removeprefix("total "))
                yield question
            elif parents and parents[-1] and twos[path[-2:]] == 1:
                many = is_plural(name) or is_measured(words(str(path[-1])))
                swap = many and isinstance(leaf, int | float)  # the median of the seats
                whole, part = (parents[-1], name) if swap else (name, parents[-1])
                yield self._at(path, f"the {whole} of the {part}", text_of(leaf))

    def _of_list(self, path: Path, entries: Sequence[Any]) -> Iterator[Question]:
        """Questions about a list. A key that is no plural says which entries these are: "the first task under done"."""
        item, under = one_of(self.noun) if self.many else "entry", ""
        if path and isinstance(path[-1], str) and _SPEAKABLE.fullmatch(path[-1]):
            name = name_of(path[-1])
            item = one_of(name) if is_plural(name) else item
            if not is_plural(name) and path[-1].casefold() not in WORDS.outcomes | self.task_texts:
                under = f" under {path[-1].replace('_', ' ')}"
        if entries and all(isinstance(entry, str | int | float) for entry in entries):
            yield from self._of_values([text_of(entry) for entry in entries], item, under=under)
            return
        if not entries or not all(isinstance(entry, dict) for entry in entries):
            return
        if 1 < len(entries) <= MAX_COUNT:
            yield Question("count", "", str(len(entries)), items=plural(item) + under)
        ends: tuple[tuple[int, QuestionKind], ...] = ((0, "first"), (len(entries) - 1, "last"))
        for number, place in ends[: len(entries)]:
            for key, leaf in scalars(entries, number):
                name, kind, which = number_of(name_of(key), leaf).removeprefix(f"{item} "), place, f"the {place} {item}"
                begins = item == "entry" and key == next(iter(entries[number])) and name[-4:] != "name"
                head = f"the {name} of {which}"
                if len(entries) == 1 and item == "entry":
                    kind, head = "leaf", f"the {name}"
                elif name == item or begins:  # the entry is a column, and has no column
                    head = f"the {place} {name}"
                if name:
                    yield self._at((*path, number, key), head + under, text_of(leaf), kind)
        if not under:
            later = find_part(self.second, path)
            yield from self._by_name(entries, later, item, lambda number, key: (*path, number, key))


def _lists(value: Any, path: Path = ()) -> Iterator[tuple[Path, Sequence[Any]]]:
    """The lists in a value that are reached by keys alone, with their paths."""
    if isinstance(value, list | tuple):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _lists(item, (*path, str(key)))


class TextFinder(Finder):
    """Finds the questions about a text."""

    def find(self) -> Iterator[Question]:
        """Questions about its keys, its lines, or all of a short one."""
        text = self.first
        text_lines = [line for line in lines(text) if not _PLACEHOLDER.fullmatch(line.value)]
        stable = text == self.second
        if len(text_lines) == 1:
            yield from self._of_line(text_lines[0], stable)
            return
        keys = Counter(line.key for line in text_lines if line.key and not line.tagged)
        later = lines(self.second) if isinstance(self.second, str) else []
        records, others = _records(text_lines), _records(later)
        entry = _entry_noun(records) or (one_of(self.noun) if self.many else "entry")
        for key, count in keys.items():
            values, again = ([line.value for line in every if line.key == key] for every in (text_lines, later))
            name = name_of(key)
            if not 0 < len(name.split()) <= 2:
                continue
            if len(set(values)) == 1:
                number = is_readable(self.noun) and not self.many and re.fullmatch(r"[\d.]+", values[0])
                head = f"the value for {name}" if number else f"the {name}"
                yield self._leaf(head, values[0], again[:1] == values[:1], (key, 0))
            elif len(again) == count:
                name = number_of(name, values[0])
                head = "the {} " + (entry if name != entry and (records or is_plural(name) or " of " in name) else name)
                head = head if head.endswith(name) else f"the {name} of {head}"
                yield self._leaf(head.format("first"), values[0], again[0] == values[0], (key, 0), "first")
                yield self._leaf(head.format("last"), values[-1], again[-1] == values[-1], (key, count - 1), "last")
        if len(records) == len(others):
            yield from self._by_name(records, others, entry, lambda number, key: (key, number))
        if stable:
            yield from self._of_assignments(text_lines)
            bare = [line for line in text_lines if (not line.key or line.tagged) and not line.value.endswith(":")]
            yield from self._of_lines(bare, all_of_them=not keys)

    def _of_line(self, line: Line, stable: bool) -> Iterator[Question]:
        """Questions about a text of one line."""
        bare, key = line.value, line.key
        whole = f"{key}: {bare}" if key else bare
        if not stable:
            if isinstance(self.second, str) and changes_with_time(bare):
                yield Question("value", "", bare, path=())
            return
        if key and bare.casefold() not in self.task_texts:
            says = key.casefold() not in {*self.noun.split(), *self.task_texts} and name_of(key)
            yield self._leaf(f"the {says}" if says else "", bare, stable, (key, 0))  # "Debug: …" for a type debug
            return
        pairs = _INLINE.findall(bare)
        for name, value in pairs:
            if name_of(name):
                yield self._leaf(f"the {name_of(name)}", value, not changes_with_time(value), ())
        stated = any(stated and stated in whole.casefold() for stated in self.task_texts)
        new = [token for token in tokens(bare) if token.casefold() not in self.task_texts and len(token) <= SHORT]
        fact = new[0] if len(new) == 1 and stated else whole if len(whole) <= SHORT else ""
        fact = fact or (new[0] if len(new) == 1 and not pairs else "")
        if fact and not changes_with_time(fact):
            yield Question("value", "", fact)

    def _of_lines(self, text_lines: Sequence[Line], all_of_them: bool) -> Iterator[Question]:
        """Questions about the lines of a list, or of any text."""
        if len(text_lines) < 2:
            if text_lines and all_of_them and len(text_lines[0].value) <= SHORT:
                yield Question("value", "", text_lines[0].value)
            return
        tags = Counter(line.key for line in text_lines if line.tagged)
        readable = is_readable(self.noun) and not tags
        names = tags or all(len(line.value.split()) == 1 for line in text_lines)
        item = "entry" if names and not readable else "line"
        if self.many or (item == "entry" and not tags and self.noun.split()[-1] not in _NO_ENTRIES):
            item = one_of(self.noun)
        yield from self._of_values([line.value for line in text_lines], item, whole=all_of_them)
        for tag, count in tags.items():
            name = {"dir": "directory"}.get(tag.casefold(), tag.casefold())
            inside = [line.value for line in text_lines if line.key == tag]
            if name in WORDS.path_nouns | WORDS.containers:
                if len(tags) > 1 and count <= MAX_COUNT:
                    yield Question("count", "", str(count), items=plural(name))
                yield self._leaf(f"the first {name}", inside[0], True, (), "first")
                yield self._leaf(f"the last {name}", inside[-1], True, (), "last")

    def _of_assignments(self, text_lines: Sequence[Line]) -> Iterator[Question]:
        """Questions for values that lines give to names."""
        pairs = [match.groups() for line in text_lines if not line.key and (match := _ASSIGNMENT.fullmatch(line.value))]
        times = Counter(name for name, _ in pairs)
        single = [(name, value.rstrip(";").strip("'\"`")) for name, value in pairs if times[name] == 1]
        for name, value in self.rng.sample(single, min(len(single), MAX_NAMES)):
            yield self._leaf(f"the value of {name}", value, True, ())


def _entry_noun(records: Sequence[dict[str, str]]) -> str:
    """The noun of an entry of a text: the key that it begins with, if that has its number, as in `Commit: 4b38`."""
    first = next(iter(records[0])) if records else ""
    has_numbers = first and not is_plural(first) and all(_NUMBER_OR_HASH.fullmatch(record[first]) for record in records)
    return name_of(first) if has_numbers and words(first)[-1:] != ["id"] else ""


def _records(text_lines: Sequence[Line]) -> list[dict[str, str]]:
    """The entries of a text in which the same keys come again and again, in the same order. Empty: it has none."""
    keyed_lines = [line for line in text_lines if line.key and not line.tagged]
    keys = list(dict.fromkeys(line.key for line in keyed_lines))
    size = len(keys)
    regular = size > 1 and len(keyed_lines) % size == 0 and len(keyed_lines) > size
    if not regular or any(line.key != keys[at % size] for at, line in enumerate(keyed_lines)):
        return []
    return [{line.key: line.value for line in keyed_lines[at : at + size]} for at in range(0, len(keyed_lines), size)]
