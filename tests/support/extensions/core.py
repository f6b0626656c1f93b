"""`python -m tests.support.extensions.core HOME BASE`: the core without any extension captures, scores, trains and
serves, and says what is missing where somebody asks for an extension."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from typer.testing import CliRunner

import art_langgraph
from art_langgraph import ChatART, TrainerClient, TrajectoryStore, gather, train
from art_langgraph.cli.main import build
from tests.support.servers.trainer_server import TOKEN, TrainerServer, trainer_server_on
from trainer_server.common.extensions import EXTENSIONS
from trainer_server.tracking import CLIENT_TRACKERS, make_trackers
from trainer_server.wire import ConfigError


async def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await ChatART(policy="agent", max_tokens=9).ainvoke(state["messages"])]}


async def learn() -> None:
    graph: Any = StateGraph(MessagesState).add_node("model", answer).add_edge(START, "model").compile()
    rewards = count()
    async with TrainerClient() as client:
        await client.create_policy("agent")
        steps = train(
            graph,
            ["one", "two"],
            policy="agent",
            reward=lambda _: float(next(rewards) % 2),
            client=client,
            steps=1,
            groups_per_step=1,
            n=2,
            progress=False,
        )
        (record,) = [record async for record in steps]
        assert record.result.version == 1
        store = TrajectoryStore()
        (group,) = await gather(graph, ["three"], 1, store=store, progress=False)
        (trajectory,) = group.trajectories
        assert trajectory.completions[0].version == 1, "the version that was trained answers"
        assert [run.id for run in store.list()] == [trajectory.id]


def refuse(server: TrainerServer) -> None:
    """What somebody gets who asks for an extension."""
    with server.http() as http:
        for path in ("/", "/ui/runs", "/api/status"):
            response = http.get(path)
            assert response.status_code == 501, response.text
            assert "there is no trainer_server.dashboard. Install all" in response.json()["error"]["message"]
    for command in ("doctor", "plan", "autopilot", "autorl", "import", "scenarios", "specialize"):
        result = CliRunner().invoke(build(), [command, "--some", "option"])
        assert isinstance(result.exception, ConfigError), command
        assert "is not installed here" in str(result.exception)
    wanted: Callable[[], object]
    for wanted in (
        lambda: TrajectoryStore("postgresql://db.example.com/art"),
        lambda: asyncio.run(gather(lambda: None, ["x"], 1, executor="ray", progress=False)),
        lambda: make_trackers(["wandb"]),
        lambda: make_trackers(["langfuse"], CLIENT_TRACKERS),
        lambda: art_langgraph.autopilot,
    ):
        with pytest.raises(ConfigError, match="is not installed here"):
            wanted()


def main(home: Path, base: Path) -> None:
    assert not any(extension.present for extension in EXTENSIONS)
    with trainer_server_on(home, base) as server:
        os.environ |= {"ART_BASE_URL": server.url, "ART_API_KEY": TOKEN, "ART_HOME": str(home / "client")}
        asyncio.run(learn())
        refuse(server)
    print("the core works alone")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
