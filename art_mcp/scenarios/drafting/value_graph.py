"""The value graph: values that a server and its world show, what they are called there, and which calls accepted them.

A value is a node. Values of one record, and the arguments and results of one call, are neighbours. What is in two
entries of one result, or of one record, is not: a sheet of one workbook, and a column of a sheet of another. The names
of sources only say which are tried first: what counts are the calls that worked with their values.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.client.effects import words
from art_mcp.scenarios.catalog import Catalog, properties_of
from art_mcp.scenarios.drafting.digests import short_digests
from art_mcp.scenarios.drafting.pools import Count, Origin, Pool, Slot, Source, parameter_name, slot_values
from art_mcp.scenarios.drafting.stock_answers import StockAnswers
from art_mcp.scenarios.lines import lines
from art_mcp.scenarios.observe import MAX_VALUE, Finding, findings, is_file, is_local, leaves, meanings, objects
from art_mcp.scenarios.phrasing.language import WORDS

MAX_FINDINGS = 300
"""Values of a source that are kept, at most."""

MAX_NEW = 2_000
"""Values of one result that are kept, at most."""

MAX_POOLS = 2_000
"""Sources of values that are kept, at most: a server may name each value by a key of its own."""

MAX_NEIGHBOURS = 200
"""Records and calls that are noted of a value, at most."""

_NAME = re.compile(r"[\w.@+-]+(?: [\w.@+-]+)*")
_WORD = re.compile(r"[A-Za-z]{3,}")
_PART = re.compile(r"\b\w{3,20} \w{3,20}\b")
"""Two words of a text."""

PATIENCE = 2.0
"""Failures of a value that the server itself offered, before it counts as refused."""


@dataclass(frozen=True, slots=True)
class CallSequence:
    """Two calls of which the second one worked after the first one, in one copy of the world.

    Args:
        first: Tool and arguments of the call that changed something.
        result: What it gave.
        second: Tool and arguments of the call after it.
    """

    first: tuple[str, dict[str, Any]]
    result: Any
    second: tuple[str, dict[str, Any]]


class ValueGraph:
    """Values that calls may take.

    `results` has results by the name of the tool, each with its arguments; `records` the objects in them; `places` the
    paths of a world. `slow` are the tools that took long, `usable` those that worked, `changing` those that were seen
    to change their world. `messages` has the last error of each slot; `necessary` the parameters of each tool that an
    error missed, and whether it takes all of them or one; `exclusions` optional ones that an error blamed; `sequences`
    calls that worked after others, by the name of the second tool; `refusals` calls that failed, each with its error;
    `least` how many items a list needs, as an error said.

    Args:
        catalog: What the server offers.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._takes: dict[str | Origin, set[frozenset[str]]] = {
            tool.name: {frozenset(meanings(name)) for name in properties_of(tool)} for tool in catalog.tools
        }
        every = {name: tuple(words(name)) for tool in catalog.tools for name in properties_of(tool)}
        names = {name: own for name, own in every.items() if own and not {own[-1]} & (WORDS.names | {"id"})}
        self._related = {
            name: [other for other, parts in names.items() if own[1:] == parts or parts[1:] == own]
            for name, own in names.items()
        }
        self.pools: dict[Source, Pool] = {}
        self.results: dict[str, list[tuple[dict[str, Any], Any]]] = {}
        self.records: list[dict[str, Any]] = []
        self.places: list[str] = []
        self.slow: set[str] = set()
        self.changing: set[str] = set()
        self.usable: set[str] = set()
        self._sources: defaultdict[tuple[Slot, Source], Count] = defaultdict(Count)
        self._values: defaultdict[tuple[Slot, str], Count] = defaultdict(Count)
        self._draws: dict[tuple[Slot, str], Source] = {}
        self._contexts: defaultdict[str, list[int]] = defaultdict(list)
        self._groups: dict[tuple[frozenset[str], frozenset[str]], int] = {}
        self._names: defaultdict[tuple[str, str], Count] = defaultdict(Count)
        self._by_name: defaultdict[tuple[str, Source], Count] = defaultdict(Count)
        self._endings: defaultdict[Slot, list[str]] = defaultdict(list)
        self._stock_answers = StockAnswers()
        self.messages: dict[Slot, str] = {}
        self.necessary: dict[str, tuple[list[str], bool]] = {}
        self.exclusions: defaultdict[str, set[str]] = defaultdict(set)
        self.sequences: defaultdict[str, list[CallSequence]] = defaultdict(list)
        self.least: dict[Slot, int] = {}
        self.refusals: defaultdict[str, list[tuple[dict[str, Any], str]]] = defaultdict(list)

    def learn(self, tool: str, arguments: Mapping[str, Any], value: Any) -> None:
        """Keeps what a call gave.

        Args:
            tool: Name of the tool.
            arguments: Its arguments.
            value: The result, as `parse_result` returns it.
        """
        self.results.setdefault(tool, []).append((dict(arguments), value))
        self.learn_records(objects(value))
        self._stock_answers.learn(tool, arguments, value)
        new = list(islice(findings(tool, value), MAX_NEW))
        self._connect(*_together(arguments, value, new))
        names = {finding.value for finding in new if finding.path is None}
        for name, inside in _entries(value):
            if name in names:
                self._connect([name], (leaf for _, leaf in leaves(inside)))
        self.add(tool, [*new, *_below(tool, arguments, new), *short_digests(new)])

    def is_stock(self, tool: str, arguments: Mapping[str, Any], value: Any) -> bool:
        """Whether what a call gave says only that there is nothing, as other calls of the tool show."""
        return tool not in self.changing and self._stock_answers.has(tool, arguments, value)

    def retract(self, tool: str, arguments: Mapping[str, Any], value: Any) -> None:
        """Forgets that a call worked, and that its values belong together."""
        self.results[tool].remove((dict(arguments), value))
        values, parts = _together(arguments, value, list(islice(findings(tool, value), MAX_NEW)))
        number = self._groups.get((_keys(values), _keys(parts)), 0)
        for slot, argument in slot_values(tool, arguments):
            key = canonical(argument)
            self._contexts[key] = [mark for mark in self._contexts[key] if mark != number]
            for tally in self._counts(slot, key):
                tally.successes -= 1
                tally.hits -= 1

    def learn_records(self, records: Iterable[dict[str, Any]]) -> None:
        """Keeps objects, whose values belong together."""
        for record in records:
            if len(self.records) < MAX_FINDINGS and record not in self.records:
                self.records.append(record)
                inside = [item for value in record.values() for _, item in leaves(value) if _has_objects(value)]
                own = [item for value in record.values() for _, item in leaves(value) if not _has_objects(value)]
                self._connect(own, inside)

    def add(self, origin: str | Origin, new: Iterable[Finding], pools: dict[Source, Pool] | None = None) -> None:
        """Keeps values.

        Args:
            origin: The tool that gave them, or what else did.
            new: The values.
            pools: Where they are kept. None: in the graph.
        """
        pools = self.pools if pools is None else pools
        for finding in new:
            if self.places and is_local(str(finding.value)):  # no other copy of the world has it
                continue
            source = (origin, finding.own, finding.about)
            if source not in pools and len(pools) >= MAX_POOLS:
                continue
            pool = pools.setdefault(source, Pool(source, finding, origin))
            if len(pool.values) < MAX_FINDINGS:
                pool.values.setdefault(canonical(finding.value), finding.value)

    def offer(
        self, slot: Slot, values: Iterable[str | int], endings: Iterable[str], others: Iterable[Any] = ()
    ) -> None:
        """Keeps what an error offers for a slot, and for parameters of that name of other tools.

        Args:
            slot: The slot.
            values: Values that it may take.
            endings: Endings of files that it may take: `.csv`.
            others: The other arguments of the call, which the values go with.
        """
        source = (Origin.ERROR, parameter_name(slot[1]))
        values = list(values)
        for other in others:  # not with one another: the call failed
            if not self.neighbours(values, [other]):  # else it is known which of them it goes with
                self._connect([other, *values])
        for value in values:
            pool = self.pools.setdefault(source, Pool(source, Finding(None, (), frozenset(), value), Origin.ERROR))
            if len(pool.values) < MAX_FINDINGS:
                pool.values.setdefault(canonical(value), value)
        self._endings[slot] += [ending for ending in endings if ending not in self._endings[slot]]

    def _connect(self, values: Iterable[Any], parts: Iterable[Any] = ()) -> None:
        """Makes values neighbours of one another and of some parts, which are no neighbours of one another."""
        group = _keys(values), _keys(parts)
        if len(group[0] | group[1]) < 2 or group in self._groups:
            return
        self._groups[group] = number = len(self._groups) + 1
        for key, mark in [*((key, number) for key in group[0]), *((key, -number) for key in group[1] - group[0])]:
            if len(self._contexts[key]) < MAX_NEIGHBOURS:
                self._contexts[key].append(mark)

    def _reach(self, value: Any) -> set[int]:
        """The marks of the neighbours of a value."""
        marks = self._contexts.get(canonical(value), ())
        return {each for mark in marks for each in ((mark, -mark) if mark > 0 else (-mark,))}

    def neighbours(self, candidates: Sequence[Any], others: Iterable[Any]) -> list[Any]:
        """The candidates that were seen together with the most of some other values, and of these those that were with
        the most of them in one record. Empty: none was with any."""
        reaches = [self._reach(other) for other in others if not isinstance(other, bool)]
        counts = []
        for value in candidates:
            marks = self._contexts.get(canonical(value), ())
            shared = Counter(mark for reach in reaches for mark in reach.intersection(marks))
            counts.append((sum(not reach.isdisjoint(marks) for reach in reaches), max(shared.values(), default=0)))
        most = max(counts, default=(0, 0))
        return [value for value, count in zip(candidates, counts, strict=True) if count == most] if most[0] else []

    def knows(self, values: Iterable[Any]) -> bool:
        """Whether one of some values was seen together with others."""
        return any(self._contexts.get(canonical(value)) for value in values)

    def note_source(self, slot: Slot, value: Any, source: Source) -> None:
        """Notes where the value of a slot was taken from."""
        self._draws[slot, canonical(value)] = source

    def note(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        success: float,
        slots: Mapping[Slot, float] | None = None,
        alternatives: Iterable[str] = (),
        new: Container[str] = (),
    ) -> None:
        """Notes whether a call worked.

        Args:
            tool: Name of the tool.
            arguments: Its arguments.
            success: 1: it worked. 0: it failed. Between: it gave nothing.
            slots: The slots that made it fail, each with its share. None: all in equal shares.
            alternatives: What the server offered instead. A source that has some of it is not to blame for the value.
            new: Values, in their canonical form, that earlier calls may have made there: that they work proves nothing
                of their sources.
        """
        if success == 1.0 and not arguments.keys() & set(self.necessary.get(tool, ((), False))[0]):
            self.necessary.pop(tool, None)  # the error was about the values that it had
        offer = {canonical(value) for value in alternatives}
        values = dict(slot_values(tool, arguments))
        shares = slots if slots is not None else dict.fromkeys(values, 1 / max(len(values), 1) ** 0.5)
        for slot, value in values.items():
            key = canonical(value)
            if success and key in new:
                continue
            share = (1 - success) * shares.get(slot, 0.0)
            # What an act takes may be what it makes.
            for tally in self._counts(slot, key, offer, named=success < 1.0 or tool not in self.changing):
                tally.successes += success
                tally.failures += share
                tally.hits += success == 1.0

    def _counts(self, slot: Slot, key: str, offer: Container[str] = (), named: bool = True) -> list[Count]:
        """What is counted of a value in a slot: the value, and its sources that have nothing of an offer. named:
        whether it counts for other slots of this name too."""
        name = parameter_name(slot[1])
        sources = [
            source for source in self._of(slot, key) if not any(value in offer for value in self._values_of(source))
        ]
        return [
            self._values[slot, key],
            *(self._sources[slot, source] for source in sources),
            *(self._by_name[name, source] for source in sources),
            *([self._names[name, key]] if named else []),
        ]

    def _of(self, slot: Slot, key: str) -> list[Source]:
        """Where the value of a slot was taken from; if that is not known, where it could be taken from. For a value
        that a schema names, both: what the server shows beside it is of its kind, as the other columns of a board."""
        drawn = self._draws.get((slot, key))
        pool = self.pools.get(drawn) if drawn is not None else None
        if drawn is not None and pool is not None and pool.origin is not Origin.SCHEMA:
            return [drawn]
        others = [source for source, pool in self.pools.items() if key in pool.values and source != drawn]
        return others if drawn is None else [drawn, *others]

    def kinds(self, value: Any) -> set[tuple[str | Origin, tuple[str, ...]]]:
        """What a value is where the server shows it: who gave it, and its name there."""
        key = canonical(value)
        pools = [pool for pool in self.pools.values() if pool.origin is not Origin.ERROR and key in pool.values]
        return {(pool.origin, tuple(pool.finding.own)) for pool in pools}

    def _values_of(self, source: Source) -> Iterable[str]:
        pool = self.pools.get(source)
        return pool.values if pool else ()

    def evidence(self, slot: Slot, source: Source) -> Count:
        """How calls went that had values of a source in a slot."""
        return self._sources.get((slot, source)) or Count()

    def by_name(self, slot: Slot, source: Source) -> Count:
        """The same for other slots of this name."""
        name = parameter_name(slot[1])
        every, own = self._by_name.get((name, source)) or Count(), self.evidence(slot, source)
        return Count(every.successes - own.successes, every.failures - own.failures, every.hits - own.hits)

    def by_related_name(self, slot: Slot, source: Source) -> Count:
        """The same for slots whose names differ in a first word: `category` and `target_category`."""
        related = self._related.get(parameter_name(slot[1]), ())
        counts = [self._by_name[name, source] for name in related if (name, source) in self._by_name]
        return Count(*(sum(getattr(each, part) for each in counts) for part in ("successes", "failures", "hits")))

    def is_refused(self, slot: Slot, value: Any) -> bool:
        """Whether calls with a value in a slot failed, and more than worked; if there were none, those of other tools
        with the value in a parameter of this name. A value that the server offered fails for what it goes with, so it
        takes more of them."""
        tally = self._count_of(slot, value)
        return tally is not None and tally.failures > tally.successes + self._patience(slot, value)

    def is_refused_here(self, slot: Slot, value: Any) -> bool:
        """The same, but only by calls with the value in this very slot."""
        tally = self._values.get((slot, canonical(value)))
        return tally is not None and tally.failures > tally.successes + self._patience(slot, value)

    def _patience(self, slot: Slot, value: Any) -> float:
        """Failures of a value that prove nothing."""
        offered = canonical(value) in self._values_of((Origin.ERROR, parameter_name(slot[1])))
        return PATIENCE if offered else 0.0

    def is_accepted(self, slot: Slot, value: Any) -> bool:
        """Whether a call with a value in a slot worked; if there was none, one of another tool, as in `is_refused`."""
        tally = self._count_of(slot, value)
        return tally is not None and tally.hits > 0

    def refused_calls(self, tool: str) -> list[tuple[dict[str, Any], str]]:
        """The calls of a tool that failed although all of their values seem to be there, each with its error: what they
        name forbids it."""
        return [
            (arguments, message)
            for arguments, message in self.refusals[tool]
            if all(self._may_be_there(slot, value) for slot, value in slot_values(tool, arguments))
        ]

    def _may_be_there(self, slot: Slot, value: Any) -> bool:
        """Whether calls worked with values of the source of this one, in the slot, or where it lists values, in one of
        this name: the books that can be lent are others than those that can be returned. A value without a source is
        one that the schema or the user has."""
        sources = self._of(slot, canonical(value))
        return not sources or any(
            self.evidence(slot, source).hits > 0 or (source in self.pools and self.by_name(slot, source).hits > 0)
            for source in sources
        )

    def _count_of(self, slot: Slot, value: Any) -> Count | None:
        key = canonical(value)
        return self._values.get((slot, key)) or self._names.get((parameter_name(slot[1]), key))

    def fits(self, pool: Pool, name: str) -> bool:
        """Whether the words of a pool are those of a parameter."""
        return pool.finding.fits(name, self._takes.get(pool.origin, set()))

    def sources(self, tool: str, slot: Slot, values: Iterable[Finding]) -> list[Finding]:
        """The values in a result that a slot of another tool may take and that have a path: by their names, or because
        calls worked with values of their source.

        Args:
            tool: Name of the tool that gave the result.
            slot: The slot.
            values: The values in the result.
        """
        name = parameter_name(slot[1])
        return [
            finding
            for finding in values
            if finding.path is not None
            and (
                finding.fits(name, self._takes[tool])
                or self.evidence(slot, (tool, finding.own, finding.about)).hits > 0
            )
        ]

    def records_with(self, keys: Sequence[str]) -> list[dict[str, Any]]:
        """Parts of known objects that have values for all of these keys. Of a list one item is taken.

        A key such as `entityName` is also the `name` of an object.
        """
        parts = []
        for record in self.records:
            part = {}
            for key in keys:
                own = next((each for each in record if each == key), None) or next(
                    (each for each in record if meanings(key)[-1:] == meanings(each) == ["name"]), None
                )
                if own is not None:
                    part[key] = record[own][:1] if isinstance(record[own], list) else record[own]
            if len(part) == len(keys) and all(part.values()) and part not in parts:
                parts.append(part)
        return parts

    def own_endings(self, slot: Slot) -> list[str]:
        """The endings of files that a slot takes, as errors or its description say."""
        return self._endings.get(slot, [])

    def has_offers(self, slot: Slot) -> bool:
        """Whether an error has offered values for a slot."""
        return (Origin.ERROR, parameter_name(slot[1])) in self.pools

    def endings(self) -> list[str]:
        """The endings of known files."""
        names = [path.rpartition("/")[2] for path in self.paths("file")]
        return sorted({f".{name.rpartition('.')[2]}" for name in names if "." in name.strip(".")})

    def terms(self) -> list[str]:
        """Words to look for: those in the names of known things, and in short texts of results."""
        parts: set[str] = set()
        for pool in self.pools.values():
            is_name = pool.finding.own[-1:] in (("name",), ("title",))
            for value in pool.values.values():
                is_text = isinstance(pool.origin, str) and isinstance(value, str) and " " in value[:MAX_VALUE]
                parts.update(
                    _WORD.findall(value[:MAX_VALUE]) if isinstance(value, str) and (is_name or is_text) else ()
                )
        return sorted(part for part in parts if part.casefold() not in WORDS.prepositions)

    def near(self, others: Iterable[Any]) -> list[Any]:
        """Short texts that were seen together with all of some values, and parts of long ones: cells of a file, members
        of a group, words of a note."""
        reaches = [self._reach(other) for other in others if not isinstance(other, bool)]
        if not reaches:
            return []
        common = set.intersection(*reaches)
        texts = {
            value if len(value) <= 40 else _PART.findall(value)[0]
            for pool in self.pools.values()
            for key, value in pool.values.items()
            if isinstance(value, str)
            and (len(value) <= 40 or _PART.search(value))
            and not common.isdisjoint(self._contexts.get(key, ()))
        }
        return sorted(texts.difference(map(str, others)))

    def lines_of(self, values: Iterable[Any]) -> list[str]:
        """Lines without keys of the texts that calls with one of these values gave."""
        texts_in_calls = {value for value in values if isinstance(value, str)}
        texts = [
            value
            for results in self.results.values()
            for arguments, value in results
            if isinstance(value, str)
            and texts_in_calls & {each for each in arguments.values() if isinstance(each, str)}
        ]
        bare = [line.value for text in texts for line in lines(text) if not line.key]
        return list(dict.fromkeys(line for line in bare if 3 <= len(line) <= 60 and line[0].isalnum()))

    def paths(self, kind: str) -> list[str]:
        """Absolute paths of known files or directories. kind: file or directory."""
        paths = {
            value.rstrip("/")
            for pool in self.pools.values()
            if kind in pool.finding.about
            for value in pool.values.values()
            if isinstance(value, str) and value.startswith("/")
        }
        return sorted(paths)

    def folders(self) -> list[str]:
        """The directories of known files, and places that are directories."""
        files = self.paths("file")
        return sorted({path.rpartition("/")[0] for path in files if path.count("/") > 2})


