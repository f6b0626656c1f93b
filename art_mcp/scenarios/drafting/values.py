"""Draws arguments for tool calls. What may be an argument is tried: calls that worked decide what is drawn again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.scenarios.catalog import Catalog, CatalogTool, plain, properties_of
from art_mcp.scenarios.drafting.arms import Arm, Arms
from art_mcp.scenarios.drafting.errors import is_foreign
from art_mcp.scenarios.drafting.examples import example_calls, like, numeric_literals
from art_mcp.scenarios.drafting.pools import Origin, Pool, Slot, Source, parameter_name
from art_mcp.scenarios.drafting.reserve import Reserve
from art_mcp.scenarios.drafting.tables import Tables, fits_table
from art_mcp.scenarios.drafting.value_graph import ValueGraph
from art_mcp.scenarios.drafting.world_values import all_findings
from art_mcp.scenarios.observe import leaves
from art_mcp.scenarios.phrasing.language import VERBS
from art_mcp.worlds.alias import alias
from art_mcp.worlds.place import Place
from trainer_server.wire import ConfigError

OPTIONAL = 0.3
"""Probability that a call gets an optional argument."""

DISTINCT = 4
"""Attempts to draw an argument that differs from the other arguments of the call: no trip from Oslo to Oslo."""

MAX_DEPTH = 8
"""Maximum number of levels of an argument. A schema that contains itself has no end."""

MAX_VALUES = 500
"""Maximum number of values that are drawn for one call. A schema that names others, which name others, has many."""

TOGETHER = 0.95
"""Probability that a value is one that was seen together with the other arguments of the call, if there is one."""

ACCEPTED = 0.4
"""Probability that a value is one that a call took already, if there is one."""

LONG = 160
"""Characters of an object of which a schema says nothing, at most."""

EXAMPLE = 0.5
"""Probability that a call is like one that the tool's description writes out."""

EXAMPLE_TRIES = 4
"""Calls like those of a description that are tried, if none works."""

CLOSE = 0.02
"""Sources whose rates differ by less are drawn from alike."""


