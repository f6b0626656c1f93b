"""What is known of the things that a server works on: values in results of its own tools, and places of the world."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from art_mcp.client.effects import words
from art_mcp.scenarios.catalog import Catalog, CatalogTool, properties_of
from art_mcp.scenarios.lines import lines
from art_mcp.scenarios.observe import Finding, findings, is_file, leaves, meanings
from art_mcp.worlds.alias import alias
from art_mcp.worlds.place import Place

MAX_FINDINGS = 300
"""Values from the results of one tool that are kept at most."""

FAILURES = 2
"""Calls that failed with values of a kind, after which no more of them are tried, unless one worked."""

_OWN = 0.5
"""Shared words that a value of the tool's own results counts as, if it has any."""

_PLACES = "{world}"
"""Stands for a tool that gave the paths of places. No tool has such a name."""

_KINDS = {
    "repository": ("repository", "repo", "git", "directory", "root", "project", "workspace"),
    "directory": ("directory", "root", "project", "workspace"),
    "database": ("database", "db", "sqlite", "file"),
    "file": ("file",),
}
"""Words, as `meanings` gives them, that parameters have which take the path of such a place."""

_FORMATS = ("date", "time", "date-time", "email", "uri", "hostname", "ipv4", "uuid")
_SHORT = "{short}"
"""Marks the beginning of a digest, by which people name what has it. No name has such a word."""

_DIGEST = re.compile(r"[0-9a-f]{32,}")
_NAME = re.compile(r"[\w.@+-]+(?: [\w.@+-]+)*")
_WORD = re.compile(r"[A-Za-z]{3,}")


class ValuePool:
    """Values that calls may take.

    `results` has results by the name of the tool, each with its arguments; `records` the objects in them; `places` the
    paths of a world; `slow` the tools that took long.

    Args:
        catalog: What the server offers.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._findings: dict[str, list[Finding]] = {}
        self._takes = {tool.name: {frozenset(meanings(name)) for name in properties_of(tool)} for tool in catalog.tools}
        self.results: dict[str, list[tuple[dict[str, Any], Any]]] = {}
        self.records: list[dict[str, Any]] = []
        self.places: list[str] = []
        self.slow: set[str] = set()
        self._worked: defaultdict[tuple[str, str], Counter[frozenset[str]]] = defaultdict(Counter)
        self._failed: defaultdict[tuple[str, str], Counter[frozenset[str]]] = defaultdict(Counter)

    def learn(self, tool: str, arguments: Mapping[str, Any], value: Any) -> None:
        """Keeps what a call gave.

        Args:
            tool: Name of the tool.
            arguments: Its arguments.
            value: The result, as `parse_result` returns it.
        """
        self.results.setdefault(tool, []).append((dict(arguments), value))
        for record in _records(value):
            if record not in self.records and len(self.records) < MAX_FINDINGS:
                self.records.append(record)
        new = list(findings(tool, value))
        self._keep(tool, [*new, *_below(tool, arguments, new), *_short_digests(new)])

    def learn_places(self, places: Iterable[Place]) -> None:
        """Keeps the paths of a world's places."""
        all_places = list(places)
        self._takes[_PLACES] = set()
        self.places += [alias(place) for place in all_places]
        self._keep(
            _PLACES,
            [
                Finding(None, (), frozenset({"path", *words(place.name), *_KINDS[place.kind]}), alias(place))
                for place in all_places
            ],
        )

    def note(self, tool: str, arguments: Mapping[str, Any], worked: bool) -> None:
        """Notes whether a call worked, so that values of a kind that never works are not tried again."""
        counts = self._worked if worked else self._failed
        kinds = {finding.value: finding.about for values in self._findings.values() for finding in values}
        for name, value in arguments.items():
            if isinstance(value, str | int) and value in kinds:
                counts[tool, name][kinds[value]] += 1

    def _keep(self, tool: str, new: Iterable[Finding]) -> None:
        values = self._findings.setdefault(tool, [])
        for finding in new:
            if finding not in values and len(values) < MAX_FINDINGS:
                values.append(finding)

    def sources(self, tool: str, name: str, values: Iterable[Finding]) -> list[Finding]:
        """The values in a result that fit a parameter of another tool and have a path.

        Args:
            tool: Name of the tool that gave the result.
            name: The parameter of the other tool.
            values: The values in the result.
        """
        return [finding for finding in values if finding.path is not None and finding.fits(name, self._takes[tool])]

    def fitting(self, tool: CatalogTool, name: str, schema: Mapping[str, Any]) -> list[Any]:
        """Values that fit a parameter; of those, the ones that share the most words with the tool. What the tool itself
        gave counts least: it would lead back to what it was asked for.

        Args:
            tool: The tool that has the parameter.
            name: The parameter.
            schema: Its schema.
        """
        if schema.get("format") in _FORMATS:
            return []
        kind = int if schema.get("type") == "integer" else str
        own = set(meanings(" ".join(tool.words)))
        failures, successes = self._failed[tool.name, name], self._worked[tool.name, name]
        fitting = []
        for source, values in self._findings.items():
            for finding in values:
                if type(finding.value) is kind and finding.fits(name, self._takes[source]):
                    alike: float = len(own & finding.about.union(finding.own))
                    if source == tool.name:
                        alike = _OWN * bool(own & finding.about)
                    fitting.append((alike, finding.value, finding.about))
        usable = [each for each in fitting if successes[each[2]] or failures[each[2]] < FAILURES]
        proven = [each for each in usable if successes[each[2]]]
        if any(_SHORT in about for _, _, about in proven):
            proven = [each for each in proven if not _DIGEST.fullmatch(str(each[1]))]
        most = max((score for score, _, _ in proven or usable), default=0)
        return list(dict.fromkeys(value for score, value, _ in proven or usable if score == most or proven))

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

    def directories(self) -> list[str]:
        """Paths of known directories."""
        return self._paths("directory")

    def endings(self) -> list[str]:
        """The endings of known files."""
        names = [path.rpartition("/")[2] for path in self._paths("file")]
        return sorted({f".{name.rpartition('.')[2]}" for name in names if "." in name.strip(".")})

    def globs(self) -> list[str]:
        """Patterns that known files match."""
        return [pattern for ending in self.endings() for pattern in (f"*{ending}", f"**/*{ending}")]

    def names(self) -> list[str]:
        """Words in the names of known things, to look for."""
        parts: set[str] = set()
        for values in self._findings.values():
            for finding in values:
                if finding.own[-1:] in (("name",), ("title",)) and isinstance(finding.value, str):
                    parts.update(set(_WORD.findall(finding.value)))
        return sorted(parts)

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

    def _paths(self, kind: str) -> list[str]:
        paths = {
            str(finding.value).rstrip("/")
            for values in self._findings.values()
            for finding in values
            if kind in finding.about and isinstance(finding.value, str) and finding.value.startswith("/")
        }
        return sorted(paths)


def _records(value: Any) -> Iterator[dict[str, Any]]:
    """The objects in a result that hold values."""
    if isinstance(value, dict):
        if any(isinstance(item, str | int) for item in value.values()):
            yield value
        for item in value.values():
            yield from _records(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _records(item)


def _short_digests(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The beginnings of digests."""
    for finding in findings:
        if isinstance(finding.value, str) and _DIGEST.fullmatch(finding.value):
            yield Finding(None, finding.own, finding.about | {_SHORT}, short(finding.value))


def short(value: str) -> str:
    """The beginning of a digest; any other value as it is."""
    return value[:8] if _DIGEST.fullmatch(value) else value


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
