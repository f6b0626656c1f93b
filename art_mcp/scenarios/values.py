"""Draws arguments for tool calls from tables, schemas, descriptions, and results of other tools."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from art_mcp.client.effects import words
from art_mcp.scenarios.catalog import Catalog, CatalogTool
from art_mcp.scenarios.observe import Finding, findings, meanings, singular
from art_mcp.scenarios.tables import Tables, fits_table
from art_mcp.worlds.alias import alias
from art_mcp.worlds.place import Place
from trainer_server.wire import ConfigError

WORDS = ("harbour", "lantern", "orchard", "granite", "meadow", "compass", "willow", "ember", "sparrow", "cobalt")
"""Values for text parameters about which nothing else is known."""

KNOWN = 200
"""Values from the results of one tool that are kept at most."""

OPTIONAL = 0.4
"""Probability that a call gets an optional argument."""

DISTINCT = 4
"""Attempts to draw an argument that differs from the other arguments of the call: no trip from Oslo to Oslo."""

_SHORT = {"duration", "seconds", "delay", "timeout", "wait", "sleep", "interval", "steps"}
_EXAMPLES = re.compile(
    r"(?:e\.g\.|example|such as|like|\bor\b|,|\()[^'\"`]{0,12}(['\"`])([^'\"`]{1,60})\1", re.IGNORECASE
)


_PLACES = "{world}"
"""Stands for a tool that gave the paths of places. No tool has such a name."""

_KINDS = {
    "repository": ("repository", "repo", "git", "directory", "root", "project", "workspace"),
    "directory": ("directory", "root", "project", "workspace"),
    "database": ("database", "db", "sqlite", "file"),
    "file": ("file",),
}
"""Words, as `meanings` gives them, that parameters have which take the path of such a place."""


class NoValue(LookupError):
    """No value is known for an argument."""


class Values:
    """Draws arguments for the tools of a server. `learn` adds values from results of tools.

    Args:
        catalog: What the server offers.
        tables: Values that the user gave, by the name of a parameter.
        rng: Source of randomness.

    Raises:
        ConfigError: A table fits no parameter of any tool.
    """

    def __init__(self, catalog: Catalog, tables: Tables, rng: random.Random) -> None:
        self._catalog = catalog
        self._tables = {name.casefold(): list(values) for name, values in tables.items()}
        self._rng = rng
        self._findings: dict[str, list[Finding]] = {}
        self._takes = {tool.name: {frozenset(meanings(name)) for name in _properties(tool)} for tool in catalog.tools}
        names = {name for tool in catalog.tools for name in _properties(tool)}
        for name in tables:
            if not any(fits_table(parameter, name.casefold()) for parameter in names):
                listed = ", ".join(sorted(names))
                raise ConfigError(f"no tool of {catalog.name} has a parameter {name!r}; there are {listed}")

    def learn(self, tool: str, value: Any) -> None:
        """Keeps the values in a result that other calls may take as arguments.

        Args:
            tool: Name of the tool that gave the result.
            value: The result, as `parsed` returns it.
        """
        known = self._findings.setdefault(tool, [])
        for finding in findings(tool, value):
            if finding not in known and len(known) < KNOWN:
                known.append(finding)

    def learn_places(self, places: Iterable[Place]) -> None:
        """Keeps the paths of a world's places, for parameters such as `repo_path`, `database` or `directory`."""
        self._takes[_PLACES] = set()
        self._findings[_PLACES] = [
            Finding(None, (), frozenset({"path", *words(place.name), *_KINDS[place.kind]}), alias(place))
            for place in places
        ]

    def sources(self, tool: str, name: str, value: Any) -> list[Finding]:
        """The values in a result that fit a parameter of another tool and have a path.

        Args:
            tool: Name of the tool that gave the result.
            name: The parameter of the other tool.
            value: The result, as `parsed` returns it.
        """
        return [
            finding
            for finding in findings(tool, value)
            if finding.path is not None and finding.fits(name, self._takes[tool])
        ]

    def arguments(self, tool: CatalogTool, *, guess: bool = True, given: Iterable[str] = ()) -> dict[str, Any]:
        """Draws the required arguments of a call, and sometimes an optional one.

        Args:
            tool: The tool to call.
            guess: Whether a required text may be any word.
            given: Names of arguments that the caller has already.

        Raises:
            NoValue: No value is known for a required argument.
        """
        properties = {name: schema for name, schema in _properties(tool).items() if name not in given}
        required = tool.input_schema.get("required", ())
        arguments: dict[str, Any] = {}
        for name in required:
            for _ in range(DISTINCT):
                if name in properties and (name not in arguments or arguments[name] in _others(arguments, name)):
                    arguments[name] = self.draw(tool, name, properties[name], guess=guess)
        optional = [name for name in properties if name not in arguments]
        if optional and self._rng.random() < OPTIONAL:
            name = self._rng.choice(optional)  # a single one, as optional arguments may exclude each other
            try:
                value = self.draw(tool, name, properties[name], guess=False)
            except NoValue:
                return arguments
            if value != properties[name].get("default"):
                arguments[name] = value
        return arguments

    def draw(self, tool: CatalogTool, name: str, schema: Mapping[str, Any], *, guess: bool = True) -> Any:
        """Draws a value for a parameter.

        Args:
            tool: The tool that has the parameter.
            name: The parameter.
            schema: Its JSON schema.
            guess: Whether a text about which nothing is known may be any word.

        Raises:
            NoValue: No value is known.
        """
        schema = _plain(schema, tool.input_schema)
        listed = self._listed(tool, name, schema)
        if listed:
            return self._rng.choice(listed)
        kind = schema.get("type")
        if kind == "boolean":
            return self._rng.random() < 0.5
        if kind in ("integer", "number"):
            return self._number(name, schema)
        if kind == "array":
            item = schema.get("items") or {"type": "string"}
            size = max(int(schema.get("minItems", 1)), 1)
            drawn = [self.draw(tool, singular(name), item, guess=guess) for _ in range(size)]
            return [value for at, value in enumerate(drawn) if value not in drawn[:at]]
        if kind == "object":
            inner = schema.get("properties", {})
            required = schema.get("required", list(inner))
            return {key: self.draw(tool, key, inner.get(key, {"type": "string"}), guess=guess) for key in required}
        if kind in ("string", None) and (shaped := self._shaped(name, schema)) is not None:
            return shaped
        if "default" in schema and schema["default"] is not None:
            return schema["default"]
        if guess and kind == "string" and "pattern" not in schema:
            return self._rng.choice(WORDS)
        raise NoValue(f"nothing is known of {tool.name}'s {name}")

    def _listed(self, tool: CatalogTool, name: str, schema: Mapping[str, Any]) -> Sequence[Any]:
        """Known values of a parameter; empty where there are none.

        The sources, in order: the user's tables, the schema (`const`, `enum`, examples), the server's resources,
        results of tools, and the text of the description. Results are added to examples; otherwise the first source
        that has values is used.
        """
        table = max((table for table in self._tables if fits_table(name, table)), key=len, default=None)
        if table is not None:
            return self._tables[table]
        if "const" in schema:
            return [schema["const"]]
        if schema.get("enum"):
            return [value for value in schema["enum"] if value is not None]
        if schema.get("type") not in ("string", "integer", None):
            return list(schema.get("examples") or ())
        if "sql" in words(f"{name} {schema.get('description', '')} {tool.description}") and name in ("query", "sql"):
            return self._queries()
        listed = [*(schema.get("examples") or ()), *([schema["example"]] if "example" in schema else ())]
        if not listed and name.casefold().endswith("uri"):
            listed = [resource.uri for resource in self._catalog.resources]
        results = self._results(tool, name, schema)
        if not listed and not results:
            listed = [match[2] for match in _EXAMPLES.finditer(str(schema.get("description", "")))]
        pattern = schema.get("pattern")
        return [value for value in [*listed, *results] if not pattern or re.search(pattern, str(value))]

    def _results(self, tool: CatalogTool, name: str, schema: Mapping[str, Any]) -> list[Any]:
        """Values from results that fit the parameter; of those, the ones that share the most words with the tool."""
        tool_words = set(meanings(tool.name))
        if schema.get("format") in _FORMATS or (tool_words & {"create", "new"} and name.casefold().endswith("name")):
            return []  # the name of a new thing must not exist yet
        kind = int if schema.get("type") == "integer" else str
        fitting = [
            (len(tool_words & (finding.about.union(finding.own))), finding.value)
            for source, known in self._findings.items()
            for finding in known
            if type(finding.value) is kind and finding.fits(name, self._takes[source])
        ]
        most = max((shared for shared, _ in fitting), default=0)
        return [value for shared, value in fitting if shared == most]

    def _queries(self) -> list[str]:
        """SQL queries of the tables that results have named."""
        names = [
            finding.value
            for source, known in self._findings.items()
            for finding in known
            if finding.fits("table_name", self._takes[source]) and str(finding.value).isidentifier()
        ]
        return [text.format(name) for name in names for text in ("SELECT COUNT(*) FROM {}", "SELECT * FROM {} LIMIT 3")]

    def _number(self, name: str, schema: Mapping[str, Any]) -> int | float:
        """A number within the schema's limits: small for durations and counts of steps."""
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        top = 3 if set(words(name)) & _SHORT else max(100, low + 10)
        high = min(schema.get("maximum", schema.get("exclusiveMaximum", top + 1) - 1), max(top, low))
        step = schema.get("multipleOf", 1)
        if schema.get("type") == "number" and high - low < 1:
            return round(self._rng.uniform(low, high), 3)
        first = -(-low // step)
        return int(self._rng.randint(int(first), max(int(high // step), int(first))) * step)

    def _shaped(self, name: str, schema: Mapping[str, Any]) -> str | None:
        """A text in the format that the schema or its description names. None: no known format is named."""
        description = f"{schema.get('description', '')} {schema.get('title', '')}"
        form = schema.get("format") or next((form for mark, form in _MARKS.items() if mark in description), None)
        if form is None and words(name)[-1:] in (["pattern"], ["glob"]) and "pattern" not in schema:
            return "*"
        drawn = _FORMATS[form](self._rng) if form in _FORMATS else None
        if drawn is None or (schema.get("pattern") and not re.search(schema["pattern"], drawn)):
            return None
        return drawn


def _others(arguments: Mapping[str, Any], name: str) -> list[Any]:
    return [value for other, value in arguments.items() if other != name]


def _properties(tool: CatalogTool) -> dict[str, Any]:
    return dict(tool.input_schema.get("properties") or {})


def _plain(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolves references, unions and lists of types in a schema; takes the first alternative that is not null."""
    for _ in range(10):  # a limit for references that lead to each other
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/"):
            target: Any = whole
            for key in reference[2:].split("/"):
                target = target.get(key, {}) if isinstance(target, Mapping) else {}
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
            continue
        options = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
        if isinstance(options, list) and options:
            chosen = next((option for option in options if option.get("type") != "null"), options[0])
            rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf", "allOf")}
            schema = {**rest, **chosen}
            continue
        break
    if isinstance(schema.get("type"), list):
        schema = {**schema, "type": next((kind for kind in schema["type"] if kind != "null"), "string")}
    return schema


def _day(rng: random.Random) -> date:
    return date(2024, 1, 1) + timedelta(days=rng.randrange(700))


def _clock(rng: random.Random) -> str:
    return f"{rng.randrange(24):02d}:{rng.choice((0, 5, 10, 15, 20, 30, 40, 45, 50)):02d}"


_FORMATS: dict[str, Callable[[random.Random], str]] = {
    "date": lambda rng: _day(rng).isoformat(),
    "time": _clock,
    "date-time": lambda rng: f"{_day(rng).isoformat()}T{_clock(rng)}:00Z",
    "email": lambda rng: f"{rng.choice(WORDS)}@example.com",
    "uri": lambda rng: f"https://example.com/{rng.choice(WORDS)}",
    "hostname": lambda rng: f"{rng.choice(WORDS)}.example.com",
    "ipv4": lambda rng: f"192.0.2.{rng.randrange(1, 255)}",
    "uuid": lambda rng: f"{rng.getrandbits(128):032x}"[:8] + "-0000-4000-8000-" + f"{rng.getrandbits(48):012x}",
}
_MARKS = {"HH:MM": "time", "YYYY-MM-DDT": "date-time", "ISO 8601": "date-time", "YYYY-MM-DD": "date"}
"""Formats by the text in a description that names them, for schemas without `format`."""
