"""Options of the autopilot that are plain values: what Python and the command line have in common.

Nothing heavy is imported here: the command line reads this for its `--help`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer_server.wire import ConfigError

GATE = "Gate"
"""Title of the flags about the gate, in the help of the command."""


@dataclass(kw_only=True)
class PilotOptions:
    """When a candidate is trained, and on which runs: keywords of `Autopilot`, flags of `art-langgraph autopilot`.

    Args:
        train_every: New runs with a reward after which a candidate is trained.
        gate_name: Name of the gate's measurements. Versions are measured anew under another name: give one where the
            graph was changed, which is not noticed.
        from_ledger: Train on rollouts of the server that got a reward by HTTP or `session`, instead of runs of the
            store.
        max_age: Days. Older runs are not trained on.
        poll: Seconds between two looks for new runs and rewards.

    Raises:
        ConfigError: A number is out of its range.
    """

    train_every: int = field(default=50, metadata={"min": 1})
    gate_name: str = field(default="", metadata={"rich_help_panel": GATE})
    from_ledger: bool = False
    max_age: float = field(default=7.0, metadata={"min": 0.0})
    poll: float = field(default=10.0, metadata={"min": 0.0})

    def __post_init__(self) -> None:
        if self.train_every < 1 or self.poll <= 0 or self.max_age <= 0:
            raise ConfigError(
                f"train_every={self.train_every} must be at least 1, poll={self.poll:g} and max_age={self.max_age:g} "
                "above 0"
            )


@dataclass(frozen=True, slots=True)
class CanaryRules:
    """When a candidate is decided.

    Args:
        alpha: Probability of promoting a candidate that is no better, at most; and that of calling one worse that is
            no worse.
        least: Scored runs of the candidate before anything is decided.
        most: Scored runs of the candidate after which it is rolled back, if it is not shown to be better by then.
        tolerance: How much lower its success on the gate may be.

    Raises:
        ConfigError: A number is out of its range.
    """

    alpha: float = 0.05
    least: int = field(default=20, metadata={"flag": "--min-runs", "min": 1})
    most: int = field(default=2000, metadata={"flag": "--max-runs", "min": 1})
    tolerance: float = field(default=0.0, metadata={"min": 0.0, "max": 0.99, "rich_help_panel": GATE})

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ConfigError(f"alpha is between 0 and 1, and not {self.alpha:g}")
        if not 1 <= self.least <= self.most:
            raise ConfigError(
                f"a candidate is decided after {self.least} to {self.most} scored runs: the first number must be 1 or "
                "more, and no more than the second"
            )
        if not 0 <= self.tolerance < 1:
            raise ConfigError(f"tolerance is from 0 to less than 1, and not {self.tolerance:g}")
