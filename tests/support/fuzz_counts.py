"""How many examples the fuzz tests of a run drew, as a table at its end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

DRAWN = "examples that were drawn"
"""Name of a test's property: `(file, examples)`."""
_CASES = re.compile(r"(\d+) passing, (\d+) failing, and \d+ invalid")
_GENERATED = re.compile(r"(\d+) generated")


def of_hypothesis(statistics: str) -> int:
    """Examples of which a test was run, in the statistics that hypothesis describes. Those that it threw away as
    invalid do not count."""
    return sum(int(passing) + int(failing) for passing, failing in _CASES.findall(statistics))


def of_schemathesis(output: str) -> int:
    """Requests of a run of schemathesis, by the summary at its end."""
    if (generated := _GENERATED.search(output)) is None:
        raise ValueError(f"the output of schemathesis does not say how many cases it made: {output[-500:]}")
    return int(generated[1])


def table(drawn: Iterable[tuple[str, int]]) -> str:
    """The sum of each file and that of all, in Markdown; empty: nothing was drawn."""
    sums = Counter[str]()
    for file, examples in drawn:
        sums[file] += examples
    if not sums:
        return ""
    rows = [*sorted(sums.items()), ("all", sums.total())]
    return "\n".join(["| fuzz tests | examples |", "|---|---|", *(f"| {file} | {count:,} |" for file, count in rows)])