class NoValue(LookupError):
    """No value is known for an argument.

    Args:
        message: The reason.
        parameter: The parameter. Empty: several, or it is known and only not for this purpose.
    """

    def __init__(self, message: str, parameter: str = "") -> None:
        super().__init__(message)
        self.parameter = parameter


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
        self.graph = ValueGraph(catalog)
        self.reserve = Reserve(seed)
        self._arms = Arms(catalog, self.graph)
        self._examples = {tool.name: example_calls(tool) for tool in catalog.tools}
        self._example_tries: Counter[str] = Counter()
        names = {name for tool in catalog.tools for name in properties_of(tool)}
        for name in tables:
            if not any(fits_table(parameter, name.casefold()) for parameter in names):
                alternatives = ", ".join(sorted(names))
                raise ConfigError(f"no tool of {catalog.name} has a parameter {name!r}; there are {alternatives}")

    def learn(self, tool: str, arguments: Mapping[str, Any], value: Any) -> None:
        """Keeps the values in a result, as `parse_result` returns it, that other calls may take as arguments."""
        self.graph.learn(tool, arguments, value)

    def learn_places(self, places: Iterable[Place]) -> None:
        """Keeps the paths of a world's places, and what they show: files, tables, columns, cells."""
        places = list(places)
        values, records = all_findings(places)
        self.graph.places += [alias(place) for place in places]
        self.graph.add(Origin.WORLD, values)
        self.graph.learn_records(records)
        self.reserve.never(self.graph.places)

    def tool(self, name: str) -> CatalogTool:
        """The tool with a name."""
        return self._catalog.tool(name)

    def settle(self) -> None:
        """Chooses which of the values that are known now are held out. Called when the exploration is over."""
        for tool in self._catalog.tools:
            for name, schema in properties_of(tool).items():
                inner = plain(schema, tool.input_schema)
                if name in tool.input_schema.get("required", ()) and "enum" not in inner:
                    is_list = inner.get("type") == "array"
                    item = plain(inner.get("items") or {}, tool.input_schema) if is_list else inner
                    if item.get("type") in ("string", "integer", None):
                        self.reserve.domain(self.candidates(tool, f"{name}.*" if is_list else name, item))
        records = (list(record.values()) for record in self.graph.records)
        self.reserve.domain([value for values in records for value in values if isinstance(value, str)])

    def arguments(
        self,
        tool: CatalogTool,
        *,
        base_arguments: Mapping[str, Any] | None = None,
        held: bool | None = None,
        optional: float = OPTIONAL,
        explore: bool = False,
        rng: random.Random | None = None,
        pools: Mapping[Source, Pool] | None = None,
    ) -> dict[str, Any]:
        """Draws the required arguments of a call, and sometimes an optional one.

        Args:
            tool: The tool to call.
            base_arguments: Arguments that the caller has already.
            held: Whether at least one value is a held-out one. False: none is. None: it does not matter.
            optional: Probability of an optional argument.
            explore: Whether to try out what is most promising, instead of what worked.
            rng: Source of randomness. None: the one of the generation.
            pools: Values that are in this copy of the world alone.

        Raises:
            NoValue: No value is known for a required argument, or none that `held` allows.
        """
        for _ in range(DISTINCT if held is not None else 1):
            draw = _Draw(self, tool, held, rng or self._rng, (pools or {}) if explore else None)
            arguments = draw.arguments(dict(base_arguments or {}), optional)
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

    def candidates(self, tool: CatalogTool, path: str, schema: Mapping[str, Any]) -> list[Any]:
        """The values that a parameter takes as far as is known; empty where they are made up.

        Args:
            tool: The tool.
            path: The parameter; of a nested one all keys, as in a `Slot`.
            schema: Its schema.
        """
        slot = (tool.name, path)
        if (fixed := self.fixed_values(path, schema)) is not None:
            return list(fixed)
        best = self.best_arms(slot, self._arms.of(tool, path, schema))
        values = [value for arm in best if not arm.made_up for value in arm.values()]
        return [value for value in dict.fromkeys(values) if not self.graph.is_refused(slot, value)]

    def refers(self, tool: CatalogTool, path: str, schema: Mapping[str, Any]) -> bool:
        """Whether a parameter takes the name of something that is there: values that the server showed are taken, and
        new ones are not."""
        slot = (tool.name, path)
        if self.fixed_values(path, schema) is not None:
            return bool(self.table_of(path))
        arms = self._arms.of(tool, path, schema)
        if any(arm.made_up and self.graph.evidence(slot, arm.source).hits > 0 for arm in arms):
            return False
        return any(arm.seen for arm in self.best_arms(slot, arms))

    def example(self, tool: CatalogTool, rng: random.Random, explore: bool) -> dict[str, Any]:
        """Arguments like those of a call in the tool's description. Empty: there is none that works, as far as is
        known, or none is wanted this time.

        Args:
            tool: The tool.
            rng: Source of randomness.
            explore: Whether one may be tried of which nothing is known.
        """
        examples = self._examples[tool.name]
        if not examples or rng.random() >= EXAMPLE:
            return {}
        worked = [arguments for arguments, _ in self.graph.results.get(tool.name, ())]
        proven = [example for example in examples if any(_is_like(example, arguments) for arguments in worked)]
        if not proven and explore and self._example_tries[tool.name] < EXAMPLE_TRIES:
            self._example_tries[tool.name] += 1
            inside = bool(self.graph.places) or not tool.reads
            proven = [each for each in examples if not (inside and any(map(is_foreign, _texts(each))))]
        return like(rng.choice(proven), rng) if proven else {}

    def example_values(self, tool: CatalogTool, path: str, schema: Mapping[str, Any]) -> list[Any]:
        """Values other than texts that descriptions write out for a parameter.

        Args:
            tool: The tool.
            path: The parameter, as in a `Slot`.
            schema: Its schema, without references.
        """
        values = [example[path] for example in self._examples[tool.name] if path in example]
        kind = {"array": list, "object": dict}.get(str(schema.get("type")))
        about = str(schema.get("description", ""))
        return [value for value in values if not isinstance(value, str)] or (
            numeric_literals(about, kind) if kind else []
        )

    def table_of(self, path: str) -> list[Any] | None:
        """The table of the user for a parameter."""
        name = parameter_name(path)
        table = max((table for table in self._tables if fits_table(name, table)), key=len, default=None)
        return None if table is None else self._tables[table]

    def fixed_values(self, path: str, schema: Mapping[str, Any]) -> Sequence[Any] | None:
        """The values that a parameter must have: the user's table, `const` or `enum`. None: it may have others."""
        if (table := self.table_of(path)) is not None:
            return table
        if "const" in schema:
            return [schema["const"]]
        if schema.get("enum"):
            return [value for value in schema["enum"] if value is not None]
        return None

    def best_arms(self, slot: Slot, arms: Sequence[Arm]) -> list[Arm]:
        """The sources whose values worked; if none did, the most promising ones."""
        rates = {arm.source: self._arms.rate(slot, arm) for arm in arms}
        proven = [arm for arm in arms if self.graph.evidence(slot, arm.source).hits > 0]
        if proven:
            most = max(rates[arm.source] for arm in proven)
            return [arm for arm in proven if rates[arm.source] >= most / 2]
        most = max(rates.values(), default=0.0)
        return [arm for arm in arms if rates[arm.source] >= most - CLOSE]


