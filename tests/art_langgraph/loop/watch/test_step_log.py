"""`train` tells trackers of its steps, on the real server and trainer; trackers that fail or hang change nothing."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import count
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART, HeldOut, StepRecord, TrainerClient, train
from tests.support.patience import PATIENCE
from tests.support.runs.trackers import Hanging, Raising, Remembering
from tests.support.servers.trainer_server import TrainerServer
from trainer_server.tracking import background
from trainer_server.wire import ConfigError


def graph(policy: str) -> Any:
    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await ChatART(policy=policy, max_tokens=9).ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()


async def run(policy: str, **options: Any) -> list[StepRecord]:
    numbers = count()
    async with TrainerClient() as client:
        if policy not in {known.name for known in await client.policies()}:
            await client.create_policy(policy)
        steps = train(
            graph(policy),
            ["one", "two"],
            policy=policy,
            reward=lambda _: float(next(numbers) % 2),
            client=client,
            **{"steps": 1, "groups_per_step": 1, "n": 2, "progress": False, **options},
        )
        return [record async for record in steps]


async def test_steps_and_their_runs_reach_trackers_and_the_servers_own(
    connected: TrainerServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mine, bad, slow = Remembering(), Raising(), Hanging()
    records = await run("tracked", steps=2, run="mine", trackers=[mine, bad], held_out=HeldOut(["three"]))
    assert mine.calls == ["start", "log", "trajectories", "log", "trajectories", "finish"]
    started = mine.told[0][1]
    assert (started.policy, started.name, started.kind) == ("tracked", "mine", "train")
    assert (started.config["n"], started.config["grpo"]["loss_type"]) == (2, "dapo")
    assert [told[1:] for told in mine.told if told[0] == "log"] == [(r.step, r.summary()) for r in records]
    (first, last) = (told[2] for told in mine.told if told[0] == "trajectories")
    assert [run.evaluation for run in first] == [False, False]
    assert [run.evaluation for run in last] == [False, False, True]
    assert mine.told[-1] == ("finish", None)
    first_cost, cost, spent = records[0].cost, records[1].cost, records[1].spent
    assert first_cost is not None
    assert cost is not None
    assert spent is not None
    assert (first_cost.runs, cost.runs) == (3, 3), "two runs to train on, and one of an evaluation"
    assert cost.tokens.uncounted == 0
    assert cost.tokens.sampled > 0 < cost.tokens.prompt
    assert cost.gpu_usd is None, "the engine runs elsewhere"
    assert spent.total == first_cost + cost
    assert list(spent.models) == ["tracked"]
    assert "the tracker 'Raising' failed, and the training goes on" in caplog.text
    assert "Give it another address" in caplog.text

    monkeypatch.setattr(background, "FLUSH_SECONDS", 0.0)
    again = Remembering()
    (record,) = await run("tracked", run="mine", first_step=3, steps=3, trackers=[again, slow])
    slow.let_go.set()
    assert record.step == 3
    assert again.told[0][1].id == started.id, "the same training goes on"

    (file,) = (connected.home.root / "progress").glob("tracked-*.jsonl")
    deadline = time.monotonic() + PATIENCE
    while len(rows := [json.loads(line) for line in file.read_text().splitlines()]) < 3:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert [(row["step"], row["version"], row["kind"]) for row in rows] == [(n, n, "step") for n in (1, 2, 3)]
    assert rows[0]["metrics"]["tokens_trained"] == records[0].result.metrics["tokens_trained"]


async def test_the_environment_names_trackers_and_errors_end_them(
    connected: TrainerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_TRACKERS", "wandbb")
    with pytest.raises(ConfigError, match="ART_TRACKERS wandbb: there is jsonl, langfuse, langsmith, mlflow"):
        await run("tracked-2")
    mine = Remembering()
    with pytest.raises(ConfigError, match="held-out scenarios are trained on too"):
        await run("tracked-2", trackers=[mine], held_out=["one"])
    assert mine.calls == ["start", "finish"]
    assert "ConfigError" in mine.told[-1][1]
    assert [record.step for record in await run("tracked-2", trackers=[])] == [1]
