"""Demonstrations with other names, numbers and hashes: a policy learns to copy values instead of remembering them.

Imitation needs no execution: a demonstration stays right if a value is replaced by another one of the same shape
wherever it stands, in the task, the calls, their results and the answer.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from art_mcp.canonical import canonical
from art_mcp.client.effects import words
from art_mcp.scenarios.drafting.gazetteer import is_well_known
from art_mcp.scenarios.execute import StepFailed, resolve_arguments
from art_mcp.scenarios.lines import lines, mentions
from art_mcp.scenarios.observe import changes_with_time, leaves, parse_result
from art_mcp.scenarios.phrasing.arguments import spell_value
from art_mcp.scenarios.phrasing.language import VALUES, WORDS
from art_mcp.scenarios.plan import MCPScenario, Observation, Plan, Step, is_reference
from art_mcp.specialization.demonstrations import demonstration
from art_mcp.validation import violation
from art_mcp.worlds.alias import WORLD
from trainer_server.wire import ConfigError

ATTEMPTS = 20
"""Attempts to draw a value that occurs nowhere else."""

_COUNTS = 12
"""Numbers up to this one may count something that the demonstration shows."""

_ABBREVIATION = 6
"""Characters by which a hash is known."""
_HASH = "#"
"""What they are marked with, so that they are no number and no word."""

_FEW_VALUES = 3
"""A result with at most as many values, besides those of its call, may have been computed from the call's numbers."""

_DIGITS = 4
"""Digits of a number that may be the abbreviation of a hash, at least."""

_WORD = re.compile(r"[A-Za-z]{3,}")
_HEX = re.compile(r"(?<![A-Za-z0-9])(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{6,64}(?![A-Za-z0-9])")
_NUMBER = re.compile(r"(?<![\w.:/-])(?:0|[1-9]\d{0,8})(?:\.\d{1,4})?(?![\w:/-]|\.\d)")
_PART = re.compile(
    rf"(?P<hex>{_HEX.pattern})|(?P<number>{_NUMBER.pattern})"
    r"|(?P<word>(?:(?<![A-Za-z\\])|(?<=(?<!\\)\\[nrt]))[A-Za-z]{3,}(?![A-Za-z]))"
)
"""The parts of a text that may be renamed. A word may follow an escaped line break of JSON."""
_ENDING = re.compile(r"(?<=\w)\.([A-Za-z]{1,5})(?![\w.])")
_ROOT = re.compile(re.escape(WORLD) + r"(?:/[\w.-]+)?")
_QUOTATION = re.compile(r"'([^']*)'")
_ESCAPE = re.compile(r'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])')

_USUAL = frozenset(
    words(
        "and are but did does for has have its not now one out that them then there these this those two was were what "
        "when which who why will you your yes true false none null with example com org net http https www localhost "
        "file"
    )
)
_CONSTANT_WORDS = _USUAL | WORDS.fillers | WORDS.prepositions

_CONSONANTS, _VOWELS = "bcdfghjklmnprstvwz", "aeiou"


