"""How fast the steps of a policy come, and what bounds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from trainer_server.dashboard.curves import flat
from trainer_server.wire import Job, JobStatus

STEPS = 10
"""Newest steps that count."""
_PAUSE = 5.0
"""Times the median of the time between two steps: a longer one is a pause of the user's, and does not count."""
_BUSY, _SLACK = 0.9, 0.2
"""Share of the time from which on a trainer bounds the run; and by which engines are idle beyond the trainer's time."""
_METRICS = {
    "row_fill": "rows filled",
    "tokens_per_second": "tokens a second in steps",
    "mfu": "MFU",
    "staleness_mean": "versions behind",
}
"""Metrics of a step that tell of its pace, and how the page names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPace:
    """The pace of a policy's newest steps.

    Args:
        steps: How many steps it is the mean of.
        seconds: From the end of a step to that of the next.
        trainer: Share of this time in which the trainer computed and the engines loaded its version.
        engines_idle: Share of it in which an engine had no request. None: it is not known.
        metrics: Means of metrics of the steps that tell of their pace, by their names on the page.
    """

    steps: int
    seconds: float
    trainer: float
    engines_idle: float | None
    metrics: dict[str, float]

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> StepPace | None:
        """The pace of the steps among jobs of one policy, the newest first; None: there are fewer than two."""
        ends = [job for job in jobs if job.kind == "step" and job.status == JobStatus.succeeded and job.finished]
        pairs = [(job, (job.finished or 0.0) - (before.finished or 0.0)) for job, before in pairwise(ends[: STEPS + 1])]
        if not pairs:
            return None
        usual = _PAUSE * median(seconds for _, seconds in pairs)
        intervals = [(job, seconds) for job, seconds in pairs if 0 < seconds <= usual]
        if not intervals:
            return None
        whole = sum(seconds for _, seconds in intervals)
        busy = sum(job.seconds.get("train", 0.0) + job.seconds.get("swap", 0.0) for job, _ in intervals)
        idle = [job.seconds.get("engines_idle") for job, _ in intervals]
        known_idle = [seconds for seconds in idle if seconds is not None]
        numbers = [flat(job.result.metrics) for job, _ in intervals if job.result]
        values = {label: [row[name] for row in numbers if name in row] for name, label in _METRICS.items()}
        return cls(
            steps=len(intervals),
            seconds=whole / len(intervals),
            trainer=min(1.0, busy / whole),
            engines_idle=min(1.0, sum(known_idle) / whole) if len(known_idle) == len(intervals) else None,
            metrics={label: fmean(some) for label, some in values.items() if some},
        )

    @property
    def bound(self) -> str:
        """What bounds the pace, and what to change."""
        if self.trainer >= _BUSY:
            return (
                f"The trainer was busy {self.trainer:.0%} of the time, and bounds the run: give it more or faster "
                "devices, or steps with fewer tokens."
            )
        waited = f"The trainer waited {1 - self.trainer:.0%} of the time for runs"
        if self.engines_idle is None:
            return f"{waited}."
        if self.engines_idle > self.trainer + _SLACK:
            return (
                f"{waited}, and engines had no request {self.engines_idle:.0%} of it: the runs wait for their tools or "
                "code, or too few go on at once. Raise max_concurrency."
            )
        if self.engines_idle > _SLACK:
            return (
                f"{waited}, and engines {self.engines_idle:.0%} of it for the trainer: they take turns. Where they "
                "have devices of their own, max_staleness=1 lets groups stream."
            )
        return (
            f"{waited}, and engines had requests {1 - self.engines_idle:.0%} of it: add an engine, or raise "
            "max_concurrency where engines can compute more requests."
        )
