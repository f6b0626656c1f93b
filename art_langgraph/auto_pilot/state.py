"""State: where the autopilot of a policy is. It is all that a process needs that goes on after another was killed."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field

from art_langgraph.auto_pilot.decision import Verdict
from art_langgraph.loop.watch.alarm_rules import Signals


class Phase(StrEnum):
    """What the autopilot does: collecting → training → gate → canary → deciding → collecting.

    From each phase there is a way to `deciding`, where a candidate takes over or goes; a step that has nothing to learn
    from leads back to `collecting`.
    """

    collecting = "collecting"
    """It waits for runs with a reward."""
    training = "training"
    """A step is sent, and computed. Its runs and its key are known."""
    gate = "gate"
    """The candidate is made. It is measured on the gate's scenarios, and gets no rollouts."""
    canary = "canary"
    """The candidate answers its share of the new rollouts."""
    deciding = "deciding"
    """The verdict is known, and carried out."""


class Pause(BaseModel):
    """Why nothing is done until `--resume`."""

    cause: str
    """An alarm, such as `entropy_collapse`; or `promoted_by_hand`, `nothing_promoted`, `step_failed`, `gate_failed`."""
    reason: str
    """What happened, with numbers."""
    remedy: str
    """What to do before going on."""

    def __str__(self) -> str:
        return f"{self.cause}: {self.reason}. {self.remedy}"


class Entry(BaseModel):
    """What the autopilot did, and why: a line of its history."""

    time: float
    """Unix time, seconds."""
    policy: str
    event: str
    """`started`, `training`, `skipped`, `trained`, `gate`, `canary`, `promoted`, `rolled_back`, `abandoned`, `paused`,
    `resumed`."""
    version: int | None = None
    """The version that it is about; None: none."""
    reason: str
    numbers: dict[str, Any] = Field(default_factory=dict)

    def __str__(self) -> str:
        name = self.policy if self.version is None else f"{self.policy}@{self.version}"
        when = datetime.fromtimestamp(self.time).strftime("%Y-%m-%d %H:%M:%S")
        return f"{when} {name} {self.event.replace('_', ' ')}: {self.reason}"


class State(BaseModel):
    """Where the autopilot of a policy is."""

    policy: str
    created: float
    """`Policy.created`: a policy that is made anew is another one."""
    champion: int = 0
    """The promoted version, which candidates are trained from and compared with."""
    promotions: int = 0
    """`Policy.promotions` when the autopilot read it. Another number: there was a promotion by hand."""
    phase: Phase = Phase.collecting
    steps: int = 0
    """Training steps until now."""
    key: str = ""
    """Idempotency key of the step."""
    runs: list[str] = Field(default_factory=list)
    """Ids of the runs that the step was given, or the last one."""
    tried: list[str] = Field(default_factory=list)
    """Ids of runs that steps were given and that none was trained on: alone they are no reason for another step."""
    candidate: int | None = None
    since: float | None = None
    """When the canary began, by the clock of the server. None: no request was sent yet, or its answer was lost."""
    verdict: Verdict | None = None
    reason: str = ""
    """Of the verdict."""
    numbers: dict[str, Any] = Field(default_factory=dict)
    """Of the verdict."""
    pause: Pause | None = None
    accepted: list[str] = Field(default_factory=list)
    """Alarms that go on, and in spite of which the autopilot was resumed."""
    take_over: bool = False
    """It was resumed after a promotion by hand, and begins with the policy as it is then."""
    signals: list[dict[str, Any]] = Field(default_factory=list)
    """Figures of the steps, for alarms; the evaluations are in the trajectory store."""

    def decide(self, verdict: Verdict, reason: str, numbers: dict[str, Any] | None = None) -> None:
        """Notes what becomes of the candidate. It is carried out afterwards, once this is written down.

        Args:
            verdict: What becomes of it.
            reason: Why, in words.
            numbers: What the reason rests on, as JSON.
        """
        self.phase, self.verdict, self.reason, self.numbers = Phase.deciding, verdict, reason, numbers or {}

    def collect(self) -> None:
        """There is no candidate any more."""
        self.phase, self.candidate, self.since, self.verdict = Phase.collecting, None, None, None
        self.reason, self.key, self.numbers = "", "", {}


def to_record(signals: Signals) -> dict[str, Any]:
    """Figures of a step as JSON, without the evaluation."""
    record = {field.name: getattr(signals, field.name) for field in fields(signals) if field.name != "evaluation"}
    return {name: value for name, value in record.items() if value is not None}