class Renamer:
    """Gives demonstrations fresh values.

    A value is shown once as the server has it. From then on each demonstration that has it gets another one. Not
    renamed are words and numbers of the tools' schemas (so no enums), of keys of results, and of paths of the world's
    root; words of the text around the values; arguments that neither the messages nor an earlier result say; time
    zones, currencies, languages and colours, dates, truth values, constants in capital letters, and endings of files;
    numbers that may count what is shown, and those of which a result may have been computed.

    A demonstration that would no longer be right with other values is shown as it is, and so is one without calls.

    Args:
        tools: The tools of the agent.
        held_out: Held-out scenarios. Words, numbers and hashes of their calls and facts are never drawn.
        seed: Seed of the values.
    """

    def __init__(self, tools: Sequence[BaseTool], held_out: Iterable[MCPScenario], seed: int) -> None:
        functions = [convert_to_openai_tool(tool)["function"] for tool in tools]
        self._schemas = {function["name"]: function.get("parameters", {}) for function in functions}
        self._schema = {word for name in re.findall(r"\w+", json.dumps(functions)) for word in words(name)}
        self._never = {
            _key(part[0]) for scenario in held_out for text in _values(scenario.plan) for part in _PART.finditer(text)
        }
        self._shown: set[str] = set()
        self._rng = random.Random(f"renamed-{seed}")

    def rename(self, scenarios: Sequence[MCPScenario]) -> list[MCPScenario]:
        """The scenarios in their order, with fresh values for those that an earlier one has shown.

        Args:
            scenarios: Scenarios whose references were executed, in the order in which they are imitated.
        """
        return [self._rename_values(scenario) for scenario in scenarios]

    def _rename_values(self, scenario: MCPScenario) -> MCPScenario:
        plan = scenario.plan
        if not plan.reference:
            return scenario
        parts = self._parts(scenario)
        again = [part for part in parts if part in self._shown]
        self._shown |= parts
        if not again:
            return scenario
        renaming = self._renaming(scenario, again)
        steps = [step.model_copy(update={"arguments": renaming.arguments(step)}) for step in plan.reference]
        observations = [
            result.model_copy(
                update={"text": renaming.text(result.text), "structured": renaming.value(result.structured)}
            )
            for result in plan.observations
        ]
        copy = scenario.model_copy(update={"input": renaming.input(scenario)}).with_plan(
            reference=steps,
            observations=observations,
            facts=renaming.value(plan.facts),
            about=renaming.value(plan.about),
            answer=renaming.text(plan.answer),
            answers=renaming.value(plan.answers),
            requests=renaming.value(plan.requests),
            changes=None,  # of the values that the world had
        )
        return copy if _still_right(scenario, copy, self._schemas) else scenario

    def _parts(self, scenario: MCPScenario) -> set[str]:
        """What may be renamed: words in lower case, numbers, and hashes by their first characters."""
        plan = scenario.plan
        whole = _whole(scenario)
        constants = self._schema | _CONSTANT_WORDS | _around(scenario) | _keys(plan) | _in_roots(whole)
        is_computed = _may_be_computed(plan)
        parts: set[str] = set()
        numbers: set[str] = set()
        for text in _stated_values(scenario):
            if changes_with_time(text) or is_well_known(text):
                continue
            endings = {ending.casefold() for ending in _ENDING.findall(text)}
            for part in _PART.finditer(text):
                if part["number"]:
                    numbers.add(part[0])
                elif part["hex"] or not (
                    part[0].isupper()
                    or is_well_known(part[0])
                    or {part[0].casefold(), *words(part[0])} & (constants | endings)
                ):
                    parts.add(_key(part[0]))
        if not is_computed:
            parts |= {number for number in numbers if "." in number or int(number) > _COUNTS}
        return parts - constants - _find_abbreviations(numbers, whole)

    def _renaming(self, scenario: MCPScenario, parts: Sequence[str]) -> _Renaming:
        """Fresh values for parts, which occur nowhere in a scenario."""
        occupied_keys = {_key(part[0]) for part in _PART.finditer(_whole(scenario))} | self._never | self._schema
        fresh: dict[str, str] = {}
        for part in sorted(parts):
            for _ in range(ATTEMPTS):
                replacement = self._draw_value(part)
                if replacement not in occupied_keys:
                    fresh[part] = replacement
                    occupied_keys.add(replacement)
                    break
        return _Renaming(fresh)

    def _draw_value(self, part: str) -> str:
        """A value of the shape of another one."""
        rng = self._rng
        if _NUMBER.fullmatch(part):
            return _number(rng, part)
        if part.startswith(_HASH):
            return _HASH + _hexadecimal(rng, _ABBREVIATION)
        alike = [word for word in VALUES.names if abs(len(word) - len(part)) <= 2]
        if alike and rng.random() < 0.5:
            return rng.choice(alike)
        letters = [rng.choice((_CONSONANTS, _VOWELS)[at % 2]) for at in range(len(part))]
        return "".join(letters)


