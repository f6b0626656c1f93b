"""Groups of runs as a graph would have made them, without running one."""

from __future__ import annotations

import itertools
from typing import Any

from art_langgraph import Scenario, Trajectory, TrajectoryGroup
from art_langgraph.trajectory import CompletionCall

_STARTED = itertools.count(1)


def run(scenario: Any, reward: float | None, *, version: int = 0, policy: str = "agent", **fields: Any) -> Trajectory:
    """A run in which a version of a policy answered once. fields: of the trajectory; `calls`: the model's tool calls,
    as (name, what the model was told)."""
    started = float(next(_STARTED))
    calls = fields.pop("calls", ())
    made = [
        {"id": f"call-{at}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for at, (name, _) in enumerate(calls)
    ]
    told = [{"role": "tool", "tool_call_id": f"call-{at}", "content": text} for at, (_, text) in enumerate(calls)]
    first = CompletionCall(
        id=f"cmpl-{started}",
        model=policy,
        version=version,
        message={"role": "assistant", "content": "" if made else "hm", "tool_calls": made},
        started=started,
    )
    last = first.model_copy(
        update={
            "id": f"{first.id}-last",
            "messages": [{"role": "user", "content": "?"}, dict(first.message or {}), *told],
            "message": {"role": "assistant", "content": "done"},
        }
    )
    fields = {"completions": [first, last] if made else [first], "temperature": 1.0, "started": started, **fields}
    return Trajectory(scenario=Scenario.of(scenario), reward=reward, **fields)


def group(scenario: Any, *rewards: float | None, **fields: Any) -> TrajectoryGroup:
    """A group with these rewards. fields: as those of `run`."""
    return TrajectoryGroup(
        scenario=Scenario.of(scenario), trajectories=[run(scenario, reward, **fields) for reward in rewards]
    )
