"""How many scenarios of each kind are wanted, and how many there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from art_mcp.scenarios.plan import HELD_OUT, Kind, MCPScenario, Split
from art_mcp.scenarios.split import MOST, combination

ENOUGH = 1200
"""Scenarios that are made at most if no number is given."""

HELD_OF = 128
"""Number of scenarios of which the held-out sets are a share, if no number is given: 32 each by default."""

SHARES: dict[Kind, float] = {
    "single": 0.58,
    "pair": 0.12,
    "chain": 0.12,
    "follow_up": 0.08,
    "impossible": 0.06,
    "talk": 0.04,
}
"""Share of each kind of task in a held-out set, as far as they can be made."""

TRAINING_SHARES: dict[Kind, float] = {
    "single": 0.30,
    "pair": 0.36,
    "chain": 0.20,
    "follow_up": 0.06,
    "impossible": 0.05,
    "talk": 0.03,
}
"""Share of each kind of task in training. There are more pairs and chains than in the held-out sets: each teaches as
much of the tools as two single calls, and to do both is learned last."""

ASIDE: tuple[Kind, ...] = ("impossible", "talk")
"""The kinds that teach no call."""

MAX_ASIDE = 0.1
"""Share of a set that they have together, at most, whatever else can be made."""

STRICT = 3
"""A held-out set may have one scenario for so many in training, and a few more, so that training is never too small."""


@dataclass(slots=True)
class ScenarioQuota:
    """The scenarios that are kept, and how many more are wanted.

    Args:
        n: Number of scenarios that are wanted. None: ENOUGH.
        held_out: Share of the scenarios to hold out.
        on_kept: Called for each scenario when it is kept.
        difficulty: Least and greatest difficulty. Others are not kept.
        earlier: Scenarios of an interrupted generation. They count, and `on_kept` is not called for them.
    """

    n: int | None
    held_out: float
    on_kept: Callable[[MCPScenario], None]
    difficulty: tuple[int, int] = (1, 5)
    earlier: Sequence[MCPScenario] = ()
    scenarios: list[MCPScenario] = field(default_factory=list)
    notify_count: int = 0
    """Scenarios of which `on_kept` knows, or which an earlier generation has told of."""
    _held_back: bool = False
    _given_up: set[Split] = field(default_factory=set)
    _texts: set[str] = field(default_factory=set)
    _counts: Counter[tuple[Split, Kind]] = field(default_factory=Counter)
    _tools: Counter[tuple[Split, Kind, tuple[str, ...]]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for scenario in self.earlier:
            self._count(scenario)
        self.notify_count = len(self.scenarios)

    def hold_back(self) -> None:
        """From now on `on_kept` is called by `notify` alone: the scenarios may be changed until then."""
        self._held_back = True

    def notify(self, count: int | None = None) -> None:
        """Calls `on_kept` for the scenarios that it does not know yet. count: of the first so many. None: of all."""
        while self.notify_count < (len(self.scenarios) if count is None else count):
            self.on_kept(self.scenarios[self.notify_count])
            self.notify_count += 1

    @property
    def total(self) -> int:
        """The number of scenarios that are wanted."""
        return ENOUGH if self.n is None else self.n

    @property
    def held_out_size(self) -> int:
        """The size of a held-out set."""
        size = self.held_out * HELD_OF if self.n is None else self.held_out * self.n / len(HELD_OUT)
        return min(round(size), MOST)

    @property
    def training_size(self) -> int:
        """The number of training scenarios that are wanted."""
        return self.total - (len(HELD_OUT) - len(self._given_up)) * self.held_out_size

    def give_up(self) -> None:
        """Held-out sets of which nothing could be made leave their room to training."""
        self._given_up = {split for split in HELD_OUT if not self.size(split)}

    def size(self, split: Split) -> int:
        """How many scenarios there are of a set."""
        return sum(count for (own, _), count in self._counts.items() if own == split)

    def kind_count(self, split: Split, kind: Kind) -> int:
        """How many scenarios there are of a kind in a set."""
        return self._counts[split, kind]

    def tools_count(self, split: Split, kind: Kind, tools: tuple[str, ...]) -> int:
        """How many of them use just these tools."""
        return self._tools[split, kind, tools]

    def shortfall(self, split: Split, kind: Kind, share: float | None = None, part: float = 1.0) -> int:
        """How many more are wanted of a kind in a set.

        Args:
            split: The set.
            kind: The kind.
            share: Its share of the set. None: that of SHARES, in training that of TRAINING_SHARES.
            part: How much of it is wanted by now.
        """
        whole = self.training_size if split == "train" else self.held_out_size
        room = (whole if split == "train" else min(whole, 4 + self.size("train") // STRICT)) - self.size(split)
        usual = TRAINING_SHARES if split == "train" else SHARES
        own = usual[kind] if share is None else share
        if kind in ASIDE:
            aside = sum(self.kind_count(split, each) for each in ASIDE)
            most = MAX_ASIDE / (1 - MAX_ASIDE) * (self.size(split) - aside)
            own_part = round(most * usual[kind] / sum(usual[each] for each in ASIDE))
            room = min(room, int(most) - aside, max(own_part, 1) - self.kind_count(split, kind))
        return max(0, min(room, max(round(own * whole * part), 1) - self.kind_count(split, kind)))

    def add(self, scenario: MCPScenario | None) -> bool:
        """Keeps a scenario. False: there was none, one with the same words, or it is too easy or too hard."""
        low, high = self.difficulty
        if scenario is None or not low <= scenario.plan.difficulty <= high:
            return False
        if scenario.wording in self._texts:
            return False
        self._count(scenario)
        if not self._held_back:
            self.notify()
        return True

    def _count(self, scenario: MCPScenario) -> None:
        plan = scenario.plan
        self._texts.add(scenario.wording)
        self._counts[plan.split, plan.kind] += 1
        self._tools[plan.split, plan.kind, combination(scenario)] += 1
        self.scenarios.append(scenario)
