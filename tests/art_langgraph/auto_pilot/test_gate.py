"""Evaluations on the gate belong to one policy, not to its name; one that is used again is named as such."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import HeldOut, Trajectory, TrajectoryStore, weighted
from art_langgraph.auto_pilot.gate import Gate
from art_langgraph.auto_pilot.preparation import Preparation
from art_langgraph.auto_pilot.runs import StoredRuns
from art_langgraph.auto_pilot.settings import AutopilotOptions
from art_langgraph.auto_pilot.state import Phase, State
from art_langgraph.auto_pilot.state_store import Journal, StateStore
from art_langgraph.loop.evaluate import full_reward
from tests.support.runs.chat_models import Answering
from trainer_server.wire import Policy, PolicySpec


def policy(created: float) -> Policy:
    return Policy(name="p", spec=PolicySpec(name="p"), base_model="base", created=created, latest=1)


@pytest.fixture
def store(tmp_path: Path) -> TrajectoryStore:
    return TrajectoryStore(tmp_path / "runs.sqlite")


def graph() -> Any:
    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await Answering(policy="p@0").ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()


def longer(least: int) -> Callable[[Trajectory], float]:
    return lambda run: float(len(run.final_text) > least)


async def test_a_policy_that_is_made_anew_is_measured_anew(store: TrajectoryStore) -> None:
    graph: Any = object()
    client: Any = None
    gate = Gate(AutopilotOptions("p", client, gate=["say held"], graph=graph, reward=full_reward), store)
    evaluation: Any = object()
    (await gate._evaluations(policy(1.0))).by_version[1] = evaluation
    assert await gate.find_evaluation(policy(1.0), 1) is evaluation
    assert await gate.find_evaluation(policy(2.0), 1) is None


async def measured(store: TrajectoryStore, candidate: int, *, name: str = "", least: int = 1) -> str:
    """What a process says that measures a candidate beside version 0."""
    client: Any = None
    options = AutopilotOptions(
        "p",
        client,
        train_every=1,
        gate=HeldOut(["say held"], temperature=None),
        graph=graph(),
        reward=weighted(long=(1.0, longer(least))),
        gate_name=name,
    )
    gate = Gate(options, store)
    journal = Journal(StateStore(store, "p"))
    preparation = Preparation(options, store, journal=journal, run_source=StoredRuns(store), gate=gate)
    signals = [{"step": 1, "version": candidate}]
    state = State(policy="p", created=1.0, phase=Phase.gate, candidate=candidate, signals=signals)
    await preparation.measure(state, policy(1.0))
    (entry,) = journal.take_entries()
    assert ("measured" in entry.numbers["champion"]) == ("measured before" in entry.reason)
    return entry.reason


async def test_the_promoted_version_is_measured_again_only_where_the_reward_or_the_name_is_another(
    store: TrajectoryStore,
) -> None:
    assert "promoted: success 1.000 (0.207 to 1.000)" in await measured(store, 1)
    assert "promoted: success 1.000 (0.207 to 1.000), measured before, at 2" in await measured(store, 2)
    stricter = await measured(store, 3, least=10)
    assert "it gains +0.000" in stricter, "the earlier figure was of a milder reward"
    assert "promoted: success 0.000" in stricter
    assert "measured before" not in stricter
    assert "measured before" not in await measured(store, 4, name="a new graph")
    assert "measured before" in await measured(store, 5, name="a new graph")
