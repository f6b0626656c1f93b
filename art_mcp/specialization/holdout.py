"""Which training scenarios are for what: imitation, reinforcement learning, the choice of a version.

The warm start does not show all of them, so that the reinforcement learning has something to learn.

A policy solves nearly all scenarios whose calls it has imitated, and runs that all succeed teach nothing. What it lacks
are calls, and combinations of tools, that it has not seen: those it meets in the reinforcement learning for the first
time.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

from art_mcp.canonical import canonical
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.split import combination

SHARE = 0.2
"""Share of the different calls that is kept for the reinforcement learning."""
_LEAST = 2
"""Different calls of the same tools that the warm start shows at least."""
COMBINATIONS = 0.3
"""Share of the combinations of tools that is kept as a whole."""
_ASIDE, _MOST_ASIDE, _FEWEST_ASIDE = 0.1, 32, 8
"""Share of the training scenarios that is put aside for the choice of a version, how many at most, and how many at
least. Fewer tell nothing."""


def put_aside(training: Sequence[MCPScenario], seed: int) -> tuple[list[MCPScenario], list[MCPScenario]]:
    """Divides training scenarios into those to train on and selection scenarios.

    Selection scenarios tell when a warm start should end, and which version is taken. The same scenarios and the same
    seed give the same division.

    Args:
        training: All training scenarios.
        seed: Seed of the choice.

    Returns:
        The scenarios to train on, and the selection scenarios. There are none of the latter if _ASIDE of the training
        scenarios is fewer than _FEWEST_ASIDE / 2.
    """
    count = round(len(training) * _ASIDE)
    if 2 * count < _FEWEST_ASIDE:
        return list(training), []
    count = min(_MOST_ASIDE, max(_FEWEST_ASIDE, count))
    chosen = {scenario.id for scenario in random.Random(f"selection-{seed}").sample(list(training), count)}
    left = [scenario for scenario in training if scenario.id not in chosen]
    return left, [scenario for scenario in training if scenario.id in chosen]


def shown_and_kept(training: Sequence[MCPScenario], seed: int) -> tuple[list[MCPScenario], list[MCPScenario]]:
    """Divides training scenarios by their calls: those that the warm start may show, and those that it must not.

    Of the combinations of several tools, COMBINATIONS are kept, if each of their tools is in another one that is not
    kept. Of the calls of the same other tools in the same kind of task, SHARE is kept, and _LEAST are shown. Calls that
    have more than twice as many scenarios as others have on average are not kept: without them, the warm start would
    hardly show this kind of task. The same scenarios and the same seed give the same division.

    Args:
        training: The training scenarios.
        seed: Seed of the choice.

    Returns:
        The scenarios to show, and those that are kept. No calls are in both.
    """
    calls = list[str]()
    alike: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    whole = _whole({combination(scenario) for scenario in training}, seed)
    rl_calls: set[str] = set()
    for scenario in training:
        plan = scenario.plan
        calls.append(plan.calls)
        if combination(scenario) in whole:
            rl_calls.add(calls[-1])
        else:
            alike[plan.kind, *scenario.tools][calls[-1]] += 1
    owed = 0.0
    for key, different in sorted(alike.items()):
        owed += SHARE * len(different)
        rare = sorted(call for call, times in different.items() if times * len(different) <= 2 * different.total())
        count = min(int(owed), max(0, len(different) - _LEAST), len(rare))
        rl_calls.update(random.Random(f"kept-{seed}-{canonical(key)}").sample(rare, count))
        owed -= count
    shown = [scenario for scenario, its in zip(training, calls, strict=True) if its not in rl_calls]
    return shown, [scenario for scenario, its in zip(training, calls, strict=True) if its in rl_calls]


def to_train_on(
    training: Sequence[MCPScenario], imitated_ids: Collection[str], least: int, seed: int
) -> list[MCPScenario]:
    """The scenarios of the reinforcement learning: those whose calls the warm start has not imitated, and some others.

    Tools that only imitated scenarios use would be unlearned: a policy that is rewarded for one tool alone soon calls
    it for everything. So imitated scenarios are added wherever, without them, a combination of tools would have a
    smaller share than it has in the training. The same scenarios and the same seed give the same choice.

    Args:
        training: The training scenarios.
        imitated_ids: Ids of those that the warm start has imitated.
        least: Number of scenarios that were not imitated for which this is done. If there are fewer, all are returned.
        seed: Seed of the choice.
    """
    calls = {scenario.plan.calls for scenario in training if scenario.id in imitated_ids}
    fresh = [scenario for scenario in training if scenario.plan.calls not in calls]
    if len(fresh) < least:
        return list(training)
    wanted = Counter(combination(scenario) for scenario in training)
    owed = {tools: len(fresh) * count / len(training) for tools, count in wanted.items()}
    for scenario in fresh:
        owed[combination(scenario)] -= 1
    chosen = {scenario.id for scenario in fresh}
    for scenario in random.Random(f"again-{seed}").sample(list(training), len(training)):
        if scenario.id not in chosen and owed[combination(scenario)] >= 1:
            owed[combination(scenario)] -= 1
            chosen.add(scenario.id)
    return [scenario for scenario in training if scenario.id in chosen]


def _whole(combinations: Collection[tuple[str, ...]], seed: int) -> set[tuple[str, ...]]:
    """The combinations of several tools that are kept. Each of their tools is in another one that is not kept."""
    several = sorted(each for each in combinations if len(each) > 1)
    count = int(COMBINATIONS * len(several))
    left = Counter(tool for each in combinations for tool in each)
    whole: set[tuple[str, ...]] = set()
    for each in random.Random(f"combinations-{seed}").sample(several, len(several)):
        if len(whole) < count and all(left[tool] > 1 for tool in each):
            whole.add(each)
            left.subtract(each)
    return whole