def _texts(arguments: Mapping[str, Any]) -> list[str]:
    return [leaf for _, leaf in leaves(dict(arguments)) if isinstance(leaf, str)]


def _is_like(example: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Whether the arguments of a call are those of an example, but for its numbers."""
    for name, value in example.items():  # texts first: each draw compares all examples with all results
        if name not in arguments or (isinstance(value, str) and arguments[name] != value):
            return False
    return _texts({name: arguments[name] for name in example}) == _texts(example)


class _Draw:
    """Draws the arguments of one call."""

    def __init__(
        self,
        values: Values,
        tool: CatalogTool,
        held: bool | None,
        rng: random.Random,
        pools: Mapping[Source, Pool] | None,
    ) -> None:
        self._values = values
        self._graph = values.graph
        self._tool = tool
        self._held = held
        self._rng = rng
        self._pools = pools
        self._drawn: dict[str, Any] = {}
        self._leaves: list[Any] = []
        self._count = 0
        self._optional = False
        self._within: list[int] = []
        """The properties of the objects that are being drawn, one in the other, by their identity; 0: of a list."""

    def arguments(self, base_arguments: dict[str, Any], optional: float) -> dict[str, Any]:
        properties = {name: schema for name, schema in properties_of(self._tool).items() if name not in base_arguments}
        self._drawn = dict(base_arguments)
        self._leaves = [value for value in base_arguments.values() if isinstance(value, str | int)]
        example = self._values.example(self._tool, self._rng, self._pools is not None)
        self._drawn |= {name: value for name, value in example.items() if name in properties}
        for name in self._tool.input_schema.get("required", ()):
            for _ in range(DISTINCT):
                others = [value for other, value in self._drawn.items() if other != name]
                again = name not in self._drawn or self._drawn[name] in others
                if again and name in properties and name not in example:
                    self._drawn[name] = self.draw(name, properties[name])
        self._draw_optional(properties, optional)
        return {name: value for name, value in self._drawn.items() if name not in base_arguments}

    def _draw_optional(self, properties: Mapping[str, Any], optional: float) -> None:
        """Adds optional arguments: most of the time a single one, as they may exclude each other."""
        names, every = self._graph.necessary.get(self._tool.name, ([], False))
        necessary = [name for name in names if name in properties]
        if every or not any(name in self._drawn for name in necessary):
            for name in necessary if every else necessary and [self._rng.choice(necessary)]:
                self._drawn[name] = self.draw(name, properties[name])
        left_out = {*necessary, *self._drawn, *self._graph.exclusions[self._tool.name]}
        free = [name for name in properties if name not in left_out]
        bare = bool(free) and (not self._drawn or self._only_names(properties))
        self._optional = True
        while free and self._rng.random() < max(optional, 0.7 * bare):
            name = free.pop(self._rng.randrange(len(free)))
            try:
                value = self.draw(name, properties[name])
            except NoValue:
                value = properties[name].get("default")
            if value is not None and value != properties[name].get("default") and value not in ("", [], {}):
                self._drawn[name] = value
                bare = False
                optional /= 3

    def _only_names(self, properties: Mapping[str, Any]) -> bool:
        """Whether a call that edits something names it alone so far, and does not say how."""
        return any(VERBS[word].edits for word in self._tool.words if word in VERBS) and all(
            self._values.refers(self._tool, name, plain(properties[name], self._tool.input_schema))
            for name in self._drawn
            if name in properties
        )

    def draw(self, path: str, schema: Mapping[str, Any]) -> Any:
        """Draws a value for a parameter. path: the keys that lead to it. Raises NoValue."""
        self._count += 1
        if self._count > MAX_VALUES:
            raise Endless(f"{self._tool.name}'s {path} has more than {MAX_VALUES} values")
        is_union, schema = "anyOf" in schema, plain(schema, self._tool.input_schema)
        if fixed := self._values.fixed_values(path, schema):
            return self._choice(fixed, free=self._values.table_of(path) is None)
        kind = schema.get("type")
        if kind == "boolean":
            default = schema.get("default")
            return not default if isinstance(default, bool) else self._rng.random() < 0.7
        is_container = kind in ("array", "object")
        if (is_container or is_union) and (values := self._values.example_values(self._tool, path, schema)):
            return like(self._rng.choice(values), self._rng)
        if is_container and not schema.get("examples"):
            return self._container(path, schema)
        return self._scalar(path, schema)

    def _scalar(self, path: str, schema: Mapping[str, Any]) -> Any:
        """A value of the source that seems best, which is noted."""
        slot = (self._tool.name, path)
        arms = self._values._arms.of(self._tool, path, schema, self._pools)
        if self._optional:
            arms = [
                arm
                for arm in arms
                if self._graph.evidence(slot, arm.source).hits > 0
                or (arm.prior >= (0.5 if arm.made_up else 0.3) if self._pools is not None else arm.prior >= 0.75)
            ]
        order = self._order(slot, arms)
        # Exploring, a source of which all values were refused comes after all others.
        for arm, refused in [(arm, False) for arm in order] + [(arm, True) for arm in order]:
            try:
                value = self._of_arm(slot, arm, refused or self._pools is None)
            except NoValue:
                continue
            self._graph.note_source(slot, value, arm.source)
            self._leaves.append(value)
            return value
        if "default" in schema and schema["default"] is not None:
            return schema["default"]
        raise NoValue(f"nothing is known of {self._tool.name}'s {path}", path)

    def _order(self, slot: Slot, arms: Sequence[Arm]) -> list[Arm]:
        """The sources in the order in which they are tried: by their rates, and those that are alike by chance."""
        shuffled = self._rng.sample(list(arms), len(arms))
        rates = {arm.source: self._values._arms.rate(slot, arm) for arm in shuffled}
        if self._pools is not None:
            return sorted(shuffled, key=lambda arm: -rates[arm.source] - self._rng.uniform(0, CLOSE))
        best = self._values.best_arms(slot, shuffled)
        sizes = {arm.source: min(len(arm.values()), 12) if not arm.made_up else 4 for arm in best}
        first = sorted(best, key=lambda arm: self._rng.random() ** (1 / max(sizes[arm.source], 1)), reverse=True)
        rest = [arm for arm in shuffled if arm not in best]
        return [*first, *sorted(rest, key=lambda arm: -rates[arm.source])] if not self._proven(slot, best) else first

    def _proven(self, slot: Slot, arms: Iterable[Arm]) -> bool:
        return any(self._graph.evidence(slot, arm.source).hits > 0 for arm in arms)

    def _of_arm(self, slot: Slot, arm: Arm, refused: bool) -> Any:
        """A value of a source. refused: whether it may be one that this slot refused, if all were. Raises NoValue."""
        if arm.made_up:
            return self._fresh(lambda: arm.make(self._rng, self._drawn))
        values = arm.values(self._drawn)
        if not refused:
            values = [value for value in values if not self._graph.is_refused_here(slot, value)]
        values = [value for value in values if not self._graph.is_refused(slot, value)] or values
        if not values:
            raise NoValue(f"{slot[0]}'s {slot[1]} has no values")
        values = [value for value in values if not (isinstance(value, str) and value in self._leaves)] or values
        together = self._graph.neighbours(values, self._leaves) if self._leaves else []
        if self._optional and self._pools is None and arm.seen and not together and self._graph.knows(self._leaves):
            raise NoValue(f"{slot[0]}'s {slot[1]} has no values that go with the others")
        if together and self._rng.random() < TOGETHER:
            values = together
        if self._pools is None and self._rng.random() < ACCEPTED:
            values = [value for value in values if self._graph.is_accepted(slot, value)] or values
        return self._choice(values)

    def _choice(self, candidates: Sequence[Any], free: bool = False) -> Any:
        """One of several values: a held-out one where that is wanted and there is one. free: whether none is."""
        if free or self._held is None:
            return self._rng.choice(candidates)
        fitting = [value for value in candidates if bool(self._values.reserve.held_out(value)) is self._held]
        if not (fitting or self._held):
            raise NoValue("all values are held out")
        return self._rng.choice(fitting or candidates)

    def _fresh(self, make: Callable[[], Any]) -> Any:
        """A value that is made up: a held-out one if that is wanted."""
        for _ in range(40):
            value = make()
            if value is None:
                raise NoValue("nothing fits")
            if self._held is None or bool(self._values.reserve.held_out(value)) is self._held:
                break
        return value

    def _container(self, path: str, schema: Mapping[str, Any]) -> Any:
        """A list or an object."""
        kind = schema["type"]
        own = id(schema["properties"]) if kind == "object" and schema.get("properties") else 0
        if len(self._within) == MAX_DEPTH or (own and own in self._within):
            raise Endless(f"{self._tool.name}'s {path} contains itself, or more than {MAX_DEPTH} levels")
        self._within.append(own)
        try:
            return self._list(path, schema) if kind == "array" else self._object(path, schema)
        finally:
            self._within.pop()

    def _list(self, path: str, schema: Mapping[str, Any]) -> list[Any]:
        item = schema.get("items") or {"type": "string"}
        inner = plain(item, self._tool.input_schema)
        least = max(int(schema.get("minItems", 1)), self._graph.least.get((self._tool.name, path), 1))
        most = max(least, 1 if inner.get("type") == "object" else self._rng.choice((1, 1, 2)))
        items: list[Any] = []
        for _ in range(3 * most):
            if len(items) == most:
                break
            try:
                value = self.draw(f"{path}.*", item)
            except Endless:
                if schema.get("minItems"):
                    raise
                break  # an empty list is its end
            if value not in items or (isinstance(value, int | float) and len(items) < least):
                items.append(value)
        return items

    def _object(self, path: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        inner = schema.get("properties", {})
        if not inner:  # it is like one that is there
            alike = [each for each in self._graph.records if len(canonical(each)) <= LONG and "[" not in str(each)]
            if not alike or self._optional:
                raise NoValue(f"nothing is known of {self._tool.name}'s {path}", path)
            record = dict(self._choice(self._nearest(alike)))
            others = schema.get("additionalProperties", True)
            if isinstance(others, bool):
                return record
            kinds: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float)}
            types = others.get("type", list(kinds))
            fitting = sum((kinds.get(kind, ()) for kind in ([types] if isinstance(types, str) else types)), ())
            names = [name for name in record if isinstance(record[name], fitting)]
            # Its keys may have to be numbers, say: none may be right.
            return {name: record[name] for name in self._rng.sample(names, self._rng.randint(0, len(names)))}
        required = [name for name in schema.get("required", ()) if name in inner]
        if not required:  # all of them may exclude one another
            required = self._rng.sample(list(inner), min(len(inner), self._rng.choice((1, 1, 2))))
        verb = next((VERBS[word] for word in self._tool.words if word in VERBS), None)
        if verb and verb.removes:
            whole = self._graph.records_with(required)
            if whole:
                return dict(self._choice(whole))
        values: dict[str, Any] = {}
        for name in required:
            for _ in range(DISTINCT):
                if name not in values or values[name] in [value for other, value in values.items() if other != name]:
                    values[name] = self.draw(f"{path}.{name}", inner[name])
        return values

    def _nearest(self, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The records of which the most keys, and then the most values, were seen together with the other arguments of
        the call: rows of the table that it names."""
        shares = [
            tuple(
                len(self._graph.neighbours(part, self._leaves)) / len(record)
                for part in ([*record], [*record.values()])
            )
            for record in records
        ]
        most = max(shares)
        return [record for record, share in zip(records, shares, strict=True) if share == most]