@dataclass(frozen=True, slots=True)
class _Renaming:
    """Replaces values wherever they stand.

    Args:
        fresh: The new value of each part.
    """

    fresh: dict[str, str]

    def text(self, text: str) -> str:
        """A text with the fresh values."""
        return _PART.sub(lambda part: self._of(part[0]), text)

    def input(self, scenario: MCPScenario) -> Any:
        """The input of a scenario with the fresh values in what its messages say. Their roles stay."""
        if isinstance(scenario.input, str):
            return self.text(scenario.input)
        messages = [[message["role"], self.text(message["content"])] for message in scenario.messages]
        return {**scenario.input, "messages": messages}

    def value(self, value: Any) -> Any:
        """A JSON value with the fresh values in all its texts and numbers. Keys of objects stay."""
        if isinstance(value, dict):
            return {key: self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return type(value)(self.fresh.get(str(value), value))
        return self.text(value) if isinstance(value, str) else value

    def arguments(self, step: Step) -> dict[str, Any]:
        """The arguments of a step. References to earlier results stay."""
        return {name: value if is_reference(value) else self.value(value) for name, value in step.arguments.items()}

    def _of(self, part: str) -> str:
        new = self.fresh.get(_key(part))
        if new is None:
            return part
        if new.startswith(_HASH):  # equal hashes stay equal, and abbreviations the beginning of longer ones
            return (new.removeprefix(_HASH) + _hexadecimal(random.Random(new), 64))[: len(part)]
        return new.upper() if part.isupper() else new.capitalize() if part[:1].isupper() else new


def _key(part: str) -> str:
    """What a part is known by: equal for a word in capital and in small letters, and for a hash and its beginning."""
    return _HASH + part[:_ABBREVIATION] if _HEX.fullmatch(part) else part.casefold()


def _number(rng: random.Random, like: str) -> str:
    """A number with as many figures. It is no small whole number, and its last figure is not 0."""
    whole, point, rest = like.partition(".")
    number = str(rng.randrange(10 ** (len(whole) - 1), 10 ** len(whole)))
    if point:
        return f"{number}.{''.join(rng.choices('0123456789', k=len(rest) - 1))}{rng.choice('123456789')}"
    return number if int(number) > _COUNTS else _number(rng, like)


def _hexadecimal(rng: random.Random, length: int) -> str:
    """Hexadecimal digits, with a letter and a figure among the first ones."""
    return rng.choice("abcdef") + rng.choice("123456789") + "".join(rng.choices("0123456789abcdef", k=length - 2))


def _whole(scenario: MCPScenario) -> str:
    """All of a scenario as JSON."""
    return json.dumps(scenario.model_dump(mode="json"), ensure_ascii=False)


def _values(plan: Plan) -> Iterator[str]:
    """The values in calls, facts, and what a refusal names, as texts."""
    for number in range(len(plan.reference)):
        yield from _arguments(plan, number)
    yield from plan.facts
    yield from plan.about


def _stated_values(scenario: MCPScenario) -> Iterator[str]:
    """Those of the values that the messages or a result say before a call needs them. What an agent works out by
    itself, such as a query, is no value that it copies."""
    plan = scenario.plan
    sources = _contents(scenario)
    for number in range(len(plan.reference)):
        yield from (text for text in _arguments(plan, number) if mentions(sources, text))
        for observation in plan.observations[number : number + 1]:
            sources = "\n".join([sources, observation.text, *spell_value(observation.structured)])
    yield from plan.facts
    yield from plan.about


def _arguments(plan: Plan, number: int) -> Iterator[str]:
    """The arguments of a call that are no defaults, as texts. Of SQL and the like, the quoted texts."""
    step = plan.reference[number]
    try:
        arguments = resolve_arguments(step, plan.observations[:number])
    except (StepFailed, IndexError):  # it is not executed, or was edited
        arguments = {name: value for name, value in step.arguments.items() if not is_reference(value)}
    for name, argument in arguments.items():
        if argument != step.defaults.get(name):
            for text in spell_value(argument):
                yield from _QUOTATION.findall(text) if step.by_result else (text,)


def _contents(scenario: MCPScenario) -> str:
    """What the messages say."""
    return " ".join(message["content"] for message in scenario.messages)


def _around(scenario: MCPScenario) -> set[str]:
    """The words of the messages and the answer that are no values."""
    plan = scenario.plan
    text = f"{_contents(scenario)} {plan.answer}"
    for value in sorted(_values(plan), key=len, reverse=True):
        text = text.replace(value, " ")
    return {word.casefold() for word in _WORD.findall(text)}


def _keys(plan: Plan) -> set[str]:
    """The parts of the keys in results."""
    keys: set[str] = set()
    for observation in plan.observations:
        value = parse_result(observation.text, observation.structured)
        if isinstance(value, str):
            keys.update(line.key for line in lines(value))
        else:
            keys.update(str(key) for path, _ in leaves(value) for key in path)
    return {word for key in keys for word in [*words(key), *(_key(part[0]) for part in _PART.finditer(key))]}


def _in_roots(text: str) -> set[str]:
    """The parts of the paths of the world's root."""
    return {_key(part[0]) for root in _ROOT.findall(text) for part in _PART.finditer(root)}


def _find_abbreviations(numbers: Iterable[str], text: str) -> set[str]:
    """Numbers with which a hash begins, and what these hashes are known by: such a number may be an abbreviation."""
    hashes = {match[0] for match in _HEX.finditer(text)}
    prefixes = {
        (number, each) for number in numbers if len(number) >= _DIGITS for each in hashes if each.startswith(number)
    }
    return {part for number, each in prefixes for part in (number, _key(each))}


def _may_be_computed(plan: Plan) -> bool:
    """Whether a result may have been computed from numbers, such as a sum."""
    values = {
        canonical(leaf)
        for step in plan.reference
        for argument in step.arguments.values()
        if not is_reference(argument)
        for _, leaf in leaves(argument)
        if isinstance(leaf, int | float) and not isinstance(leaf, bool)
    }
    return bool(values) and any(_size(observation, values) <= _FEW_VALUES for observation in plan.observations)


def _size(observation: Observation, inputs: Set[str]) -> int:
    """The number of values of a result, or of its lines, besides values that were given, in their canonical form."""
    value = parse_result(observation.text, observation.structured)
    if isinstance(value, str):
        return len(lines(value))
    return sum(canonical(leaf) not in inputs for _, leaf in leaves(value))


def _still_right(before: MCPScenario, after: MCPScenario, schemas: Mapping[str, dict[str, Any]]) -> bool:
    """Whether a demonstration with other values is as right as it was.

    Its messages have the same roles and say what its calls need, its calls fit the tools' schemas, each result mentions
    the facts and arguments that it mentioned, in their new form, and the answer mentions what was asked for.

    Args:
        before: The demonstration as it was executed.
        after: The same one with other values.
        schemas: The schemas of the tools' arguments, by name.
    """
    earlier, plan = before.plan, after.plan
    try:
        demonstration(after)
        arguments = [resolve_arguments(step, plan.observations[:at]) for at, step in enumerate(plan.reference)]
        calls = [resolve_arguments(step, earlier.observations[:at]) for at, step in enumerate(earlier.reference)]
        pairs = list(zip(_call_texts(calls), _call_texts(arguments), strict=True))
    except (ConfigError, StepFailed, LookupError, TypeError, ValueError):  # a value is no longer where it was
        return False
    for step, was, now in zip(plan.reference, calls, arguments, strict=True):
        schema = schemas.get(step.tool, {})
        if now != was and violation(now, schema) and not violation(was, schema):
            return False
    if [message["role"] for message in before.messages] != [message["role"] for message in after.messages]:
        return False
    sources, results = _contents(before), _contents(after)
    if any(was in sources and now not in results for was, now in pairs):
        return False
    pairs += zip(earlier.facts, plan.facts, strict=True)
    changes = {(was, now) for was, now in pairs if was != now}
    for old, result in zip(earlier.observations, plan.observations, strict=True):
        for form, new in zip(_forms(old), _forms(result), strict=True):
            if any(mentions(form, was) and not mentions(new, now) for was, now in changes):
                return False
    answers_facts = all(mentions(plan.answer, fact) for fact in plan.facts)
    return answers_facts or not all(mentions(earlier.answer, fact) for fact in earlier.facts)


def _forms(observation: Observation) -> tuple[str, str, str]:
    """What a result says: its text, the text without escapes of JSON, and its structured content."""
    plain = _ESCAPE.sub(lambda escape: json.loads(f'"{escape[0]}"'), observation.text)
    return observation.text, plain, "\n".join(spell_value(observation.structured))


def _call_texts(calls: Iterable[Mapping[str, Any]]) -> list[str]:
    """The values of calls as texts."""
    return [text for arguments in calls for value in arguments.values() for text in spell_value(value)]
