"""Rollouts and training at once against one after the other, and what a swap does to running answers.

    python -m benchmarks.steps.overlap [--json] [--steps 6] [--rounds 5] [--swaps 1]

Starts the trainer server on the embedded model. First `train` with `max_staleness` 0 and 1 on the same task, fresh
policies, turns interleaved; then rounds of streamed answers, with and without swaps in their midst: a version that no
engine holds is loaded, and answers. A step of training swaps once. The last line under --json is one JSON object:
`ratio` is seconds one after the other / at once, `swap_ratio` the 99th percentile of the streams' seconds with swaps /
without, `swap_seconds` the median until the swapped version has answered, `dropped` streams that broke.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from art_examples.quickstart.server_process import trainer_server
from langchain_core.runnables import Runnable
from langgraph.graph import START, MessagesState, StateGraph

from art_langgraph import ChatART, GRPOConfig, TrainerClient, train
from art_langgraph.loop.watch.record import StepRecord
from trainer_server.common import Connection

SCENARIOS = [f"Tell me something about the number {number}." for number in range(64)]
STREAMS = 16
VERSIONS = 4
"""More than there are slots: each has to be loaded again."""


def graph(policy: str, connection: Connection, max_tokens: int = 48) -> Runnable[Any, Any]:
    """A graph of one call."""
    model = ChatART(policy=policy, base_url=connection.url, api_key=connection.api_key, max_tokens=max_tokens)

    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile()


async def trained(connection: Connection, client: TrainerClient, policy: str, staleness: int, steps: int) -> float:
    """Seconds of a whole training with random rewards: what is learnt does not matter here."""
    await client.create_policy(policy)
    rng = random.Random(0)
    started = time.monotonic()
    records: list[StepRecord] = []
    async for record in train(
        graph(policy, connection), SCENARIOS, policy=policy, reward=lambda _: rng.random(), steps=steps, client=client,
        groups_per_step=4, n=8, config=GRPOConfig(lr=1e-5), max_staleness=staleness, progress=False,
    ):  # fmt: skip
        assert record.result.version == record.step, record.result.metrics
        assert record.result.metrics["staleness_max"] <= staleness
        records.append(record)
    return time.monotonic() - started


async def stream(http: httpx.AsyncClient, model: str, seed: int) -> float:
    """Seconds of one streamed answer."""
    started = time.monotonic()
    body = {"model": model, "messages": [{"role": "user", "content": f"Count on from {seed}."}], "max_tokens": 64,
            "stream": True, "ignore_eos": True}  # fmt: skip
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        lines = [line async for line in answer.aiter_lines() if line]
    if lines[-1] != "data: [DONE]":
        raise httpx.RemoteProtocolError(lines[-1])
    return time.monotonic() - started


async def swap(http: httpx.AsyncClient, policy: str, version: int) -> float:
    """Seconds until a version that is not loaded has answered."""
    started = time.monotonic()
    body = {"model": f"{policy}@{version}", "messages": [{"role": "user", "content": "1"}], "max_tokens": 1}
    (await http.post("/v1/chat/completions", json=body)).raise_for_status()
    return time.monotonic() - started


async def streams(
    http: httpx.AsyncClient, policy: str, versions: Iterator[int], swaps: int
) -> tuple[list[float], int, list[float]]:
    """Seconds of streams that run together, how many broke, and the seconds of the swaps meanwhile, each a second after
    the one before."""
    found = asyncio.gather(*(stream(http, f"{policy}@0", number) for number in range(STREAMS)), return_exceptions=True)
    loads = []
    for _ in range(swaps):
        await asyncio.sleep(1.0)
        assert not found.done(), "the streams were over before the swap: take fewer --swaps"
        loads.append(await swap(http, policy, next(versions)))
    seconds = [one for one in await found if isinstance(one, float)]
    return seconds, STREAMS - len(seconds), loads


async def run(connection: Connection, options: argparse.Namespace) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {connection.api_key}"}
    async with (
        TrainerClient(connection.url, connection.api_key) as client,
        httpx.AsyncClient(base_url=connection.url, headers=headers, timeout=600) as http,
    ):
        turns, overlapped = [], []
        for turn in range(options.turns):
            for name, staleness, found in (("turns", 0, turns), ("overlap", 1, overlapped)):
                found.append(await trained(connection, client, f"{name}{turn}", staleness, options.steps))
                print(f"{name}: {found[-1]:.1f} s", file=sys.stderr, flush=True)
        quiet: list[float] = []
        swapped: list[float] = []
        swaps: list[float] = []
        broken, versions = 0, itertools.cycle(range(1, VERSIONS + 1))
        for _ in range(options.rounds):
            for seconds, count in ((quiet, 0), (swapped, options.swaps)):
                some, failed, loads = await streams(http, "turns0", versions, count)
                seconds += some
                swaps += loads
                broken += failed
    p99 = [statistics.quantiles(each, n=100)[98] for each in (quiet, swapped)]
    return {
        "benchmark": "overlap", "ratio": statistics.median(turns) / statistics.median(overlapped),
        "seconds": {"turns": turns, "overlap": overlapped}, "swap_ratio": p99[1] / p99[0], "p99": p99,
        "swap_seconds": statistics.median(swaps), "swaps": len(swaps), "streams": len(quiet) + len(swapped),
        "dropped": broken,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--steps", type=int, default=6, help=f"of each training, at least {VERSIONS} (6)")
    parser.add_argument("--turns", type=int, default=2, help="trainings of each kind (2)")
    parser.add_argument("--rounds", type=int, default=5, help="of streams, of each kind (5)")
    parser.add_argument("--swaps", type=int, default=1, help="in a round (1)")
    options = parser.parse_args()
    if options.steps < VERSIONS:
        parser.error(f"--steps must be at least {VERSIONS}")
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        with trainer_server(
            home, home / "server.log", lambda line: print(line, file=sys.stderr), "--adapter-slots", "3"
        ) as at:
            result = asyncio.run(run(at, options))
    print(
        f"one after the other / at once: {result['ratio']:.2f}; streams with swaps / without, p99: "
        f"{result['swap_ratio']:.2f}; a load takes {result['swap_seconds']:.3f} s; {result['dropped']} of "
        f"{result['streams']} streams broke", file=sys.stderr,
    )  # fmt: skip
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
