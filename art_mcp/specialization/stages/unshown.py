"""Which training scenarios the warm start does not show, so that the reinforcement learning has something to learn.

A policy solves nearly all scenarios whose calls it has imitated, and runs that all succeed teach nothing. What it lacks
are calls, and combinations of tools, that it has not seen: those it meets in the reinforcement learning for the first
time.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

from art_mcp.canonical import canonical
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.split import combination

SHARE = 0.2
"""Share of the different calls that is kept for the reinforcement learning."""
_LEAST = 2
"""Different calls of the same tools that the warm start shows at least."""
COMBINATIONS = 0.3
"""Share of the combinations of tools that is kept as a whole."""


def shown_and_kept(training: Sequence[MCPScenario], seed: int) -> tuple[list[MCPScenario], list[MCPScenario]]:
    """Divides training scenarios by their calls: those that the warm start may show, and those that it must not.

    Of the combinations of several tools, COMBINATIONS are kept. Of the calls of the same other tools in the same kind
    of task, SHARE is kept, and _LEAST are shown. The same scenarios and the same seed give the same division.

    Args:
        training: The training scenarios.
        seed: Seed of the choice.

    Returns:
        The scenarios to show, and those that are kept. No calls are in both.
    """
    calls = list[str]()
    alike: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    combined = sorted({combination(scenario) for scenario in training if len(combination(scenario)) > 1})
    whole = set(random.Random(f"combinations-{seed}").sample(combined, int(COMBINATIONS * len(combined))))
    kept: set[str] = set()
    for scenario in training:
        plan = scenario.plan
        calls.append(plan.calls)
        if combination(scenario) in whole:
            kept.add(calls[-1])
        else:
            alike[plan.kind, *scenario.tools].add(calls[-1])
    owed = 0.0
    for key, different in sorted(alike.items()):
        owed += SHARE * len(different)
        count = min(int(owed), max(0, len(different) - _LEAST))
        kept.update(random.Random(f"kept-{seed}-{canonical(key)}").sample(sorted(different), count))
        owed -= count
    shown = [scenario for scenario, its in zip(training, calls, strict=True) if its not in kept]
    return shown, [scenario for scenario, its in zip(training, calls, strict=True) if its in kept]
