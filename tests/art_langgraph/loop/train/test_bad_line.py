"""Client and server on two machines, with a line between them that is slow, loses packets, and is cut in the middle."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART, GRPOConfig, TrainerClient, Trajectory, TrajectoryStore, train
from art_langgraph.background.reports import flush, unsent
from benchmarks.stress.books import rows_of
from testbed.server_process import KEY
from tests.support.patience import PATIENCE
from tests.support.servers.machines import line, server_at
from trainer_server.common import Home
from trainer_server.policies.store import AdapterStore
from trainer_server.wire import CompletionStatus

pytestmark = pytest.mark.servers

CUT = float(os.environ.get("ART_LINE_CUT", "6"))
"""Seconds for which the line is cut."""


def test_a_training_goes_on_after_a_cut_and_nothing_is_lost_or_doubled(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, home = TrajectoryStore(tmp_path / "runs.sqlite"), Home(tmp_path / "home")
    calls = itertools.count()
    scored = defaultdict[str, Iterator[int]](itertools.count)
    reached = asyncio.Event()
    with line() as link, server_at(link.far, link.far_host, home.root, base_model, seen_from=link.near) as server:
        monkeypatch.setenv("ART_BASE_URL", server.url)
        monkeypatch.setenv("ART_API_KEY", KEY)
        model = ChatART(policy="p", max_tokens=20)

        async def node(state: MessagesState) -> dict[str, Any]:
            if next(calls) == 10:  # in the second step
                reached.set()
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()

        def reward(run: Trajectory) -> float:
            return float(next(scored[str(run.scenario.input)]) % 2)  # so that every group has both rewards

        async def cut() -> None:
            await reached.wait()
            link.set(cut=True)
            await asyncio.sleep(CUT)
            link.set(cut=False)

        async def trained() -> list[Any]:
            cutting = asyncio.create_task(cut())
            async with TrainerClient() as client:
                await client.create_policy("p")
                found = [
                    record
                    async for record in train(
                        graph, ["say a", "say b"], policy="p", reward=reward, steps=3,
                        client=client, groups_per_step=2, n=4, config=GRPOConfig(lr=1e-3), store=store, progress=False,
                    )
                ]  # fmt: skip
            await cutting
            return found

        before = unsent()
        records = link.near.run(lambda: asyncio.run(trained()))
        link.near.run(lambda: flush(PATIENCE))
        runs = store.list()
        headers = {"Authorization": f"Bearer {KEY}"}
        told = link.near.run(
            lambda: [
                httpx.get(f"{server.url}/api/rollouts/{run.rollout_id}/trace", headers=headers, timeout=PATIENCE)
                for run in runs
            ]
        )
        assert link.lost > 0
    assert [record.result.version for record in records] == [1, 2, 3]
    assert [record.failures for record in records] == [None] * 3
    assert AdapterStore(home.policies).versions("p") == [0, 1, 2, 3]
    assert len(list(home.jobs.glob("job-*"))) == 4, "one that made the policy, and one for each step"

    assert len(runs) == 24
    assert all(run.error is None for run in runs)
    seen = Counter(call.id for run in runs for call in run.completions)
    assert set(seen.values()) == {1}
    complete = [row.id for row in rows_of(home.ledger) if row.status == CompletionStatus.complete]
    assert len(complete) == len(set(complete))
    assert seen.keys() <= set(complete)
    assert [answer.status_code for answer in told] == [200] * 24
    assert unsent() == before
