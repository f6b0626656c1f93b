"""Evaluations on the gate belong to one policy, not to its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from art_langgraph import TrajectoryStore
from art_langgraph.auto_pilot.gate import Gate
from art_langgraph.loop.evaluate import full_reward
from trainer_server.wire import Policy, PolicySpec


def policy(created: float) -> Policy:
    return Policy(name="p", spec=PolicySpec(name="p"), base_model="base", created=created, latest=1)


async def test_a_policy_that_is_made_anew_is_measured_anew(tmp_path: Path) -> None:
    graph: Any = object()
    store = TrajectoryStore(tmp_path / "runs.sqlite")
    gate = Gate(["say held"], graph=graph, reward=full_reward, success=full_reward, store=store)
    evaluation: Any = object()
    (await gate._evaluations(policy(1.0))).made[1] = evaluation
    assert await gate.kept(policy(1.0), 1) is evaluation
    assert await gate.kept(policy(2.0), 1) is None
