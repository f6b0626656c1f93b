"""Finds how many runs at once make groups fastest: a training tries some numbers during its first steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from art_langgraph.trajectory import TrajectoryGroup

WAITING = 0.1
"""Share of the time from which on it is the groups that steps wait for."""
_STEPS = 2
"""Steps by which a number of runs at once is measured."""
_GAIN = 1.1
"""What a number must make of the groups of another one to be better. With the long tail of `benchmarks.tuning`, two
measurements of one number differ by about as much."""
_NARROWER = 0.75
"""Of the runs that there were at once on average: fewer slots than this are felt."""


class Slots(asyncio.Semaphore):
    """Bounds how many runs there are at once, and can be made wider and narrower while they run.

    Args:
        count: Runs at once, at least 1.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count
        """How many slots there are, or are left as soon as runs that have the others have ended."""
        self._surplus = 0
        """Slots that are in use, and go with their runs."""

    async def resize(self, count: int) -> None:
        """Changes how many slots there are. Runs go on: where there are more of them, the next to end free no slot."""
        self._surplus += self.count - count
        self.count = count
        for _ in range(-self._surplus):
            self._surplus += 1
            super().release()
        while self._surplus > 0 and not self.locked():
            self._surplus -= 1
            await self.acquire()

    def release(self) -> None:
        if self._surplus > 0:
            self._surplus -= 1
        else:
            super().release()


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast steps got their groups.

    Args:
        slots: How many runs there were at once, at most.
        groups: The groups that steps took.
        seconds: In which they took them.
        run_seconds: How long the runs of these groups took, together; 0 where the executor does not say.
        waits: Seconds of these that steps waited for groups ("groups"), and that the next group waited, by what it
            waited for ("slots", "in_flight", "room"; `GroupStream.waits`).
    """

    slots: int
    groups: int
    seconds: float
    run_seconds: float
    waits: Mapping[str, float]

    def __add__(self, other: Pace) -> Pace:
        """That of the steps of both, with as many slots."""
        waits = {reason: seconds + other.waits[reason] for reason, seconds in self.waits.items()}
        run_seconds = self.run_seconds + other.run_seconds
        return Pace(self.slots, self.groups + other.groups, self.seconds + other.seconds, run_seconds, waits)

    @property
    def rate(self) -> float:
        """Groups a second."""
        return self.groups / max(self.seconds, 1e-9)

    @property
    def runs_at_once(self) -> float:
        """How many runs there were at once on average."""
        return self.run_seconds / max(self.seconds, 1e-9)

    @property
    def wait_share(self) -> float:
        """Share of the time that steps waited for groups."""
        return self.waits["groups"] / max(self.seconds, 1e-9)

    @property
    def bottleneck(self) -> str:
        """What the next group waited for most: "slots", "in_flight" or "room"."""
        return max((reason for reason in self.waits if reason != "groups"), key=lambda reason: self.waits[reason])


def run_seconds(groups: Iterable[TrajectoryGroup]) -> float:
    """How long the runs of groups took, together."""
    return sum(run.seconds for group in groups for run in group.trajectories)


@dataclass(frozen=True, slots=True)
class Tuning:
    """How many runs at once a training took for itself.

    Args:
        max_concurrency: Runs at once, from now on.
        first: Runs at once before that.
        gain: Groups a second with `max_concurrency` / with `first`.
        steps: After how many steps it was found.
        wait_share: Share of the time that steps waited for groups with `max_concurrency`.
        bottleneck: What the next group waited for most then: "slots", "in_flight" or "room".
    """

    max_concurrency: int
    first: int
    gain: float
    steps: int
    wait_share: float
    bottleneck: str

    def summary(self) -> dict[str, Any]:
        """It as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        text = f"tuned by {self.steps} steps: max_concurrency={self.max_concurrency}"
        if self.max_concurrency != self.first:
            text += (
                f" in place of {self.first} makes {self.gain:.2f} × the groups in the same time. To begin with it: "
                f"max_concurrency={self.max_concurrency} (--max-concurrency {self.max_concurrency})"
            )
        elif self.wait_share < WAITING:
            text += f" stays, since groups wait for the trainer, which is busy {1 - self.wait_share:.0%} of the time"
        else:
            text += " stays, since neither fewer nor more runs at once make more groups"
        if self.wait_share >= WAITING and self.bottleneck == "room":
            text += (
                ". Steps have too few runs for all slots: a larger max_staleness or groups_per_step would keep them "
                "busy, and change what steps learn from"
            )
        return text


class Tuner:
    """Tries numbers of runs at once, each for some steps, and keeps the one that makes most groups in the same time.

    It goes by factors of two: upwards where groups wait for slots, and else downwards, because engines that have too
    many requests for their memory compute some of them twice. Where groups wait for the trainer, there is nothing to
    find. The first number that is not better ends the way; one after the first step upwards turns it.

    Args:
        slots: Those of the training, which it changes.
        most: Runs at once that it may try, at most.
        settle: Steps after a change that are not counted, because they have groups that were made before it.
    """

    def __init__(self, slots: Slots, most: int, settle: int) -> None:
        self._slots, self.most, self._settle = slots, most, settle
        self._first = self._best = slots.count
        self._uncounted = 1  # the first step warms up what computes it
        self._window = list[Pace]()
        self._paces = dict[int, Pace]()
        """Of each number that was tried."""
        self._steps = 0
        self._upwards = False
        self._tuning: Tuning | None = None

    async def add(self, pace: Pace | None, *, overlaps_evaluation: bool = False) -> Tuning | None:
        """Takes the pace of a step, and may change the slots.

        Args:
            pace: How fast the step got its groups; None: it is not known.
            overlaps_evaluation: Whether an evaluation of the step's version had slots. The pace of the next step has
                its time, and that after it the groups that were made meanwhile: neither is counted.

        Returns:
            What was found, after the step with which it is; None otherwise.
        """
        if self._tuning is not None:
            return None
        self._steps += 1
        if self._uncounted or pace is None:
            self._uncounted = max(0, self._uncounted - 1)
        else:
            self._window.append(pace)
        if overlaps_evaluation:
            self._uncounted = 2
        if len(self._window) < _STEPS:
            return None
        whole = self._window.pop()
        while self._window:
            whole += self._window.pop()
        self._paces[self._slots.count] = whole
        target = self._next(whole)
        if target is not None:
            await self._slots.resize(target)
            self._uncounted = max(self._uncounted, self._settle)
            return None
        await self._slots.resize(self._best)
        best, first = self._paces[self._best], self._paces[self._first]
        self._tuning = Tuning(
            self._best, self._first, best.rate / first.rate, self._steps, best.wait_share, best.bottleneck
        )
        return self._tuning

    def _next(self, pace: Pace) -> int | None:
        """The number to try next; None: the best one is found."""
        if len(self._paces) == 1:
            self._upwards = pace.bottleneck == "slots" and self._best < self.most
        elif pace.rate > _GAIN * self._paces[self._best].rate:
            self._best = pace.slots
        elif self._upwards and self._best == self._first:
            self._upwards = False
        else:
            return None
        best = self._paces[self._best]
        if best.wait_share < WAITING:
            return None
        if self._upwards:
            target = min(2 * self._best, self.most)
        else:
            target = max(1, self._best // 2)
            while best.run_seconds and target > max(1.0, _NARROWER * best.runs_at_once):
                target //= 2  # slots that no run has are no difference
        return None if target in self._paces else target
