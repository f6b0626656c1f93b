"""Where the value of a parameter may come from: what the server and its world show, and what can be made up.

Each source has a prior: how promising it seems by names, types and descriptions. It only says what is tried first.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from art_mcp.client.effects import words
from art_mcp.scenarios.catalog import Catalog, CatalogTool, plain, properties_of
from art_mcp.scenarios.drafting.digests import is_digest, is_short_digest
from art_mcp.scenarios.drafting.errors import is_foreign, offers
from art_mcp.scenarios.drafting.examples import example_calls
from art_mcp.scenarios.drafting.gazetteer import draw_formatted_text, known_by, mixture, new_name, phrase
from art_mcp.scenarios.drafting.pools import Origin, Pool, Slot, Source, alike, parameter_name
from art_mcp.scenarios.drafting.value_graph import ValueGraph
from art_mcp.scenarios.observe import Finding, changes_with_time, leaves, meanings, singular
from art_mcp.scenarios.phrasing.language import LEXICON, VERBS, WORDS
from art_mcp.validation import fits_pattern

FEW = 4
"""Values from results of which so few are known that those that anybody knows are taken as well."""

FITTING = 0.7
"""Prior of a source whose words are those of the parameter."""

SAME_NAME = 0.9
"""What is left of the rate of a source for a parameter of the same name of another tool."""

RELATED_NAME = 0.65
"""The same where the names differ in a first word: `category`, `target_category`."""

_SMALL = 3
_WRITTEN = frozenset({"examples", "described", "offered", "default"})
"""Sources of values that somebody wrote into a schema."""
_EXAMPLES = re.compile(
    r"(?:e\.g\.|example|such as|like|\bor\b|,|\()[^'\"`]{0,12}(['\"`])([^'\"`]{1,60})\1", re.IGNORECASE
)
_KINDS: dict[str, tuple[type, ...]] = {"integer": (int,), "number": (int, float)}
_FORMATS = ("date", "time", "date-time", "email", "uri", "hostname", "ipv4", "uuid")

Make = Callable[[random.Random, Mapping[str, Any]], Any]
"""Makes up a value. Takes the arguments that the call has already. None: it cannot."""

List = Callable[[Mapping[str, Any]], Sequence[Any]]


def _nothing(_: Mapping[str, Any]) -> Sequence[Any]:
    return ()


@dataclass(frozen=True, slots=True)
class Arm:
    """A source of a parameter.

    Args:
        source: What it is, for the evidence.
        prior: How promising it seems, from 0 to 1.
        list: Lists its values, for the arguments that the call has already.
        make: Makes up a value. None: the values are listed.
        seen: Whether the server or its world showed the values.
    """

    source: Source
    prior: float
    list: List = _nothing
    make: Make = lambda rng, arguments: None
    made_up: bool = False
    seen: bool = False

    def values(self, arguments: Mapping[str, Any] | None = None) -> Sequence[Any]:
        """The values that are listed."""
        return self.list(arguments or {})


class Arms:
    """The sources of all parameters.

    Args:
        catalog: What the server offers.
        graph: What is known.
    """

    def __init__(self, catalog: Catalog, graph: ValueGraph) -> None:
        self._catalog = catalog
        self._graph = graph
        self._priors: dict[tuple[Slot, Source], float] = {}
        self._add_schemas()

    def _add_schemas(self) -> None:
        """Keeps what schemas and resources name, for parameters of other tools too."""
        for tool in self._catalog.tools:
            about = frozenset(meanings(" ".join(tool.words)))
            calls = example_calls(tool)
            for name, schema in properties_of(tool).items():
                inner = plain(schema, tool.input_schema)
                values = [*(inner.get("examples") or ()), inner.get("example"), inner.get("default")]
                values += [call[name] for call in calls if name in call]
                texts = [value for value in values if _is_text(value) and not is_foreign(value)]
                self._graph.add(Origin.SCHEMA, [Finding(None, tuple(meanings(name)), about, value) for value in texts])
        for resource in self._catalog.resources:
            about = frozenset(meanings(f"{resource.name} resource"))
            self._graph.add(Origin.SCHEMA, [Finding(None, ("uri",), about, resource.uri)])

    def rate(self, slot: Slot, arm: Arm) -> float:
        """The share of calls that may work with values of a source, from 0 to 1."""
        prior, others = arm.prior, self._graph.by_name(slot, arm.source)
        if others.hits:
            prior = max(prior, SAME_NAME * others.rate(0.5))
        elif others.failures:
            prior *= max(0.4, 1 - 0.15 * others.failures)
        elif (related := self._graph.by_related_name(slot, arm.source)).hits:
            prior = max(prior, RELATED_NAME * related.rate(0.5))
        return self._graph.evidence(slot, arm.source).rate(prior)

    def of(
        self, tool: CatalogTool, path: str, schema: Mapping[str, Any], pools: Mapping[Source, Pool] | None = None
    ) -> list[Arm]:
        """The sources of a parameter that is neither fixed, nor a list or an object.

        Args:
            tool: The tool.
            path: The keys that lead to the parameter, as in a `Slot`.
            schema: Its schema, without references.
            pools: Values that are in this copy of the world alone.
        """
        slot, name = (tool.name, path), parameter_name(path)
        arms = list(self._pools(tool, slot, name, schema, self._graph.pools))
        if schema.get("type") in ("integer", "number"):
            arms += _numbers(name, schema, path.partition(".")[0] in tool.input_schema.get("required", ()))
        else:
            arms = [*self._lists(tool, name, schema, arms), *self._made_up(tool, slot, name, schema, arms)]
        if pools:
            arms += self._pools(tool, slot, name, schema, pools)
        pattern = schema.get("pattern")
        inside = bool(self._graph.places) or not tool.reads
        if pattern is None and not inside:
            return arms

        def allows(value: Any) -> bool:
            # Examples name files of other machines: nothing may be written there.
            return fits_pattern(pattern, str(value)) and not (inside and is_foreign(str(value)))

        return [_fitting(arm, allows) if pattern is not None or arm.source in _WRITTEN else arm for arm in arms]

    def _lists(self, tool: CatalogTool, name: str, schema: Mapping[str, Any], pools: Sequence[Arm]) -> Iterator[Arm]:
        """Sources with a list of texts. pools: what the server and its world show."""
        examples = [*(schema.get("examples") or ()), *([schema["example"]] if "example" in schema else ())]
        if examples:
            yield Arm("examples", 0.92, lambda _: examples)
        description = str(schema.get("description", ""))
        strongest = max((arm.prior for arm in pools), default=0.0)
        yield from pools
        if common := list(known_by(name, description)):
            count = sum(len(arm.values()) for arm in pools if arm.prior >= 0.5)
            yield Arm("known", 0.6 if count >= FEW else 0.7 + 0.1 * (count > 0), lambda _: common)
        if quoted := [match[2] for match in _EXAMPLES.finditer(description)]:
            yield Arm("described", 0.68, lambda _: quoted)
        elif others := [value for value in offers(description, {})[0] if value not in (name, tool.name)]:
            yield Arm("offered", 0.45, lambda _: others)
        if _is_text(default := schema.get("default")):
            yield Arm("default", 0.5, lambda _: [default])
        if strongest < 0.9:
            graph = self._graph
            is_search = bool(words(name)) and words(name)[-1] in WORDS.search_terms
            yield Arm("word", 0.65 if is_search else 0.2, lambda _: graph.terms())
            yield Arm("line", 0.22, lambda arguments: graph.lines_of(arguments.values()))
            yield Arm("near", 0.28, lambda arguments: graph.near([leaf for _, leaf in leaves(dict(arguments))]))

    def _pools(
        self,
        tool: CatalogTool,
        slot: Slot,
        name: str,
        schema: Mapping[str, Any],
        pools: Mapping[Source, Pool],
    ) -> Iterator[Arm]:
        """What the server and its world show, as pools of values."""
        formatted = schema.get("format") in _FORMATS and not self._graph.has_offers(slot)
        wanted = _KINDS.get(str(schema.get("type")), (str,))
        short = any(
            is_short_digest(pool.finding) and self._graph.evidence(slot, source).hits > 0
            for source, pool in self._graph.pools.items()
        )
        description_words = frozenset(meanings(str(schema.get("description", ""))))
        for source, pool in pools.items():
            if pool.origin is Origin.ERROR and source != (Origin.ERROR, name):
                continue
            if (key := (slot, source)) not in self._priors:
                self._priors[key] = self._prior(tool, name, description_words, pool)
            kind = type(pool.finding.value)
            if formatted and (self._priors[key] < FITTING or not changes_with_time(str(pool.finding.value))):
                continue
            if kind not in wanted and not (wanted == (str,) and kind is int and self._priors[key] >= 0.7):
                continue
            values = _lister(pool, wanted == (str,), whole=not short)
            yield Arm(source, self._priors[key], values, seen=pool.origin is not Origin.SCHEMA)

    def _prior(self, tool: CatalogTool, name: str, description_words: frozenset[str], pool: Pool) -> float:
        """How promising a pool is, by its words."""
        if pool.origin is Origin.ERROR:
            return 0.8
        order, own, about = meanings(name), pool.finding.own, pool.finding.about
        if self._graph.fits(pool, name):
            exact = 0.08 * (list(own) == order) - 0.14 * bool(set(own) - set(order))
            if pool.origin == tool.name:
                return 0.55 + 0.1 * alike(tool, pool) + exact
            return 0.72 + 0.04 * min(alike(tool, pool), 4) + exact
        weight = 0.5 if pool.origin == tool.name else 1.0
        if own and order and own[-1] == order[-1]:
            return 0.45 * weight
        if set(order) & {*own, *about}:
            return 0.36 * weight
        if set(own) & description_words:
            return 0.3 * weight
        return 0.12 * weight

    def _made_up(
        self, tool: CatalogTool, slot: Slot, name: str, schema: Mapping[str, Any], pools: Sequence[Arm]
    ) -> Iterator[Arm]:
        """Texts that are made up. pools: what the server and its world show."""
        verb = next((VERBS[word] for word in tool.words if word in VERBS), None)
        makes = bool(verb and verb.makes)
        hints = self._graph.messages.get(slot, "")
        own_format = draw_formatted_text(name, schema, random.Random(0)) is not None
        if own_format or draw_formatted_text(name, {"description": hints}, random.Random(0)) is not None:
            form = schema if own_format else {"description": hints, "pattern": schema.get("pattern")}
            shown = not makes and any(
                arm.prior >= FITTING and any(changes_with_time(str(value)) for value in arm.values()) for arm in pools
            )
            yield Arm(
                "format",
                FITTING - 0.1 if shown else 0.95,
                make=lambda rng, _: draw_formatted_text(name, form, rng),
                made_up=True,
            )
        if schema.get("format") == "date-time":  # servers that store times without a zone cannot compare others

            def make_local(rng: random.Random, _: Mapping[str, Any]) -> Any:
                return (draw_formatted_text(name, schema, rng) or "").removesuffix("Z") or None

            yield Arm("time without a zone", 0.5, make=make_local, made_up=True)
        text = bool(words(name)) and (singular(words(name)[-1]) in WORDS.texts or words(name)[-1] == "contents")
        own_kind = [str(value) for arm in pools if arm.prior >= 0.5 for value in arm.values()]
        sentences = [value for value in own_kind if 2 <= len(value.split()) <= 8]
        new = 0.58 if makes else 0.3
        if len(sentences) >= FEW and 2 * len(sentences) > len(own_kind):  # so what is new has several words too
            yield Arm("phrase", 0.8 if text else new, make=lambda rng, _: mixture(sentences, rng), made_up=True)
            new = 0.24
        else:
            free = all(arm.prior < 0.3 for arm in pools) and not set(words(name)[-1:]) & WORDS.names  # a reason, say
            prior = 0.8 if text else 0.35 if free else 0.24
            yield Arm("phrase", prior, make=lambda rng, _: phrase(rng), made_up=True)
        yield Arm("new name", new, make=lambda rng, _: new_name(rng), made_up=True)
        graph = self._graph
        paths = _are_paths([str(value) for arm in pools if arm.prior >= 0.5 for value in arm.values()[:3]])
        likely = paths or bool(graph.own_endings(slot))
        if folders := [*graph.paths("directory"), *graph.folders()]:
            prior = (0.9 if makes else 0.4) if likely else 0.2
            yield Arm("new path", prior, make=_path_maker(graph, slot, folders), made_up=True)
        if likely:
            yield Arm("new file", 0.42 if makes else 0.25, make=_path_maker(graph, slot, [""]), made_up=True)
        if globs := [glob for ending in graph.endings() for glob in (f"*{ending}", f"**/*{ending}")]:
            about = f"{schema.get('description', '')} {tool.description}".casefold()
            marked = "glob" in about or "wildcard" in about
            yield Arm(
                "glob", 0.66 if marked and not paths else 0.14, make=lambda rng, _: rng.choice(globs), made_up=True
            )
        if schema.get("type") is None:
            yield Arm("number", 0.15, make=lambda rng, _: rng.randrange(1, 100), made_up=True)


def _are_paths(values: Sequence[str]) -> bool:
    """Whether values, of which there are some, are absolute paths."""
    return bool(values) and all(value.startswith("/") for value in values)


def _lister(pool: Pool, as_text: bool, whole: bool) -> List:
    """Lists the values of a pool.

    Args:
        pool: The pool.
        as_text: Whether its numbers are texts.
        whole: Whether it lists digests as a whole too.
    """

    def values(_: Mapping[str, Any]) -> Sequence[Any]:
        typed = [str(value) if as_text else value for value in pool.values.values()]
        return [value for value in typed if whole or not is_digest(value)]

    return values


def _fitting(arm: Arm, allows: Callable[[Any], bool]) -> Arm:
    """A source without the values that are not allowed."""

    def make(rng: random.Random, arguments: Mapping[str, Any]) -> Any:
        value = arm.make(rng, arguments)
        return value if value is not None and allows(value) else None

    def values(arguments: Mapping[str, Any]) -> Sequence[Any]:
        return [value for value in arm.list(arguments) if allows(value)]

    return Arm(arm.source, arm.prior, values, make, arm.made_up, arm.seen)


def _path_maker(graph: ValueGraph, slot: Slot, folders: Sequence[str]) -> Make:
    """Makes up paths in some folders. The ending is that of another path of the call, or one that is known."""

    def make(rng: random.Random, arguments: Mapping[str, Any]) -> Any:
        names = [
            str(value).rpartition("/")[2] for value in arguments.values() if isinstance(value, str) and "/" in value
        ]
        endings = graph.own_endings(slot) or [f".{name.rpartition('.')[2]}" for name in names if "." in name.strip(".")]
        endings = endings or graph.endings()
        folder = rng.choice(folders)
        name = f"{new_name(rng)}{rng.choice(endings) if endings else ''}"
        return f"{folder}/{name}" if folder else name

    return make


def _numbers(name: str, schema: Mapping[str, Any], required: bool) -> Iterator[Arm]:
    """Sources of numbers. required: whether each call has the parameter, or the one that it is a part of."""
    default = schema.get("default")
    if isinstance(default, int | float) and not isinstance(default, bool):
        yield Arm("default", 0.3, lambda _: [default])
    examples = [value for value in schema.get("examples") or () if isinstance(value, int | float)]
    if examples:
        yield Arm("examples", 0.92, lambda _: examples)
    # Nobody asks for header row 63: a number that may be left out and has no limit of its own is a small one.
    small = schema.get("type") == "integer" and not (required or "maximum" in schema or set(words(name)) & WORDS.limits)
    top = _SMALL if small else None
    yield Arm("number", 0.55, make=lambda rng, _: number(name, schema, rng, top), made_up=True)
    if schema.get("type") == "integer" and not small:
        yield Arm("small", 0.4, make=lambda rng, _: number(name, schema, rng, _SMALL), made_up=True)


def number(name: str, schema: Mapping[str, Any], rng: random.Random, top: float | None = None) -> int | float:
    """A number within the limits of a schema.

    Args:
        name: The parameter. Counts and limits are small.
        schema: Its schema.
        rng: Source of randomness.
        top: Largest number where the schema has no limit. None: 9 for counts and limits, otherwise 100.
    """
    least, most = (schema.get(f"exclusive{end}", schema.get(end.lower())) for end in ("Minimum", "Maximum"))
    narrow = schema.get("type") == "number" and None not in (least, most)
    inside = min(1, (most - least) / 4) if narrow else 1  # how far from an exclusive limit
    low = schema.get("minimum", schema.get("exclusiveMinimum", 1 - inside) + inside)
    few = set(words(name)) & (WORDS.limits | LEXICON.numbers.keys())
    top = top if top is not None else 9 if few else max(100, low + 10)
    high = min(schema.get("maximum", schema.get("exclusiveMaximum", top + inside) - inside), max(top, low))
    step = schema.get("multipleOf", 1)
    if schema.get("type") == "number" and high - low < 1:
        return round(rng.uniform(low, high), 3)
    first = -(-low // step)
    return int(rng.randint(int(first), max(int(high // step), int(first))) * step)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)
