"""A rollout goes over to another process by metadata: what it asks for, and that it evaluates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART, Scenario, TrainerClient, TrajectoryStore
from art_langgraph.capture import flush, install, uninstall
from art_langgraph.capture.handover import KEY, handover_metadata, take_up_rollout
from art_langgraph.capture.scope import Scope
from tests.support.runs.chat_models import Answering
from tests.support.servers.trainer_server import TrainerServer


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TrajectoryStore]:
    made = TrajectoryStore(tmp_path / "store.sqlite")
    install(made)
    yield made
    uninstall()


@pytest.mark.parametrize("version", [None, 3, {"agent": 0, "judge": 2}])
def test_what_is_handed_over_is_taken_up(version: Any) -> None:
    sent = Scope(temperature=0.5, version=version)
    scope, facts = take_up_rollout({"who": "me", **handover_metadata(sent, "sc-1", evaluation=True)})
    assert (scope.rollout_id, scope.temperature, scope.version) == (sent.rollout_id, 0.5, version)
    assert facts == {"scenario": "sc-1", "temperature": 0.5, "requested_version": version, "evaluation": True}


def test_a_run_of_no_rollout_has_a_scope_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    assert take_up_rollout({"who": "me"})[1] == {}
    assert caplog.messages == []
    assert take_up_rollout({KEY: "broken"})[1] == {}
    assert "the metadata 'art_rollout' of a run is no rollout" in caplog.text


@pytest.mark.parametrize(
    "ids", [{"id": "../policies/agent"}, {"id": ""}, {"id": "ro-1", "call": "x?y"}, {"id": "ro-1", "call": "../../x"}]
)
def test_ids_that_the_server_would_not_take_are_not_taken_up(
    ids: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    scope, facts = take_up_rollout({KEY: json.dumps(ids)})
    assert (scope.call, facts) == (None, {})
    assert scope.rollout_id.startswith("ro-")
    assert scope.rollout_id != ids["id"]
    assert "is no rollout, and is not taken up" in caplog.text


async def test_scenarios_that_differ_in_their_metadata_alone_stay_apart(store: TrajectoryStore) -> None:
    model = Answering()

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("model", node).add_edge(START, "model")
    ids = [Scenario(input="x", metadata={"seed": seed}).id for seed in range(2)]
    for scenario in ids:
        metadata = handover_metadata(Scope(), scenario, evaluation=False)
        await graph.compile().ainvoke({"messages": [("user", "x")]}, {"metadata": metadata})
    await asyncio.to_thread(flush)
    assert {run.scenario.id for run in store} == set(ids)


async def test_the_capture_of_a_process_takes_it_up(connected: TrainerServer, store: TrajectoryStore) -> None:
    model = ChatART(policy="agent", max_tokens=9)

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()
    sent = Scope(temperature=0.25, version=0)
    metadata = {"who": "me", **handover_metadata(sent, "sc-1", evaluation=True)}
    await graph.ainvoke({"messages": [("user", "say x")]}, {"metadata": metadata})
    flush()
    (run,) = store.list()
    assert (run.rollout_id, run.temperature, run.requested_version, run.evaluation) == (sent.rollout_id, 0.25, 0, True)
    assert run.metadata == {"who": "me"}, "what the platform adds is not the user's"
    async with TrainerClient() as trainer:
        row = await trainer.completion(run.completion_ids[0])
    assert (row.rollout, row.version, row.sampling.temperature) == (sent.rollout_id, 0, 0.25)
