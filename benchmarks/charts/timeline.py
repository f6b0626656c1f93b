"""Timelines of trainings: which run was in which slot of the engine, and what the trainer did meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from art_examples.svg import COLORS, WIDTH, Card

LANE, GAP, LEFT = 13, 2, 92
"""Height of a lane, distance between lanes, and where time begins, in pixels."""


@dataclass(frozen=True, slots=True)
class Span:
    """A run that a version sampled, or a step that made a version. Times are in seconds."""

    start: float
    end: float
    version: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """A training, from its first run to the end of its last step in `steps`.

    Args:
        name: Above its lanes.
        slots: Of the engine.
        runs: In any order; those after the last step are left out.
        steps: In their order.
    """

    name: str
    slots: int
    runs: Sequence[Span]
    steps: Sequence[Span]

    @property
    def start(self) -> float:
        return min(run.start for run in self.runs)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.steps[-1].end - self.start

    @property
    def busy(self) -> float:
        """Share of the slots' time in which a run was there."""
        end = self.steps[-1].end
        return sum(max(0.0, min(run.end, end) - run.start) for run in self.runs) / (self.slots * self.seconds)

    def lanes(self) -> list[list[Span]]:
        """The runs of each slot: a run takes the first slot that is free, and none is in two.

        Raises:
            ValueError: There are more runs at once than slots.
        """
        lanes: list[list[Span]] = [[] for _ in range(self.slots)]
        for run in sorted(self.runs, key=lambda run: run.start):
            lane = next((lane for lane in lanes if not lane or lane[-1].end <= run.start), None)
            if lane is None:
                raise ValueError(f"{self.name}: more than {self.slots} runs at once")
            if run.start < self.steps[-1].end:
                lane.append(run)
        return lanes


def draw(timelines: Sequence[Timeline], title: str) -> str:
    """One below the other, on one scale of time, as SVG. A colour is a version: where a step makes it, and where its
    runs are."""
    described = "; ".join(
        f"{timeline.name}: {len(timeline.steps)} steps in {timeline.seconds:.2f} s, engine busy {timeline.busy:.0%}"
        for timeline in timelines
    )
    card = Card(
        title,
        "Each bar is a run in a slot of the engine, in the colour of its version; below, the step that makes a version",
        f"{described}. By python -m benchmarks.stream --picture.",
    )
    scale = (WIDTH - 20 - LEFT) / max(timeline.seconds for timeline in timelines)
    top = 66.0
    for timeline in timelines:
        end = LEFT + timeline.seconds * scale
        card.text(20, top + 12, timeline.name, bold=True)
        summary = f"{timeline.seconds:.2f} s, engine busy {timeline.busy:.0%}"
        card.text(WIDTH - 20, top + 12, summary, color="dim", anchor="end")
        top += 22
        bottom = top + (timeline.slots + 1) * (LANE + GAP) + 6
        for step in timeline.steps:
            x = LEFT + (step.end - timeline.start) * scale
            card.line([(x, top), (x, bottom)], "grid")

        def bar(span: Span, y: float, timeline: Timeline = timeline, end: float = end) -> float:
            x = LEFT + (span.start - timeline.start) * scale
            width = min(LEFT + (span.end - timeline.start) * scale, end) - x
            card.box(round(x, 1), y, max(width - 1, 1), LANE, COLORS[span.version % len(COLORS)])
            return x + width / 2

        card.text(LEFT - 10, top + timeline.slots * (LANE + GAP) / 2 + 4, "engine", color="dim", anchor="end")
        for lane in timeline.lanes():
            for run in lane:
                bar(run, top)
            top += LANE + GAP
        top += 6
        card.text(LEFT - 10, top + LANE - 2, "trainer", color="dim", anchor="end")
        for number, step in enumerate(timeline.steps, 1):
            card.text(
                round(bar(step, top), 1), top + LANE + 14, f"step {number}", color="dim", anchor="middle", size=12
            )
        top += LANE + 34
    return card.svg(top - 6)
