"""Drafts tasks for the tools of a server: single calls, and calls with a value that does not exist."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.scenarios.catalog import Catalog, CatalogTool, plain, properties_of
from art_mcp.scenarios.drafting.draft import Draft, Obstacle
from art_mcp.scenarios.drafting.errors import reason_of
from art_mcp.scenarios.drafting.gazetteer import new_name
from art_mcp.scenarios.drafting.pools import slot_values
from art_mcp.scenarios.drafting.values import NoValue, Values
from art_mcp.scenarios.lines import lines, mentions
from art_mcp.scenarios.observe import Path, changes_with_time, leaves, meanings, singular
from art_mcp.scenarios.phrasing.arguments import render_value
from art_mcp.scenarios.phrasing.english import plural
from art_mcp.scenarios.phrasing.language import WORDS
from art_mcp.scenarios.phrasing.objects import lead_of
from art_mcp.scenarios.phrasing.questions import Question, questions
from art_mcp.scenarios.phrasing.sense import senses
from art_mcp.scenarios.phrasing.wish import Wish, wish
from art_mcp.scenarios.plan import Kind, Step, is_reference

NEW_ARGUMENTS = 0.7
"""How often the first call of a sequence gets new arguments."""


class Drafter:
    """Drafts tasks.

    Args:
        catalog: What the server offers.
        tools: The tools that may be called.
        values: Draws arguments.
        rng: Source of randomness.
    """

    def __init__(self, catalog: Catalog, tools: Sequence[CatalogTool], values: Values, rng: random.Random) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.senses = senses(catalog.tools, catalog.name)
        self.values = values
        self.rng = rng
        for name, sense in self.senses.items():
            if sense.names and not sense.many and _lists(values.graph.results.get(name, ())):
                self.senses[name] = replace(sense, noun=plural(sense.noun))

    def single(self, name: str, held: bool | None = None) -> Draft:
        """A task with one call.

        Args:
            name: Name of the tool.
            held: As in `Values.arguments`.

        Raises:
            NoValue: No value is known for a required argument, or none that `held` allows.
        """
        tool = self.tools[name]
        return self.of_call(tool, self.values.arguments(tool, held=held))

    def of_call(
        self,
        tool: CatalogTool,
        arguments: Mapping[str, Any],
        *,
        kind: Kind = "single",
        before: Sequence[Step] = (),
        wordings: Mapping[str, str] | None = None,
        first: str = "",
        unsaid: Sequence[str] = (),
        held_values: frozenset[str] = frozenset(),
        references: Mapping[str, Any] | None = None,
    ) -> Draft:
        """A task whose last call has these arguments.

        Args:
            tool: The tool.
            arguments: Its arguments.
            kind: What kind of task it is.
            before: The calls before.
            wordings: Words for arguments that are described instead of told.
            first: What is to be done before, in the imperative.
            unsaid: Arguments that the text has said already.
            held_values: Held-out values of the calls before.
            references: The values that the references among the arguments are known to have.
        """
        sense = self.senses[tool.name]
        spoken_arguments = {name: value for name, value in arguments.items() if name not in unsaid}
        opens = singular(sense.noun.rpartition(" ")[2]) in WORDS.readable and not set(tool.words) & WORDS.finding

        def render_call(rng: random.Random) -> Wish:
            return replace(wish(tool, sense, spoken_arguments, rng, wordings), first=first)

        def find_questions(result: Any, again: Any, rng: random.Random) -> list[Question]:
            values = [value for value in arguments.values() if not is_reference(value)]
            many, noun = sense.many and not opens, sense.noun or "result"
            return questions(result, again, noun=noun, many=many, argument_values=values, rng=rng)

        literals = {name: value for name, value in spoken_arguments.items() if not is_reference(value)}
        main = self.main_argument(tool, literals) if kind == "single" else None
        others = {name: value for name, value in literals.items() if name != main}
        plain_arguments = {**arguments, **(references or {})}
        is_plain = references is not None or not before
        return Draft(
            kind,
            [*before, Step(tool=tool.name, arguments=dict(arguments))],
            render_call,
            find_questions,
            held_values | frozenset(self.values.held_out(tool, literals)),
            topic=render_value(literals[main], self.rng) if main else "",
            same=f"{tool.name} {main} {canonical(others)}" if main else "",
            call=Step(tool=tool.name, arguments=plain_arguments) if is_plain else None,
        )

    def main_argument(self, tool: CatalogTool, arguments: Mapping[str, Any]) -> str | None:
        """The argument that a follow-up would change: a text of a few words that is no place of the world."""
        places = self.values.graph.places
        fitting = [
            name
            for name in tool.input_schema.get("required", ())
            if isinstance(arguments.get(name), str) and arguments[name] not in places and len(arguments[name]) <= 60
        ]
        lists = [
            name
            for name in tool.input_schema.get("required", ())
            if isinstance(arguments.get(name), list) and all(isinstance(item, str) for item in arguments[name])
        ]
        fitting = fitting or lists
        return fitting[0] if len(fitting) == 1 else None

    def missing(self, name: str) -> Draft | None:
        """A task with one call of which a value does not exist. None: no argument is the name of something known.

        Raises:
            NoValue: No value is known for a required argument.
        """
        tool, sense = self.tools[name], self.senses[name]
        arguments = self.values.arguments(tool, held=False, optional=0.0)
        fitting = []
        for key in tool.input_schema.get("required", ()):
            schema = plain(properties_of(tool).get(key, {}), tool.input_schema)
            value = arguments.get(key)
            is_name = isinstance(value, str) and "enum" not in schema and not changes_with_time(value)
            is_place = is_name and arguments[key] in self.values.graph.places
            if is_name and not is_place and self.values.refers(tool, key, schema):
                fitting.append(key)
        if not fitting:
            return None
        key = self.rng.choice(fitting)
        value = self._absent(str(arguments[key]))
        draft = self.of_call(tool, {**arguments, key: value}, kind="impossible")
        parts = meanings(key)
        own = parts[1:] if len(parts) > 1 and lead_of(parts) else parts  # from_column: no such column
        noun = next((word for word in own if word in meanings(sense.noun)), own[0] if own else "thing")
        return replace(draft, obstacle=Obstacle(value, noun))

    def refusals(self, name: str) -> Iterator[Draft]:
        """Tasks with a call that must fail, as a call of the exploration did, although its values are there: a book
        that is on loan already. The error says in few words which value is the obstacle."""
        tool, graph = self.tools[name], self.values.graph
        calls = graph.refused_calls(name)
        for arguments, message in self.rng.sample(calls, len(calls)):
            reason = reason_of(message)
            texts = [str(value) for _, value in slot_values(name, arguments) if value not in graph.places]
            if about := next((text for text in texts if len(text) > 1 and mentions(reason, text)), None):
                yield replace(self.of_call(tool, arguments, kind="impossible"), obstacle=Obstacle(about))

    def sequence(self, name: str, fresh: bool = True) -> Draft | None:
        """A task with a call that works after another one has made something, as in the exploration. None: no sequence
        of it is known, or an argument of the first call is not.

        The second call takes what it takes from the arguments of the first one, or from its result, wherever the values
        were equal. What it takes from the result is not said: "open the table of lamps.csv, then count its rows".

        Args:
            name: Name of the tool of the second call.
            fresh: Whether the first call gets new arguments most of the time.
        """
        sequences = [sequence for sequence in self.values.graph.sequences[name] if sequence.first[0] in self.tools]
        if not sequences:
            return None
        sequence = self.rng.choice(sequences)
        first, second = self.tools[sequence.first[0]], self.tools[name]
        before, arguments = sequence.first[1], dict(sequence.second[1])
        if fresh and self.rng.random() < NEW_ARGUMENTS:
            try:
                before = {**before, **self.values.arguments(first, optional=0.0)}
            except NoValue:
                return None
        unsaid = []
        for key, value in arguments.items():
            source = next((name for name, old in sequence.first[1].items() if canonical(old) == canonical(value)), None)
            if source is not None:
                arguments[key] = before[source]
            elif (path := _path_of(sequence.result, value)) is not None:
                arguments[key] = {"$step": 0, "path": list(path)}
                unsaid.append(key)
        call = wish(first, self.senses[first.name], before, self.rng)
        return self.of_call(
            second,
            arguments,
            kind="chain",
            before=[Step(tool=first.name, arguments=before)],
            first=call.do,
            unsaid=unsaid,
            held_values=frozenset(self.values.held_out(first, before)),
        )

    def _absent(self, value: str) -> str:
        """A value like this one that does not exist."""
        name = new_name(self.rng)
        if "/" not in value:
            return name
        folder, _, last = value.rpartition("/")
        return f"{folder}/{name}{'.' + last.rpartition('.')[2] if '.' in last else ''}"


def _path_of(result: Any, value: Any) -> Path | None:
    """Where a result has a value that is no entry of a list, if that is no switch and no small number."""
    if isinstance(result, str) or isinstance(value, bool | list | dict):
        return None
    places = (path for path, leaf in leaves(result) if path and canonical(leaf) == canonical(value))
    return next((path for path in places if all(isinstance(key, str) for key in path)), None)


def _lists(results: Sequence[tuple[Any, Any]]) -> bool:
    """Whether results are lists of names, so that the noun of the tool is meant as a plural: `branch` → branches."""
    values = [value for _, value in results if value not in ("", [], {})]
    return bool(values) and all(
        (isinstance(value, list) and all(isinstance(item, str) for item in value))
        or (
            isinstance(value, str)
            and len(entries := lines(value)) > 1
            and all(not line.key and len(line.value.split()) == 1 for line in entries)
        )
        for value in values
    )
