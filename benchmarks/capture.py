"""What capture costs: a graph with ChatART, recorded, against the same graph with ChatOpenAI, not recorded.

    python -m benchmarks.capture [--json] [--concurrency 64] [--rollouts 128] [--rounds 7] [--no-vllm]

Both sides go through the same gateway to an engine that answers at once; rounds are interleaved, and a side's figure is
the median of its rounds. Then the gateway against vLLM itself, on the embedded model, with the same requests (left out
by --no-vllm, and said so). The last line under --json is one JSON object: `ratio` is time with / time without capture,
`added_ms` the difference per model call, `gateway_ratio` the gateway's throughput / vLLM's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from rich.console import Console
from rich.table import Table

from art_langgraph import ChatART, TrainerClient, TrajectoryStore
from art_langgraph.capture.process import install, uninstall
from testbed.tiny_model import tiny_base
from trainer_server.engines.base import EngineSettings
from trainer_server.engines.served_model import resolve
from trainer_server.engines.vllm import install as engine_install
from trainer_server.engines.vllm.command import free_port
from trainer_server.engines.vllm.engine import VLLMEngine
from trainer_server.process.hardware import flavour
from trainer_server.wire import Home

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


@contextmanager
def running(*command: str, env: dict[str, str] | None = None) -> Iterator[None]:
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(env or {})})
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def wait_for(url: str, ready: Callable[[httpx.Response], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if ready(httpx.get(url, timeout=2)):
                return
        except httpx.HTTPError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"{url} is not ready after {seconds:.0f} s")
        time.sleep(0.1)


async def timed(work: Callable[[int], Awaitable[Any]], count: int, concurrency: int) -> float:
    """Seconds for `count` calls of work, at most `concurrency` at once."""
    limit = asyncio.Semaphore(concurrency)

    async def one(number: int) -> None:
        async with limit:
            await work(number)

    started = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(count)))
    return time.perf_counter() - started


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


async def measure_gateway(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The gateway against vLLM itself. Requests never repeat, so that no prefix cache helps one side alone."""
    cache = Home.find().cache
    engine_install.install(cache, lambda line: print(line, file=sys.stderr))
    base = resolve("embedded", cache)
    cpu = flavour() == "cpu"
    settings = EngineSettings(base=base, home=Home(scratch / "vllm"), cpu=cpu, adapter_slots=2, max_rank=8)
    engine = VLLMEngine.launched(settings)
    port, key = free_port(), "benchmark"
    try:
        await engine.start(lambda line: print(f"  {line}", file=sys.stderr, flush=True))
        engine_key = engine.client.http.headers["Authorization"].removeprefix("Bearer ")
        command = [
            "-m",
            "trainer_server",
            "--home",
            str(scratch / "gateway"),
            "--port",
            str(port),
            "--model",
            "embedded",
        ]
        environment = {"ART_API_KEY": key, "ART_ENGINE_API_KEY": engine_key}
        with running(sys.executable, *command, "--engine-url", engine.url, env=environment):
            url = f"http://127.0.0.1:{port}"
            await asyncio.to_thread(wait_for, f"{url}/health", lambda answer: bool(answer.json()["ready"]), 120)
            headers = {"Authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=None) as gateway:
                return await gateway_rounds(engine.client.http, gateway, base.name, options)
    finally:
        await engine.stop()


async def gateway_rounds(
    direct: httpx.AsyncClient, gateway: httpx.AsyncClient, model: str, options: argparse.Namespace
) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"direct": [], "gateway": []}
    clients = {"direct": direct, "gateway": gateway}
    for round_number in range(options.rounds + 1):
        for side in ("direct", "gateway") if round_number % 2 else ("gateway", "direct"):

            async def ask(number: int, side: str = side, at: int = round_number) -> None:
                text = f"{side} {at}-{number}: tell me of the sea. " + "The sea is wide and the day is long. " * 12
                body = {
                    "model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 32, "min_tokens": 32,
                    "logprobs": True, "top_logprobs": 0, "return_token_ids": True,
                }  # fmt: skip
                (await clients[side].post("/v1/chat/completions", json=body)).raise_for_status()

            spent = await timed(ask, options.concurrency, options.concurrency)
            if round_number:
                seconds[side].append(spent)
    medians = {side: statistics.median(times) for side, times in seconds.items()}
    return {"seconds": seconds, "median_s": medians, "gateway_ratio": medians["direct"] / medians["gateway"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--concurrency", type=int, default=64, help="rollouts at once (64)")
    parser.add_argument("--rollouts", type=int, default=128, help="rollouts of one round (128)")
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds of each side (7)")
    parser.add_argument("--no-vllm", action="store_true", help="leave out the gateway against vLLM")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        capture = measure_capture(Path(scratch), options)
        gateway = None if options.no_vllm else asyncio.run(measure_gateway(Path(scratch), options))
    table = Table("comparison", "median s", "median s", "spread", "ratio")
    rows = [("capture: without, with", capture, ("without", "with"), capture["ratio"])]
    if gateway:
        rows.append(("vLLM: direct, gateway", gateway, ("direct", "gateway"), gateway["gateway_ratio"]))
    for name, found, (first, second), ratio in rows:
        spread = " ".join(f"{min(found['seconds'][s]):.2f}-{max(found['seconds'][s]):.2f}" for s in (first, second))
        times = [f"{found['median_s'][side]:.3f}" for side in (first, second)]
        table.add_row(name, *times, spread, f"{ratio:.3f}")
    console = Console(stderr=options.json)
    console.print(table)
    console.print(f"capture adds {capture['added_ms']:.3f} ms to a model call")
    if gateway is None:
        console.print("gateway against vLLM: skipped (--no-vllm)")
    if options.json:
        result = {
            "benchmark": "capture", "ratio": capture["ratio"], "added_ms": capture["added_ms"],
            "gateway_ratio": gateway["gateway_ratio"] if gateway else None, "capture": capture, "gateway": gateway,
            "concurrency": options.concurrency,
        }  # fmt: skip
        print(json.dumps(result))


if __name__ == "__main__":
    main()
