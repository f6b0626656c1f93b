"""Drafts scenarios without a language model: templates of sentences with known values. Works offline."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.client.effects import words
from art_mcp.scenarios.catalog import Catalog, CatalogTool
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
    """Two calls, the second of which takes a value from the result of the first.

    Args:
        first: Tool of the first call.
        arguments: Arguments of the first call.
        path: Path of the value in the first result.
        second: Tool of the second call.
        parameter: Parameter of the second call that takes the value.
    """

    first: CatalogTool
    arguments: dict[str, Any]
    path: list[str | int]
    second: CatalogTool
    parameter: str


class Templates:
    """Drafts scenarios from templates. `observed` has results by the name of the tool, each with its arguments.

    Args:
        catalog: What the server offers.
        tools: The tools that may be called.
        values: Draws arguments.
        rng: Source of randomness.
    """

    def __init__(self, catalog: Catalog, tools: Sequence[CatalogTool], values: Values, rng: random.Random) -> None:
        self._catalog = catalog
        self._tools = list(tools)
        self._values = values
        self._rng = rng
        self.observed: dict[str, list[tuple[dict[str, Any], Any]]] = {}

    def drafts(self, lowest: int, highest: int) -> Iterator[MCPScenario]:
        """Yields distinct drafts until many attempts in a row have given no new one.

        Args:
            lowest: Least difficulty, from 1 to 5.
            highest: Greatest difficulty, from 1 to 5.
        """
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
        """A random draft with one call, two calls, or a chain. None: no value is known for an argument."""
        kind = self._rng.random()
        try:
            if chains and kind < 0.25:
                return self._chain(self._rng.choice(chains))
            if len(self._tools) > 1 and kind < 0.4:
                return self._both(*self._rng.sample(self._tools, 2))
            return self._single(self._rng.choice(self._tools))
        except NoValue:
            return None

    def _single(self, tool: CatalogTool) -> MCPScenario:
        """A draft with one call."""
        arguments = self._values.arguments(tool)
        return self._make(self._phrase(tool, arguments), [Step(tool=tool.name, arguments=arguments)])

    def _both(self, first: CatalogTool, second: CatalogTool) -> MCPScenario:
        """A draft with two independent calls."""
        steps, phrases = [], []
        for tool in (first, second):
            arguments = self._values.arguments(tool)
            steps.append(Step(tool=tool.name, arguments=arguments))
            phrases.append(self._phrase(tool, arguments, ONE_CALL[:1]))
        return self._make(self._rng.choice(THEN).format(*phrases), steps)

    def _chains(self) -> Iterator[Chain]:
        """Yields all chains that the observed results allow.

        A value that the first call got as an argument makes no chain, because the first call would not be needed.
        """
        for first in self._tools:
            for arguments, value in self.observed.get(first.name, ()):
                known = {canonical(argument) for argument in arguments.values()}
                for second in self._tools:
                    for name, schema in second.input_schema.get("properties", {}).items():
                        kind = {"string": str, "integer": int}.get(str(schema.get("type")))
                        for finding in self._values.sources(first.name, name, value) if second is not first else ():
                            if type(finding.value) is kind and canonical(finding.value) not in known:
                                yield Chain(first, arguments, list(finding.path or ()), second, name)

    def _chain(self, chain: Chain) -> MCPScenario:
        """A draft with the two calls of a chain."""
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
        """A sentence that asks for a call. forms: templates to choose from."""
        do = imperative(tool)
        properties = tool.input_schema.get("properties", {})
        pairs = [f"{spoken(name, properties.get(name, {}))} {shown(value)}" for name, value in arguments.items()]
        listed = ", ".join(pairs[:-1]) + (" and " if pairs[:-1] else "") + pairs[-1] if pairs else ""
        named = self._rng.choice(NAMED).format(args=listed) if pairs else ""
        title = tool.title or " ".join(tool.words)
        return self._rng.choice(forms).format(Do=do[0].upper() + do[1:], do=do, With=named, title=title).strip()


def difficulty(steps: Sequence[Step]) -> int:
    """Rates the difficulty of a reference, from 1 to 5.

    One call with at most one argument has difficulty 1. Each further call adds 2. A call with several arguments adds 1,
    and a step that takes an earlier result adds 1.
    """
    several = any(len(step.arguments) > 1 for step in steps)
    return min(5, 2 * len(steps) - 1 + several + any(step.needs for step in steps))


def imperative(tool: CatalogTool) -> str:
    """What a tool does, in the imperative: the first sentence of its description, or the words of its name."""
    first = tool.description.strip().partition("\n")[0].partition(". ")[0].rstrip(".:").strip()
    if not first or len(first) > 160:
        first = tool.title or " ".join(tool.words)
    verb, _, rest = first.partition(" ")
    if verb.endswith("s") and not verb.endswith(("ss", "us")) and rest and verb.casefold() not in ("is", "this"):
        verb = verb[:-2] if verb.endswith(("sses", "ches", "shes", "xes", "oes")) else singular(verb)
    return f"{verb[:1].lower()}{verb[1:]} {rest}".strip() if not verb.isupper() else f"{verb} {rest}".strip()


def spoken(name: str, schema: Any) -> str:
    """The name of a parameter as words."""
    return " ".join(words(schema.get("title") or name)) or name


def shown(value: Any) -> str:
    """The text of an argument in a sentence, exactly as the call needs it."""
    if is_reference(value):
        return f"from the earlier result ({place(value['path'])})"
    return str(value) if isinstance(value, str) and value and value == value.strip() else canonical(value)


def place(path: Sequence[str | int]) -> str:
    """A path into a result in words: `["items", 0, "id"]` → the id of entry 1 of items."""
    phrase = ""
    for key in path:
        part = f"entry {key + 1}" if isinstance(key, int) else " ".join(words(key)) or key
        phrase = f"{part} of {phrase}" if phrase else part
    return f"the {phrase}" if phrase else "the whole of it"


def signature(scenario: MCPScenario) -> str:
    """A key that is the same for scenarios with the same calls. Case and spaces of texts are ignored."""
    steps = [[step["tool"], step["arguments"]] for step in scenario.metadata["mcp"]["reference"]]
    return " ".join(canonical(steps).casefold().split())
