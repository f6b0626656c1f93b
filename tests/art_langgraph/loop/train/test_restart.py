"""A training loop outlives kill -9 of the trainer server: in rollouts, and while a step is computed."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART, GRPOConfig, TrainerClient, train
from tests.support.patience import PATIENCE
from tests.support.servers.processes import Processes, processes
from trainer_server.wire import Job

pytestmark = pytest.mark.slow


class Killed:
    """Kills the server once it is told to, and starts it again."""

    def __init__(self, running: Processes) -> None:
        self.running = running
        self.times = 0
        self._reviving: asyncio.Task[None] | None = None

    def now(self) -> None:
        assert self.running.server is not None
        self.times += 1
        self.running.server.kill()
        self.running.server.wait(PATIENCE)
        self._reviving = asyncio.create_task(asyncio.to_thread(self._revive))

    def _revive(self) -> None:
        self.running.revive()
        self.running.until_ready()


class KillingClient(TrainerClient):
    """Has the server killed when it first asks for the job of its third step."""

    killed: Killed
    asked: set[str]

    async def job(self, job_id: str, *, wait: float = 0.0) -> Job:
        if job_id not in self.asked:
            self.asked.add(job_id)
            if len(self.asked) == 3:
                self.killed.now()
        return await super().job(job_id, wait=wait)


@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_a_loop_outlives_kill_nine(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    max_staleness: int,
) -> None:  # fmt: skip
    with processes(tmp_path / "home", base_model) as running:
        running.start()
        url, key = f"http://127.0.0.1:{running._port}", running.home.token.read_text().strip()
        monkeypatch.setenv("ART_BASE_URL", url)
        monkeypatch.setenv("ART_API_KEY", key)
        killed, runs = Killed(running), iter(range(10**6))
        patient = ChatART(policy="p", max_tokens=9)
        plain = ChatOpenAI(model="p", base_url=f"{url}/v1", api_key=key, max_tokens=9, max_retries=0,
                           http_async_client=httpx.AsyncClient(timeout=60))  # fmt: skip

        async def node(state: MessagesState) -> dict[str, Any]:
            number = next(runs)
            if number == 6:  # in the second step
                killed.now()
            model = plain if number % 2 else patient
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()
        rewards = iter(range(10**6))
        async with KillingClient() as client:
            client.killed, client.asked = killed, set()
            await client.create_policy("p")
            records = [
                record
                async for record in train(
                    graph, ["say a"], policy="p", reward=lambda _: float(next(rewards) % 2), steps=4, client=client,
                    groups_per_step=1, n=4, max_staleness=max_staleness, progress=False,
                    config=GRPOConfig(lr=1e-3, max_staleness=max_staleness or None),
                )
            ]  # fmt: skip
    assert killed.times == 2
    assert [record.result.version for record in records] == [1, 2, 3, 4]
    assert [record.failures for record in records] == [None] * 4
    assert all(len(group.trajectories) == 4 for record in records for group in record.groups)
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]
    assert any(f"no trainer server answers at {url}" in warning for warning in warnings)
    assert any("answers again" in warning for warning in warnings)
