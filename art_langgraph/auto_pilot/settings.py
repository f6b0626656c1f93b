"""All options of `Autopilot`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from art_langgraph.auto_pilot.options import CanaryRules, PilotOptions
from art_langgraph.client.client import TrainerClient
from art_langgraph.loop.evaluate import Success, full_reward
from art_langgraph.loop.graphs import GraphSource
from art_langgraph.loop.rollout import Graph, ScenarioLike
from art_langgraph.loop.watch.alarm_rules import AlarmRules
from art_langgraph.loop.watch.held_out import HeldOut
from art_langgraph.rewards import RewardFunction
from art_langgraph.store import TrajectoryStore
from trainer_server.wire import ConfigError, GRPOConfig


@dataclass
class AutopilotOptions(PilotOptions):
    """Arguments of `Autopilot`.

    Args:
        policy: The policy. A version of it is promoted when the autopilot starts, so that no candidate reaches anybody
            before its canary.
        client: The trainer server.
        store: Where the deployment's runs are, and the autopilot's state; None: the store under ART_HOME.
        gate: Held-out scenarios (or a JSONL file of them) that a candidate is measured on before it answers anybody. It
            goes on if it succeeds as often as the promoted version, less `rules.tolerance`. Runs that ask the same are
            never trained on. None: the canary alone decides.
        graph: Runs the scenarios of the gate. Without one they cannot be measured, and the canary alone decides.
        reward: Scores those runs.
        canary: The candidate's share of new rollouts: `0.1` or `"10%"`.
        success: Whether a run of the deployment succeeded that has a reward; by default a reward of at least 1.
        rules: When a candidate is decided.
        alarms: Thresholds of the alarms, which pause the autopilot.
        config: Settings of the training steps; None: the defaults.
        nodes: Patterns of the node paths to train; None: all.

    Raises:
        ConfigError: A setting is out of its range.
    """

    policy: str
    client: TrainerClient
    _: KW_ONLY
    store: TrajectoryStore | None = None
    gate: HeldOut | Sequence[ScenarioLike] | str | Path | None = None
    graph: Graph | GraphSource | None = None
    reward: RewardFunction | None = None
    canary: float | str = 0.1
    success: Success = full_reward
    rules: CanaryRules = field(default_factory=CanaryRules)
    alarms: AlarmRules = field(default_factory=AlarmRules)
    config: GRPOConfig | None = None
    nodes: Sequence[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.share = share_of(self.canary)
        """`canary` as a number from 0 to 1."""


def share_of(text: float | str) -> float:
    """A share such as `0.1` or `"10%"`. Raises ConfigError for what is none, or leaves nothing to compare with."""
    try:
        share = float(text[:-1]) / 100 if isinstance(text, str) and text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ConfigError(f"canary={text!r} is no share of the rollouts: say 10%, or 0.1; it is above 0 and below 1")
    return share
