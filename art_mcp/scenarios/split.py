"""Splits scenarios into training and three held-out sets: new values, new phrasings, new combinations of tools."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from art_mcp.canonical import canonical
from art_mcp.scenarios.observe import leaves
from art_mcp.scenarios.plan import HELD_OUT, MCPScenario, Split, Step, is_reference

MOST = 40
"""Scenarios of a held-out set, at most. More of them take longer to measure than what they tell is worth."""

PERVASIVE = 0.25
"""A value that more than this share of the scenarios has is never held out, nor is such a form."""


def combination(scenario: MCPScenario) -> tuple[str, ...]:
    """The tools of a scenario, each once, in alphabetical order."""
    return tuple(sorted(set(scenario.tools)))


def values_of(steps: Iterable[Step]) -> set[str]:
    """The texts and numbers in the arguments of calls, in their canonical form. Truth values are left out, and so are
    defaults and values of earlier results."""
    values = set()
    for step in steps:
        for name, argument in step.arguments.items():
            if not is_reference(argument) and argument != step.defaults.get(name):
                values |= {canonical(leaf) for _, leaf in leaves(argument) if not isinstance(leaf, bool)}
    return values


@dataclass(frozen=True, slots=True)
class Division:
    """What is held out from training.

    Args:
        values: Values of arguments, in their canonical form.
        phrasings: Forms.
        combinations: Combinations of tools.
    """

    values: frozenset[str]
    phrasings: frozenset[str]
    combinations: frozenset[tuple[str, ...]]

    def split_of(self, scenario: MCPScenario) -> Split:
        """The set that a scenario belongs to."""
        plan = scenario.plan
        if combination(scenario) in self.combinations:
            return "combinations"
        if plan.phrasing in self.phrasings:
            return "phrasings"
        return "train" if self.values.isdisjoint(values_of(plan.reference)) else "values"


def split_scenarios(
    scenarios: Sequence[MCPScenario], held_out: float = 0.25, seed: int = 0
) -> tuple[list[MCPScenario], list[str]]:
    """Splits scenarios, whoever made them. Foreign requests stay in their set.

    Args:
        scenarios: The scenarios.
        held_out: Share of the scenarios to hold out, from 0 to 1: a third of it for each held-out set.
        seed: Seed of the choice.

    Returns:
        The same scenarios with their split, and notes that say which held-out set could not be made, and why.
    """
    rng = random.Random(f"split-{seed}")
    foreign = [scenario for scenario in scenarios if scenario.plan.split == "foreign"]
    scenarios = [scenario for scenario in scenarios if scenario.plan.split != "foreign"]
    order = rng.sample(scenarios, len(scenarios))
    size = min(round(held_out * len(order) / len(HELD_OUT)), MOST)
    if not size:
        return [*(scenario.with_plan(split="train") for scenario in scenarios), *foreign], []
    held_combinations = _combinations(order, size)
    rest = [scenario for scenario in order if combination(scenario) not in held_combinations]
    forms = _choose_keys({form: {s.id for s in group} for form, group in _by_form(rest).items()}, size, len(order))
    rest = [scenario for scenario in rest if scenario.plan.phrasing not in forms]
    values = _choose_keys(_by_value(rest), size, len(order))
    division = Division(frozenset(values), frozenset(forms), frozenset(held_combinations))
    split = _with_history([scenario.with_plan(split=division.split_of(scenario)) for scenario in scenarios])
    sizes = Counter(scenario.plan.split for scenario in split)
    why = {
        "values": "too few different values: the arguments are the same in most scenarios",
        "phrasings": "too few different forms of the tasks are known",
        "combinations": "no scenario combines tools of which each is also asked for alone",
    }
    return [*split, *foreign], [f"no held-out {name}: {why[name]}" for name in HELD_OUT if not sizes[name]]


def _with_history(scenarios: Sequence[MCPScenario]) -> list[MCPScenario]:
    """Holds out follow-ups on a held-out task with it: their history tells its values and its answer."""
    set_of_request: dict[str, Split] = {
        scenario.task: scenario.plan.split
        for scenario in scenarios
        if len(scenario.messages) == 1 and scenario.plan.split != "train"
    }
    whole = []
    for scenario in scenarios:
        first_request, *later = [message["content"] for message in scenario.messages]
        moves = later and first_request in set_of_request and scenario.plan.split == "train"
        whole.append(scenario.with_plan(split=set_of_request[first_request]) if moves else scenario)
    return whole


def _combinations(order: Sequence[MCPScenario], size: int) -> set[tuple[str, ...]]:
    """Combinations to hold out, of tools that are each seen alone. Half of the combinations stay in training."""
    sizes = Counter(combination(scenario) for scenario in order)
    candidates = [tools for tools in sizes if len(tools) > 1 and all((tool,) in sizes for tool in tools)]
    chosen_tools: set[tuple[str, ...]] = set()
    for tools in candidates[: max(len(candidates) // 2, 1)]:
        if sum(sizes[each] for each in chosen_tools) < size:
            chosen_tools.add(tools)
    return chosen_tools


def _choose_keys(having: dict[str, set[str]], size: int, of: int) -> set[str]:
    """Keys to hold out until `size` scenarios have one of them.

    Args:
        having: The ids of the scenarios that have each key, keys in the order in which they are tried.
        size: Wanted number of scenarios.
        of: Number of all scenarios.
    """
    chosen_keys: set[str] = set()
    out: set[str] = set()
    for key, ids in having.items():
        if len(having) > 2 and len(out) < size and len(ids) <= PERVASIVE * of and len(out | ids) <= 1.5 * size + 1:
            chosen_keys.add(key)
            out |= ids
    return chosen_keys


def _by_form(order: Iterable[MCPScenario]) -> dict[str, list[MCPScenario]]:
    forms: dict[str, list[MCPScenario]] = defaultdict(list)
    for scenario in order:
        if form := scenario.plan.phrasing:
            forms[form].append(scenario)
    return forms


def _by_value(order: Iterable[MCPScenario]) -> dict[str, set[str]]:
    """The ids of the scenarios that have each value."""
    having: dict[str, set[str]] = defaultdict(set)
    for scenario in order:
        for value in sorted(values_of(scenario.plan.reference)):
            having[value].add(scenario.id)
    return having