def _together(arguments: Mapping[str, Any], result: Any, new: Iterable[Finding]) -> tuple[list[Any], list[Any]]:
    """The values of a call, and those of its result. Where that is no list of objects, all of them belong together."""
    own, others = [leaf for _, leaf in leaves(dict(arguments))], [finding.value for finding in new]
    return (own, others) if _has_objects(result) else ([*own, *others], [])


def _has_objects(value: Any) -> bool:
    """Whether a value is, or has, several objects with values of their own."""
    return sum(1 for _ in islice(_holders(value), 2)) > 1


def _holders(value: Any) -> Iterator[dict[str, Any]]:
    """The objects in a value that hold values or lists."""
    if isinstance(value, dict) and any(not isinstance(item, dict) for item in value.values()):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from _holders(item)


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """The keys in a value under which objects and lists stand, with these."""
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from _entries(item)
    if isinstance(value, dict):
        yield from ((key, item) for key, item in value.items() if isinstance(item, dict | list))


def _keys(values: Iterable[Any]) -> frozenset[str]:
    """Values that belong together, in their canonical form."""
    return frozenset(canonical(value) for value in values if not isinstance(value, bool))


def _below(tool: str, arguments: Mapping[str, Any], findings: Iterable[Finding]) -> Iterator[Finding]:
    """The paths of what a tool of directories listed in the one that it was given."""
    own = set(meanings(tool))
    folders = [leaf for _, leaf in leaves(dict(arguments)) if isinstance(leaf, str) and leaf.startswith("/")]
    if len(folders) != 1:
        return
    for finding in findings:
        name = finding.value
        if finding.own[-1:] != ("name",) or not isinstance(name, str) or not _NAME.fullmatch(name):
            continue
        tags = (finding.about - own) & {"file", "directory"}
        if len(finding.path or ()) <= 2 and (tags or "directory" in own):
            kind = "file" if "file" in tags or (not tags and is_file(name)) else "directory"
            yield Finding(None, ("path",), frozenset({kind}), f"{folders[0].rstrip('/')}/{name}")
