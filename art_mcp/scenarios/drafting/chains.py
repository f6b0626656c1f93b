"""Drafts tasks with a look-up before the act: the second call takes a value from the result of the first one."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.client.effects import words
from art_mcp.scenarios.catalog import CatalogTool, plain, properties_of
from art_mcp.scenarios.drafting.digests import short
from art_mcp.scenarios.drafting.draft import Draft
from art_mcp.scenarios.drafting.drafter import Drafter
from art_mcp.scenarios.drafting.pools import slot_values
from art_mcp.scenarios.drafting.values import NoValue
from art_mcp.scenarios.lines import lines
from art_mcp.scenarios.observe import Path, at, findings, leaves, meanings
from art_mcp.scenarios.phrasing.english import is_plural, one_of
from art_mcp.scenarios.phrasing.language import WORDS
from art_mcp.scenarios.phrasing.objects import IDENTIFIERS, label, object_of
from art_mcp.scenarios.phrasing.questions import identifying
from art_mcp.scenarios.phrasing.wish import wish
from art_mcp.scenarios.plan import Step

LINK_SAMPLE = 4
"""Links of which the one with the shortest result is taken."""

_WORD = re.compile(r"[A-Za-z]{4,}")
_ABOUT = (
    "the {item} with {word} in its name",
    "the {item} that has {word} in its name",
    "the {word} {item}",
)


@dataclass(frozen=True, slots=True)
class Link:
    """Two tools, the second of which takes a value from the result of the first.

    Args:
        first: Tool of the first call.
        arguments: Arguments of the first call.
        result: What the first call gave.
        path: Path of the value in the result.
        value: The value.
        second: Tool of the second call.
        parameter: Parameter of the second call that takes the value.
    """

    first: CatalogTool
    arguments: dict[str, Any]
    result: Any
    path: Path
    value: Any
    second: CatalogTool
    parameter: str

    @property
    def common(self) -> dict[str, Any]:
        """Arguments of the first call that the second one takes too, such as a repository."""
        names = properties_of(self.second).keys() - {self.parameter}
        return {name: value for name, value in self.arguments.items() if name in names}

    @property
    def length(self) -> int:
        """Characters of the first result, which an agent has to read."""
        return len(str(self.result))


@dataclass(frozen=True, slots=True)
class _Taker:
    """A required parameter that may take a value from a result.

    Args:
        tool: The tool that has it.
        name: The parameter.
        kind: What it takes.
        usable: The values that are known to fit, as texts.
    """

    tool: CatalogTool
    name: str
    kind: type
    usable: frozenset[str]


class Chains:
    """Drafts chains.

    What is known of the server must be complete: which values fit a parameter is found out once.

    Args:
        drafter: Drafts their calls.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._takers = list(_takers(drafter))
        self._links: dict[tuple[str, str], list[Link]] = defaultdict(list)
        for name, calls in drafter.values.graph.results.items():
            for arguments, result in calls:
                self.learn(name, arguments, result)

    def learn(self, name: str, arguments: Mapping[str, Any], result: Any) -> None:
        """Keeps the links that the result of a call allows, if the value can be described.

        A value that the first call got as an argument makes no link, because the first call would not be needed.

        Args:
            name: Name of the tool.
            arguments: Arguments of the call.
            result: What it gave, as `parse_result` returns it.
        """
        first, sense = self._drafter.tools.get(name), self._drafter.senses[name]
        if first is None or (sense.acts and not sense.verb.makes):  # who changes something does not look it up by that
            return
        argument_values = {canonical(argument) for argument in arguments.values()}
        values = list(findings(name, result))
        for taker in self._takers:
            if taker.tool is first:
                continue
            slot = (taker.tool.name, taker.name)
            for source in self._drafter.values.graph.sources(name, slot, values):
                names = {str(source.value), short(str(source.value))}
                if type(source.value) is not taker.kind or not source.path or not names & taker.usable:
                    continue
                link = Link(first, dict(arguments), result, source.path, source.value, taker.tool, taker.name)
                if canonical(source.value) not in argument_values and any(self._link_descriptions(link)):
                    self._links[name, taker.tool.name].append(link)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The tools that can be chained, the first and the second."""
        return list(self._links)

    def draft(self, pair: tuple[str, str]) -> Draft | None:
        """A task with a chain of two tools. None: an argument is not known, or each value was refused."""
        rng, links = self._drafter.rng, self._links[pair]
        sample = list(islice(filter(self._may_work, rng.sample(links, len(links))), LINK_SAMPLE))
        if not sample:
            return None
        link = min(sample, key=lambda link: link.length)
        options = list(self._link_descriptions(link))
        # Arguments of the same name are said once.
        base = {**link.common, link.parameter: {"$step": 0, "path": list(link.path)}}
        try:
            more = self._drafter.values.arguments(link.second, base_arguments=base, held=None, optional=0.1)
        except NoValue:
            return None
        before = Step(tool=link.first.name, arguments=link.arguments)
        call = wish(link.first, self._drafter.senses[link.first.name], link.arguments, rng)
        what, unique = rng.choice(options)
        held_values = frozenset(self._drafter.values.reserve.held_out(link.value)) if unique else frozenset()
        held_values |= frozenset(self._drafter.values.held_out(link.first, link.arguments))
        separate = not call.noun_phrase or rng.random() < 0.4
        wording = what if separate else f"{what} {call.where if call.many else f'in {call.noun_phrase}'}".strip()
        return self._drafter.of_call(
            link.second,
            {**base, **more},
            kind="chain",
            before=[before],
            wordings={link.parameter: wording},
            first=call.do if separate else "",
            unsaid=list(link.common),
            held_values=held_values,
            references={link.parameter: link.value},
        )

    def _may_work(self, link: Link) -> bool:
        """Whether no call of the second tool with what the first one tells was refused."""
        values = slot_values(link.second.name, {**link.common, link.parameter: link.value})
        return not any(self._drafter.values.graph.is_refused(slot, value) for slot, value in values)

    def _link_descriptions(self, link: Link) -> Iterator[tuple[str, bool]]:
        item, under = self._item(link)
        for what, unique in descriptions(link.result, link.path, item, self._drafter.rng):
            yield f"{what}{under}", unique

    def _item(self, link: Link) -> tuple[str, str]:
        """The noun of the entries of the first result, and under which of its keys they are, where that is no noun."""
        sense, under = self._drafter.senses[link.first.name], ""
        keys = [key for key in link.path[:-1] if isinstance(key, str) and key not in WORDS.outcomes]
        if isinstance(link.result, str):
            key = link.path[0]
            if isinstance(key, str):
                return " ".join(meanings(key)) or "entry", ""
        elif keys:
            if is_plural(" ".join(words(keys[-1]))) or not sense.many:
                return one_of(" ".join(meanings(keys[-1]))), ""
            under = f" under {keys[-1].replace('_', ' ')}"
        return one_of(sense.noun) if sense.noun and sense.many else (sense.noun or "entry"), under


def _takers(drafter: Drafter) -> Iterator[_Taker]:
    for tool in drafter.tools.values():
        sense, properties = drafter.senses[tool.name], properties_of(tool)
        thing = object_of(sense, dict.fromkeys(properties, ""), properties)
        for name, schema in properties.items():
            if sense.verb.makes and (name == thing or label(name) in WORDS.names) and meanings(name) != ["id"]:
                continue  # what is made has a name of its own
            if (sense.verb.edits or sense.verb.sets) and thing is not None and name != thing:
                continue  # what is changed is looked up, and not what it becomes
            inner = plain(schema, tool.input_schema)
            kind = {"string": str, "integer": int}.get(str(inner.get("type")))
            if kind is int and meanings(name)[-1:] and meanings(name)[-1] in WORDS.amounts:
                continue  # how many there are of one thing is not how many are wanted of another
            if kind is not None and "enum" not in inner and drafter.values.refers(tool, name, inner):
                fitting = drafter.values.candidates(tool, name, inner)
                yield _Taker(tool, name, kind, frozenset(map(str, fitting)))


def descriptions(result: Any, path: Path, item: str, rng: random.Random) -> Iterator[tuple[str, bool]]:
    """Ways to say which value of a result is meant without telling it.

    Args:
        result: The result, as `parse_result` returns it.
        path: Path of the value.
        item: The noun of its entries.
        rng: Chooses words.

    Yields:
        The description, and whether it has a word that belongs to this value alone.
    """
    if isinstance(result, str):
        siblings, number = _lines(result, path)
    else:
        siblings, number = _siblings(result, path)
    if number is None:
        return
    if len(siblings) == 1 and isinstance(path[-1], str):
        owners = [key for key in path[:-1] if isinstance(key, str) and key not in WORDS.outcomes]
        called = meanings(path[-1])
        if called == ["id"]:  # people ask for the task of an answer, and not for its id
            called = meanings(one_of(owners[-1])) if owners else [item]
        yield f"the {' '.join(called)}", False
        return
    # "the status of the first task": a value that several entries have stands for none of them.
    of = (
        f"the {' '.join(meanings(path[-1]))} of " if isinstance(path[-1], str) and not _stands_for(result, path) else ""
    )
    if len(siblings) > 1:
        if number == 0:
            yield f"{of}the first {item}", False
        if number == len(siblings) - 1:
            yield f"{of}the last {item}", False
    names = [str(sibling) for sibling in siblings]
    if not isinstance(result, str) and len(path) > 1 and isinstance(path[-2], int):
        entries = at(result, path[:-2])
        key = identifying(entries)
        if key is not None and key != path[-1]:
            name = str(entries[path[-2]][key])
            yield f"{of}the {item} {name}" if len(name.split()) == 1 else f"{of}the {item} named {name}", True
            yield f"{of}the {item} with the {' '.join(meanings(key))} {name}", True
            return
    if of:
        return
    word_counts = Counter(word.casefold() for name in names for word in set(_WORD.findall(name)))
    parts = re.split(r"[^A-Za-z0-9]+", names[number])
    for word in _WORD.findall(names[number]):
        if word_counts[word.casefold()] == 1 and len(parts) > 1 and word.casefold() not in WORDS.places:
            yield rng.choice(_ABOUT).format(item=item, word=word), True


def _stands_for(result: Any, path: Path) -> bool:
    """Whether a value of an entry names the entry: its id, its name, or what else tells the entries apart."""
    if isinstance(result, str) or len(path) < 2 or not isinstance(path[-2], int):
        return True
    return (
        label(str(path[-1])) in IDENTIFIERS
        or meanings(str(path[-1]))[-1:] == ["id"]
        or path[-1] == identifying(at(result, path[:-2]))
    )


def _lines(text: str, path: Path) -> tuple[Sequence[str], int | None]:
    """The values beside one in a text, and its number among them."""
    text_lines = lines(text)
    match path:
        case [str(key), int(number)]:
            return [line.value for line in text_lines if line.key == key], number
        case [int(number)]:
            return [line.value for line in text_lines], number
    return [], None


def _siblings(result: Any, path: Path) -> tuple[Sequence[Any], int | None]:
    """The values beside one in structured content, and its number among them."""
    if not path:
        return [], None
    if isinstance(path[-1], int):
        return list(at(result, path[:-1])), path[-1]
    if len(path) > 1 and isinstance(path[-2], int):
        entries = at(result, path[:-2])
        return [entry.get(path[-1]) if isinstance(entry, dict) else None for entry in entries], path[-2]
    inside = [leaf for where, leaf in leaves(result) if where == path]
    return inside, 0 if inside else None
