"""Drafts of scenarios from schemas alone: known values, phrased by templates. Weaker than a model, and offline."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.scenarios.catalog import Catalog, CatalogTool, words
from art_mcp.scenarios.observe import singular
from art_mcp.scenarios.plan import MCPScenario, Plan, Step, is_reference
from art_mcp.scenarios.values import NoValue, Values

ONE_CALL = (
    "{Do}. {With}",
    "{Do}. {With} Tell me what you find.",
    "I need this: {do}. {With}",
    "Could you {do}? {With}",
    "Please {do}. {With} What does it say?",
    "Use {title} for me. {With} What is the result?",
    "Can you help? I want to {do}. {With}",
    "My task is to {do}. {With} Report the result.",
)
NAMED = ("Use {args}.", "It is about {args}.", "Take {args}.", "With {args}.", "The values: {args}.")
THEN = ("First: {0} Then: {1}", "{0} After that, do this as well: {1}", "Two things. One: {0} Two: {1}")


@dataclass(frozen=True, slots=True)
class Chain:
    """A call, a path into its result, and the parameter of another tool that takes what is there."""

    first: CatalogTool
    arguments: dict[str, Any]
    path: list[str | int]
    second: CatalogTool
    parameter: str


class Templates:
    """Makes drafts for the tools that may be called. observed: a result of a tool, with the arguments that gave it."""

    def __init__(self, catalog: Catalog, tools: Sequence[CatalogTool], values: Values, rng: random.Random) -> None:
        self._catalog = catalog
        self._tools = list(tools)
        self._values = values
        self._rng = rng
        self.observed: dict[str, list[tuple[dict[str, Any], Any]]] = {}

    def drafts(self, lowest: int, highest: int) -> Iterator[MCPScenario]:
        """Drafts of the difficulties asked for, without end, until nothing new has come for a while."""
        seen: set[str] = set()
        chains = list(self._chains())
        misses = 0
        while misses < 200 + 20 * len(self._tools):
            draft = self._draft(chains)
            difficulty = draft.plan.difficulty if draft else 0
            key = signature(draft) if draft else ""
            if draft is None or key in seen or not lowest <= difficulty <= highest:
                misses += 1
                continue
            seen.add(key)
            misses = 0
            yield draft

    def _draft(self, chains: Sequence[Chain]) -> MCPScenario | None:
        kind = self._rng.random()
        try:
            if chains and kind < 0.25:
                return self._chain(self._rng.choice(chains))
            if len(self._tools) > 1 and kind < 0.4:
                return self._both(*self._rng.sample(self._tools, 2))
            return self._one(self._rng.choice(self._tools))
        except NoValue:
            return None

    def _one(self, tool: CatalogTool) -> MCPScenario:
        arguments = self._values.arguments(tool)
        return self._make(self._phrase(tool, arguments), [Step(tool=tool.name, arguments=arguments)])

    def _both(self, first: CatalogTool, second: CatalogTool) -> MCPScenario:
        steps, phrases = [], []
        for tool in (first, second):
            arguments = self._values.arguments(tool)
            steps.append(Step(tool=tool.name, arguments=arguments))
            phrases.append(self._phrase(tool, arguments, ONE_CALL[:1]))
        return self._make(self._rng.choice(THEN).format(*phrases), steps)

    def _chains(self) -> Iterator[Chain]:
        """Calls seen to give something that a parameter of another tool is called. Not what merely repeats an argument:
        then the first call would not be needed."""
        for first in self._tools:
            for arguments, value in self.observed.get(first.name, ()):
                known = {canonical(one) for one in arguments.values()}
                for second in self._tools:
                    for name, schema in second.input_schema.get("properties", {}).items():
                        kind = {"string": str, "integer": int}.get(str(schema.get("type")))
                        for one in self._values.sources(first.name, name, value) if second is not first else ():
                            if type(one.value) is kind and canonical(one.value) not in known:
                                yield Chain(first, arguments, list(one.path or ()), second, name)

    def _chain(self, chain: Chain) -> MCPScenario:
        given = {chain.parameter: {"$step": 0, "path": chain.path}}
        arguments = {**given, **self._values.arguments(chain.second, given=given)}
        steps = [
            Step(tool=chain.first.name, arguments=chain.arguments),
            Step(tool=chain.second.name, arguments=arguments),
        ]
        begin = self._phrase(chain.first, chain.arguments, ONE_CALL[:1])
        end = self._phrase(chain.second, arguments, ONE_CALL[:1])
        return self._make(f"{begin} Then go on with what you got: {end} Tell me the final result.", steps)

    def _make(self, task: str, steps: list[Step]) -> MCPScenario:
        plan = Plan(server=self._catalog.name, difficulty=difficulty(steps), reference=steps)
        return MCPScenario.make(" ".join(task.split()), plan)

    def _phrase(self, tool: CatalogTool, arguments: dict[str, Any], forms: Sequence[str] = ONE_CALL) -> str:
        do = imperative(tool)
        properties = tool.input_schema.get("properties", {})
        told = [f"{spoken(name, properties.get(name, {}))} {shown(value)}" for name, value in arguments.items()]
        listed = ", ".join(told[:-1]) + (" and " if told[:-1] else "") + told[-1] if told else ""
        named = self._rng.choice(NAMED).format(args=listed) if told else ""
        title = tool.title or " ".join(tool.words)
        return self._rng.choice(forms).format(Do=do[0].upper() + do[1:], do=do, With=named, title=title).strip()


def difficulty(steps: Sequence[Step]) -> int:
    """1 for one call with at most one argument; more for each further call, for more arguments, for results taken over;
    5 at most."""
    several = any(len(step.arguments) > 1 for step in steps)
    return min(5, 2 * len(steps) - 1 + several + any(step.needs for step in steps))


def imperative(tool: CatalogTool) -> str:
    """What a tool does, as an order: the beginning of its description, or its name in words."""
    first = tool.description.strip().partition("\n")[0].partition(". ")[0].rstrip(".:").strip()
    if not first or len(first) > 160:
        first = tool.title or " ".join(tool.words)
    verb, _, rest = first.partition(" ")
    if verb.endswith("s") and not verb.endswith(("ss", "us")) and rest and verb.casefold() not in ("is", "this"):
        verb = verb[:-2] if verb.endswith(("sses", "ches", "shes", "xes", "oes")) else singular(verb)
    return f"{verb[:1].lower()}{verb[1:]} {rest}".strip() if not verb.isupper() else f"{verb} {rest}".strip()


def spoken(name: str, schema: Any) -> str:
    """A parameter's name as people say it."""
    return " ".join(words(schema.get("title") or name)) or name


def shown(value: Any) -> str:
    """A value in a sentence, exactly as it has to be given."""
    if is_reference(value):
        return f"from the earlier result ({place(value['path'])})"
    return str(value) if isinstance(value, str) and value and value == value.strip() else canonical(value)


def place(path: Sequence[str | int]) -> str:
    """A path into a result, in words: `["items", 0, "id"]` → the id of item 1 of items."""
    said = ""
    for key in path:
        part = f"entry {key + 1}" if isinstance(key, int) else " ".join(words(key)) or key
        said = f"{part} of {said}" if said else part
    return f"the {said}" if said else "the whole of it"


def signature(scenario: MCPScenario) -> str:
    """The same for scenarios that ask for the same calls: case and spaces of texts do not tell them apart."""
    steps = [[step["tool"], step["arguments"]] for step in scenario.metadata["mcp"]["reference"]]
    return " ".join(canonical(steps).casefold().split())
