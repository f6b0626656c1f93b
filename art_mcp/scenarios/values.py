"""Arguments for tools from what is known of them: tables, schemas, descriptions, and results of other tools."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from art_mcp.scenarios.catalog import Catalog, CatalogTool, words
from art_mcp.scenarios.observe import Finding, findings, meanings, singular
from art_mcp.scenarios.tables import Tables, fits_table
from trainer_server.wire import ConfigError

WORDS = ("harbour", "lantern", "orchard", "granite", "meadow", "compass", "willow", "ember", "sparrow", "cobalt")
"""For parameters of which nothing is known but that they are text."""

KNOWN = 200
"""Found values of one kind that are kept."""

OPTIONAL = 0.4
"""How often a call gets an optional argument."""

DISTINCT = 4
"""Times that an argument is drawn which is the same as another one of the call: no trip from Oslo to Oslo."""

_SHORT = {"duration", "seconds", "delay", "timeout", "wait", "sleep", "interval", "steps"}
_EXAMPLES = re.compile(
    r"(?:e\.g\.|example|such as|like|\bor\b|,|\()[^'\"`]{0,12}(['\"`])([^'\"`]{1,60})\1", re.IGNORECASE
)


class NoValue(LookupError):
    """Nothing is known that an argument could be."""


class Values:
    """Draws arguments. tables: given by the user. What results of tools are worth is learnt by `learn`."""

    def __init__(self, catalog: Catalog, tables: Tables, rng: random.Random) -> None:
        self._catalog = catalog
        self._tables = {name.casefold(): list(values) for name, values in tables.items()}
        self._rng = rng
        self._found: dict[str, list[Finding]] = {}
        self._takes = {tool.name: {frozenset(meanings(one)) for one in _properties(tool)} for tool in catalog.tools}
        names = {name for tool in catalog.tools for name in _properties(tool)}
        for name in tables:
            if not any(fits_table(parameter, name.casefold()) for parameter in names):
                listed = ", ".join(sorted(names))
                raise ConfigError(f"no tool of {catalog.name} has a parameter {name!r}; there are {listed}")

    def learn(self, tool: str, value: Any) -> None:
        """Keeps what a result of a tool offers as arguments."""
        known = self._found.setdefault(tool, [])
        for found in findings(tool, value):
            if found not in known and len(known) < KNOWN:
                known.append(found)

    def sources(self, tool: str, name: str, value: Any) -> list[Finding]:
        """What a result of a tool has for a parameter of another one."""
        return [one for one in findings(tool, value) if one.path is not None and one.fits(name, self._takes[tool])]

    def arguments(self, tool: CatalogTool, *, guess: bool = True, given: Iterable[str] = ()) -> dict[str, Any]:
        """Arguments for a call; optional ones now and then. given: names that are not needed. Raises NoValue, without
        `guess` also where a required text could be any word."""
        properties = {name: one for name, one in _properties(tool).items() if name not in given}
        required = tool.input_schema.get("required", ())
        found: dict[str, Any] = {}
        for name in required:
            for _ in range(DISTINCT):
                if name in properties and (name not in found or found[name] in _others(found, name)):
                    found[name] = self.draw(tool, name, properties[name], guess=guess)
        optional = [name for name in properties if name not in found]
        if optional and self._rng.random() < OPTIONAL:
            name = self._rng.choice(optional)  # one at a time: options may exclude each other
            try:
                value = self.draw(tool, name, properties[name], guess=False)
            except NoValue:
                return found
            if value != properties[name].get("default"):
                found[name] = value
        return found

    def draw(self, tool: CatalogTool, name: str, schema: Mapping[str, Any], *, guess: bool = True) -> Any:
        """One value of a parameter. Raises NoValue."""
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
            return [one for at, one in enumerate(drawn) if one not in drawn[:at]]
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
        """What somebody has listed: the user, the schema, its description, the server's resources and results."""
        table = max((one for one in self._tables if fits_table(name, one)), key=len, default=None)
        if table is not None:
            return self._tables[table]
        if "const" in schema:
            return [schema["const"]]
        if schema.get("enum"):
            return [one for one in schema["enum"] if one is not None]
        if schema.get("type") not in ("string", "integer", None):
            return list(schema.get("examples") or ())
        if "sql" in words(f"{name} {schema.get('description', '')} {tool.description}") and name in ("query", "sql"):
            return self._queries()
        listed = [*(schema.get("examples") or ()), *([schema["example"]] if "example" in schema else ())]
        if not listed and name.casefold().endswith("uri"):
            listed = [one.uri for one in self._catalog.resources]
        found = self._results(tool, name, schema)
        if not listed and not found:
            listed = [match[2] for match in _EXAMPLES.finditer(str(schema.get("description", "")))]
        pattern = schema.get("pattern")
        return [one for one in [*listed, *found] if not pattern or re.search(pattern, str(one))]

    def _results(self, tool: CatalogTool, name: str, schema: Mapping[str, Any]) -> list[Any]:
        """Values that results call by this name; of those, the ones that have most to do with the tool."""
        said = set(meanings(tool.name))
        if schema.get("format") in _FORMATS or (said & {"create", "new"} and name.casefold().endswith("name")):
            return []  # what is made is to be new
        kind = int if schema.get("type") == "integer" else str
        fitting = [
            (len(said & (one.about.union(one.own))), one.value)
            for source, known in self._found.items()
            for one in known
            if type(one.value) is kind and one.fits(name, self._takes[source])
        ]
        nearest = max((near for near, _ in fitting), default=0)
        return [value for near, value in fitting if near == nearest]

    def _queries(self) -> list[str]:
        """Queries of the tables that results have named."""
        names = [
            one.value
            for source, known in self._found.items()
            for one in known
            if one.fits("table_name", self._takes[source]) and str(one.value).isidentifier()
        ]
        return [text.format(name) for name in names for text in ("SELECT COUNT(*) FROM {}", "SELECT * FROM {} LIMIT 3")]

    def _number(self, name: str, schema: Mapping[str, Any]) -> int | float:
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        top = 3 if set(words(name)) & _SHORT else max(100, low + 10)
        high = min(schema.get("maximum", schema.get("exclusiveMaximum", top + 1) - 1), max(top, low))
        step = schema.get("multipleOf", 1)
        if schema.get("type") == "number" and high - low < 1:
            return round(self._rng.uniform(low, high), 3)
        first = -(-low // step)
        return int(self._rng.randint(int(first), max(int(high // step), int(first))) * step)

    def _shaped(self, name: str, schema: Mapping[str, Any]) -> str | None:
        """A text of a form that the schema or its description names."""
        told = f"{schema.get('description', '')} {schema.get('title', '')}"
        form = schema.get("format") or next((form for mark, form in _MARKS.items() if mark in told), None)
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
    """A schema without references, unions and lists of types: its first alternative that is not null."""
    for _ in range(10):  # references to references end somewhere
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/"):
            found: Any = whole
            for key in reference[2:].split("/"):
                found = found.get(key, {}) if isinstance(found, Mapping) else {}
            schema = {**found, **{key: value for key, value in schema.items() if key != "$ref"}}
            continue
        options = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
        if isinstance(options, list) and options:
            chosen = next((one for one in options if one.get("type") != "null"), options[0])
            rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf", "allOf")}
            schema = {**rest, **chosen}
            continue
        break
    if isinstance(schema.get("type"), list):
        schema = {**schema, "type": next((one for one in schema["type"] if one != "null"), "string")}
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
"""What descriptions say where the schema has no format."""
