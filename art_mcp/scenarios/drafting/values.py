"""Draws arguments for tool calls: from tables, schemas, what everybody knows, and results of the server's own tools."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from art_mcp.client.effects import words
from art_mcp.scenarios.catalog import Catalog, CatalogTool, plain, properties_of
from art_mcp.scenarios.drafting.gazetteer import draw_formatted_text, known_by, new_name, phrase
from art_mcp.scenarios.drafting.reserve import Reserve
from art_mcp.scenarios.drafting.tables import Tables, fits_table
from art_mcp.scenarios.drafting.value_pool import ValuePool
from art_mcp.scenarios.observe import meanings, singular
from art_mcp.scenarios.phrasing.language import LEXICON, VERBS, WORDS
from art_mcp.validation import fits_pattern
from art_mcp.worlds.place import Place
from trainer_server.wire import ConfigError

OPTIONAL = 0.3
"""Probability that a call gets an optional argument."""

FEW = 4
"""Values from results of which so few are known that those that anybody knows are taken as well."""

DISTINCT = 4
"""Attempts to draw an argument that differs from the other arguments of the call: no trip from Oslo to Oslo."""

MAX_DEPTH = 8
"""Maximum number of levels of an argument. A schema that contains itself has no end."""

MAX_VALUES = 500
"""Maximum number of values that are drawn for one call. A schema that names others, which name others, has many."""

_SMALL = {"duration", "seconds", "delay", "timeout", "wait", "sleep", "interval", "steps", "depth"}
_EXAMPLES = re.compile(
    r"(?:e\.g\.|example|such as|like|\bor\b|,|\()[^'\"`]{0,12}(['\"`])([^'\"`]{1,60})\1", re.IGNORECASE
)
_PATHS = frozenset(words("path file filepath filename directory dir folder destination source"))


class NoValue(LookupError):
    """No value is known for an argument."""


class Endless(NoValue):
    """The schema of an argument contains itself, or so much that no call has it."""


class Values:
    """Draws arguments for the tools of a server.

    Args:
        catalog: What the server offers.
        tables: Values that the user gave, by the name of a parameter.
        rng: Source of randomness.
        seed: Seed of the values that are held out.

    Raises:
        ConfigError: A table fits no parameter of any tool.
    """

    def __init__(self, catalog: Catalog, tables: Tables, rng: random.Random, seed: int = 0) -> None:
        self._catalog = catalog
        self._tables = {name.casefold(): list(values) for name, values in tables.items()}
        self._rng = rng
        self.pool = ValuePool(catalog)
        self.reserve = Reserve(seed)
        names = {name for tool in catalog.tools for name in properties_of(tool)}
        for name in tables:
            if not any(fits_table(parameter, name.casefold()) for parameter in names):
                alternatives = ", ".join(sorted(names))
                raise ConfigError(f"no tool of {catalog.name} has a parameter {name!r}; there are {alternatives}")

    def learn(self, tool: str, arguments: Mapping[str, Any], value: Any) -> None:
        """Keeps the values in a result, as `parse_result` returns it, that other calls may take as arguments."""
        self.pool.learn(tool, arguments, value)

    def learn_places(self, places: Iterable[Place]) -> None:
        """Keeps the paths of a world's places, for parameters such as `repo_path`, `database` or `directory`."""
        self.pool.learn_places(places)
        self.reserve.never(self.pool.places)

    def settle(self) -> None:
        """Chooses which of the values that are known now are held out. Called when the look-around is over."""
        for tool in self._catalog.tools:
            for name, schema in properties_of(tool).items():
                inner = plain(schema, tool.input_schema)
                if name in tool.input_schema.get("required", ()) and "enum" not in inner:
                    item = plain(inner.get("items") or {}, tool.input_schema) if inner.get("type") == "array" else inner
                    if item.get("type") in ("string", "integer", None):
                        parameter = singular(name) if item is not inner else name
                        self.reserve.domain(self._find_candidates(tool, parameter, item))
        records = (list(record.values()) for record in self.pool.records)
        self.reserve.domain([value for values in records for value in values if isinstance(value, str)])

    def arguments(
        self,
        tool: CatalogTool,
        *,
        guess: bool = True,
        base_arguments: Mapping[str, Any] | None = None,
        held: bool | None = None,
        optional: float = OPTIONAL,
    ) -> dict[str, Any]:
        """Draws the required arguments of a call, and sometimes an optional one.

        Args:
            tool: The tool to call.
            guess: Whether a required text may be any word.
            base_arguments: Arguments that the caller has already.
            held: Whether at least one value is a held-out one. False: none is. None: it does not matter.
            optional: Probability of an optional argument.

        Raises:
            NoValue: No value is known for a required argument, or none that `held` allows.
        """
        for _ in range(DISTINCT if held is not None else 1):
            arguments = _Draw(self, tool, guess, held, self._rng).arguments(dict(base_arguments or {}), optional)
            if held is None or held is bool(self.held_out(tool, arguments)):
                return arguments
        raise NoValue(f"{tool.name} has no values that are {'' if held else 'not '}held out")

    def held_out(self, tool: CatalogTool, arguments: Mapping[str, Any]) -> set[str]:
        """The values of a call that are held out from training, in their canonical form."""
        held_values = set()
        required = tool.input_schema.get("required", ())
        for name, schema in properties_of(tool).items():
            inner = plain(schema, tool.input_schema)
            is_count = inner.get("type") in ("integer", "number") and name not in required
            if name in arguments and "enum" not in inner and "const" not in inner and not is_count:
                held_values |= self.reserve.held_out(arguments[name])
        return held_values

    def _find_candidates(self, tool: CatalogTool, name: str, schema: Mapping[str, Any]) -> Sequence[Any]:
        """Known values of a parameter; empty where there are none.

        The sources, in order: the user's tables, the schema (`const`, `enum`, examples), the server's resources,
        results of tools, what everybody knows, and the text of the description.
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
        values = [*(schema.get("examples") or ()), *([schema["example"]] if "example" in schema else ())]
        if not values and name.casefold().endswith("uri"):
            values = [resource.uri for resource in self._catalog.resources]
        made_up = is_new(tool, name) or is_text(name)
        results = [] if made_up else self.pool.fitting(tool, _as_path(tool, name), schema)
        if schema.get("type") != "integer" and len(results) < FEW and not made_up:
            values = values or list(known_by(name, str(schema.get("description", ""))))
            if not values and not results:
                values = [match[2] for match in _EXAMPLES.finditer(str(schema.get("description", "")))]
        return [value for value in [*values, *results] if fits_pattern(schema.get("pattern"), str(value))]


def is_new(tool: CatalogTool, name: str) -> bool:
    """Whether a parameter takes the name or the path of something that must not be there yet."""
    tool_words, name_parts = tool.words, words(name)
    verb = next((VERBS[word] for word in tool_words if word in VERBS), None)
    if name_parts[:1] and name_parts[0] in WORDS.goals and (name_parts[-1] in _PATHS or name_parts[-1] == "name"):
        return True
    if not (verb and verb.makes) or set(name_parts) & (WORDS.origins | {"id"}):
        return False
    own = {singular(word) for word in tool_words}
    if name_parts[-1:] == ["path"]:
        return set(name_parts[:-1]) <= {"file", "directory", "dir", "folder", "full", "absolute"}
    return name_parts[-1:] in (["title"], ["filename"]) or (
        name_parts[-1:] == ["name"]
        and (len(name_parts) == 1 or singular(name_parts[0]) in own)
        and "add" not in tool_words
    )


def _as_path(tool: CatalogTool, name: str) -> str:
    """The name of a parameter; `path` for the `source` of a tool that moves or copies files."""
    moves = len(words(name)) == 1 and words(name)[0] in WORDS.origins
    return "path" if moves and {"file", "directory"} & set(meanings(" ".join(tool.words))) else name


def is_text(name: str) -> bool:
    """Whether a parameter takes any text, such as a message."""
    return singular(words(name)[-1] if words(name) else name) in WORDS.texts or words(name)[-1:] == ["contents"]


class _Draw:
    """Draws the arguments of one call."""

    def __init__(self, values: Values, tool: CatalogTool, guess: bool, held: bool | None, rng: random.Random) -> None:
        self._values = values
        self._tool = tool
        self._guess = guess
        self._held = held
        self._rng = rng
        self._drawn: dict[str, Any] = {}
        self._count = 0
        self._within: list[int] = []
        """The properties of the objects that are being drawn, one in the other, by their identity; 0: of a list."""

    def arguments(self, base_arguments: dict[str, Any], optional: float) -> dict[str, Any]:
        properties = {name: schema for name, schema in properties_of(self._tool).items() if name not in base_arguments}
        self._drawn = dict(base_arguments)
        for name in self._tool.input_schema.get("required", ()):
            for _ in range(DISTINCT):
                others = [value for other, value in self._drawn.items() if other != name]
                if name in properties and (name not in self._drawn or self._drawn[name] in others):
                    self._drawn[name] = self.draw(name, properties[name])
        free = [name for name in properties if name not in self._drawn]
        if free and self._rng.random() < optional:
            name = self._rng.choice(free)  # a single one, as optional arguments may exclude each other
            guess, self._guess = self._guess, False
            try:
                value = self.draw(name, properties[name])
            except NoValue:
                value = properties[name].get("default")
            self._guess = guess
            if value is not None and value != properties[name].get("default") and value not in ("", [], {}):
                self._drawn[name] = value
        return {name: value for name, value in self._drawn.items() if name not in base_arguments}

    def draw(self, name: str, schema: Mapping[str, Any]) -> Any:
        """Draws a value for a parameter. Raises NoValue."""
        self._count += 1
        if self._count > MAX_VALUES:
            raise Endless(f"{self._tool.name}'s {name} has more than {MAX_VALUES} values")
        schema = plain(schema, self._tool.input_schema)
        candidates = self._values._find_candidates(self._tool, name, schema)
        if candidates:
            return self._choice(candidates, free="enum" in schema or "const" in schema)
        kind = schema.get("type")
        if kind == "boolean":
            default = schema.get("default")
            return not default if isinstance(default, bool) else self._rng.random() < 0.7
        if kind in ("integer", "number"):
            return self._fresh(lambda: self._number(name, schema))
        if kind in ("array", "object"):
            own = id(schema["properties"]) if kind == "object" and schema.get("properties") else 0
            if len(self._within) == MAX_DEPTH or (own and own in self._within):
                raise Endless(f"{self._tool.name}'s {name} contains itself, or more than {MAX_DEPTH} levels")
            self._within.append(own)
            try:
                return self._list(name, schema) if kind == "array" else self._object(schema)
            finally:
                self._within.pop()
        if kind in ("string", None) and (text := self._text(name, schema)) is not None:
            return text
        if "default" in schema and schema["default"] is not None:
            return schema["default"]
        raise NoValue(f"nothing is known of {self._tool.name}'s {name}")

    def _choice(self, candidates: Sequence[Any], free: bool = False) -> Any:
        """One of several values: a held-out one where that is wanted and there is one. free: none is held out."""
        if free or self._held is None:
            return self._rng.choice(candidates)
        fitting = [value for value in candidates if bool(self._values.reserve.held_out(value)) is self._held]
        if not fitting and not self._held:
            raise NoValue("all values are held out")
        return self._rng.choice(fitting or candidates)

    def _fresh(self, make: Any) -> Any:
        """A value that is made up: a held-out one if that is wanted."""
        for _ in range(40):
            value = make()
            if self._held is None or bool(self._values.reserve.held_out(value)) is self._held:
                break
        return value

    def _list(self, name: str, schema: Mapping[str, Any]) -> list[Any]:
        item = schema.get("items") or {"type": "string"}
        inner = plain(item, self._tool.input_schema)
        least = max(int(schema.get("minItems", 1)), 1)
        most = max(least, 1 if inner.get("type") == "object" else self._rng.choice((1, 1, 2)))
        items: list[Any] = []
        for _ in range(most):
            try:
                value = self.draw(singular(name), item)
            except Endless:
                if schema.get("minItems"):
                    raise
                break  # an empty list is its end
            if value not in items:
                items.append(value)
        return items

    def _object(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        inner = schema.get("properties", {})
        required = [name for name in schema.get("required", list(inner)) if name in inner]
        verb = next((VERBS[word] for word in self._tool.words if word in VERBS), None)
        if verb and verb.removes:
            whole = self._values.pool.records_with(required)
            if whole:
                return dict(self._choice(whole))
        values: dict[str, Any] = {}
        for name in required:
            for _ in range(DISTINCT):
                if name not in values or values[name] in [value for other, value in values.items() if other != name]:
                    values[name] = self.draw(name, inner[name])
        return values

    def _text(self, name: str, schema: Mapping[str, Any]) -> str | None:
        """A text for a parameter of which no value is listed. None: nothing is known."""
        text = draw_formatted_text(name, schema, self._rng)
        if text is not None:
            return str(self._fresh(lambda: draw_formatted_text(name, schema, self._rng)))
        parts, pool = words(name), self._values.pool
        if parts[:1] == ["old"] and (lines := pool.lines_of(self._drawn.values())):
            return str(self._choice(lines))
        if parts[-1:] in (["pattern"], ["glob"], ["patterns"]) and "pattern" not in schema:
            return str(self._choice(pool.globs() or ["*"]))
        if "pattern" in schema:
            return None
        if parts and parts[-1] in WORDS.search_terms and (names := pool.names()):
            return str(self._choice(names))
        new = is_new(self._tool, name)
        if new and parts[-1] in _PATHS and (folders := pool.directories()):
            return str(self._fresh(lambda: self._new_path(folders)))
        if not (self._guess or new):
            return None
        if is_text(name):
            return str(self._fresh(lambda: phrase(self._rng)))
        return str(self._fresh(lambda: new_name(self._rng)))

    def _new_path(self, folders: Sequence[str]) -> str:
        """The path of a new file, or of a new directory for tools of directories."""
        endings = self._values.pool.endings()
        end = "" if "directory" in meanings(" ".join(self._tool.words)) or not endings else self._rng.choice(endings)
        source = next((str(value) for other, value in self._drawn.items() if set(words(other)[:1]) & WORDS.origins), "")
        if source:
            end = f".{source.rpartition('.')[2]}" if "." in source.rpartition("/")[2] else ""
        return f"{self._rng.choice(folders)}/{new_name(self._rng)}{end}"

    def _number(self, name: str, schema: Mapping[str, Any]) -> int | float:
        """A number within the schema's limits: small for durations, counts and limits."""
        least, most = (schema.get(f"exclusive{end}", schema.get(end.lower())) for end in ("Minimum", "Maximum"))
        narrow = schema.get("type") == "number" and None not in (least, most)
        inside = min(1, (most - least) / 4) if narrow else 1  # how far from an exclusive limit
        low = schema.get("minimum", schema.get("exclusiveMinimum", 1 - inside) + inside)
        parts = set(words(name))
        few = parts & (WORDS.limits | LEXICON.numbers.keys())
        top = 3 if parts & _SMALL else 9 if few else max(100, low + 10)
        high = min(schema.get("maximum", schema.get("exclusiveMaximum", top + inside) - inside), max(top, low))
        step = schema.get("multipleOf", 1)
        if schema.get("type") == "number" and high - low < 1:
            return round(self._rng.uniform(low, high), 3)
        first = -(-low // step)
        return int(self._rng.randint(int(first), max(int(high // step), int(first))) * step)
