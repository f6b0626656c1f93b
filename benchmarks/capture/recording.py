"""A graph that is recorded against one that is not."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART, TrainerClient, TrajectoryStore
from art_langgraph.capture.process import install, uninstall
from benchmarks.capture.running import running, timed, wait_for
from testbed.tiny_model import tiny_base
from trainer_server.engines.vllm.command import free_port

CALLS = 4
"""Model calls of one run of the graph."""


def make_graph(model: ChatOpenAI) -> Runnable[Any, Any]:
    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"][-1:])]}

    graph = StateGraph(MessagesState)
    for number in range(CALLS):
        graph.add_node(f"n{number}", node)
        graph.add_edge(f"n{number - 1}" if number else START, f"n{number}")
    return graph.compile()


async def capture_rounds(url: str, key: str, store: TrajectoryStore, options: argparse.Namespace) -> dict[str, Any]:
    async with TrainerClient(url, key) as trainer:
        await trainer.create_policy("agent")
    sides = {
        "without": make_graph(ChatOpenAI(model="agent", base_url=f"{url}/v1", api_key=key, max_tokens=40)),
        "with": make_graph(ChatART(policy="agent", base_url=url, api_key=key, max_tokens=40)),
    }
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    question = {"messages": [("user", "say a dozen words or so, as an agent would")]}
    for round_number in range(options.rounds + 1):
        for side in ("without", "with") if round_number % 2 else ("with", "without"):
            if side == "with":
                install(store)
            graph = sides[side]
            spent = await timed(lambda _, graph=graph: graph.ainvoke(question), options.rollouts, options.concurrency)
            if side == "with":
                uninstall()
            if round_number:  # the first one warms up
                seconds[side].append(spent)
    calls = options.rollouts * CALLS
    captured = sum(len(one.completion_ids) for one in store)
    if captured != calls * (options.rounds + 1):
        raise AssertionError(f"{captured} completions were captured, not {calls * (options.rounds + 1)}")
    medians = {side: statistics.median(times) for side, times in seconds.items()}
    return {
        "seconds": seconds, "median_s": medians, "calls": calls, "ratio": medians["with"] / medians["without"],
        "added_ms": 1000 * (medians["with"] - medians["without"]) / calls,
    }  # fmt: skip


def measure_capture(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The two sides, against an engine that answers at once."""
    engine_port, port, key = free_port(), free_port(), "benchmark"
    base = tiny_base(scratch)
    environment = {"ART_API_KEY": key}
    with ExitStack() as stack:
        factory = ["testbed.engine_app:make_app", "--factory", "--port", str(engine_port), "--log-level", "error"]
        stack.enter_context(running(sys.executable, "-m", "uvicorn", *factory))
        wait_for(f"http://127.0.0.1:{engine_port}/health", lambda answer: answer.status_code == 200)
        server = ["--home", str(scratch / "home"), "--port", str(port), "--model", str(base)]
        engine = ["--engine-url", f"http://127.0.0.1:{engine_port}"]
        stack.enter_context(running(sys.executable, "-m", "trainer_server", *server, *engine, env=environment))
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/health", lambda answer: bool(answer.json()["ready"]))
        return asyncio.run(capture_rounds(url, key, TrajectoryStore(scratch / "store.sqlite"), options))
