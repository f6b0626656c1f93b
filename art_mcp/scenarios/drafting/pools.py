"""Sources of values: pools of what was shown, where in calls they go, and how the calls went."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from art_mcp.scenarios.catalog import CatalogTool
from art_mcp.scenarios.observe import Finding, leaves, meanings, singular

Slot = tuple[str, str]
"""A place in a call that takes a value: the tool, and the keys that lead there, as in `entities.*.name`."""

Source = Hashable
"""Where a value comes from: the origin and the words of a finding, or the name of what makes it up."""


class Origin(Enum):
    """Where values come from that no tool gave: the files of a world, an error, or schemas and resources."""

    WORLD = auto()
    ERROR = auto()
    SCHEMA = auto()


def parameter_name(path: str) -> str:
    """The name of what a slot takes: its last key; of the items of a list the singular of the list's key.

    Args:
        path: The keys of the slot: `tags.*` → tag, `entities.*.name` → name.
    """
    whole = path.rstrip(".*")
    name = whole.rpartition(".")[2]
    return name if whole == path else singular(name)


@dataclass(slots=True)
class Count:
    """Calls that worked and that failed. A call that gave nothing counts as a part of each.

    Args:
        successes: Calls that worked.
        failures: Calls that failed.
        hits: Calls that worked and gave something.
    """

    successes: float = 0.0
    failures: float = 0.0
    hits: int = 0

    def rate(self, prior: float) -> float:
        """The share of calls that may work. prior: what it seems to be before any call, from 0 to 1."""
        return (prior + self.successes) / (1.0 + self.successes + self.failures)


@dataclass(slots=True)
class Pool:
    """The values of one source.

    Args:
        source: The source.
        finding: The first of them, whose words all have.
        origin: The tool that gave them, or what else did.
    """

    source: Source
    finding: Finding
    origin: str | Origin
    values: dict[str, Any] = field(default_factory=dict)


def slot_values(tool: str, arguments: Mapping[str, Any]) -> Iterator[tuple[Slot, Any]]:
    """The scalar values of a call with their slots. Of a list each item is in the same slot, and the last one counts.

    Args:
        tool: Name of the tool.
        arguments: Its arguments.
    """
    for path, leaf in leaves(dict(arguments)):
        if not isinstance(leaf, bool):
            yield (tool, ".".join("*" if isinstance(key, int) else key for key in path)), leaf


def alike(tool: CatalogTool, pool: Pool) -> float:
    """Words that a tool's name shares with a pool. What the tool itself gave counts least: it would lead back to what
    the tool was called for."""
    own = set(meanings(" ".join(tool.words)))
    if pool.origin == tool.name:
        return 0.5 * bool(own & pool.finding.about)
    return len(own & pool.finding.about.union(pool.finding.own))
