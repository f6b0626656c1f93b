"""Rollouts of the quickstart against vLLM alone: tokens per second on the same prompts, both sides in one run.

    python -m benchmarks.rollouts [--json] [--rounds 2] [--runs 8]

    product     the quickstart's agent, its MCP server and the client ask a policy at the trainer server: gateway,
                ledger and the adapter are in the way
    raw vLLM    vLLM as it is, without adapters, plugins and log-probabilities, is asked for as many tokens after the
                same prompts; a run's next prompt follows when the one before is answered

A round has a scenario of each kind with RUNS runs of it, all at once, as a step of the quickstart. The first round is
not counted. `ratio` is the product's tokens per second over raw vLLM's. Each side has the machine for itself.
The last line under --json is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from art_examples.quickstart.agent import build_agent
from art_examples.quickstart.quickstart import CONCURRENCY, MAX_TOKENS
from art_examples.quickstart.scenarios import KINDS, training_scenarios
from art_examples.quickstart.server_process import trainer_server
from rich.console import Console
from rich.table import Table

from art_langgraph import ChatART, TrainerClient, gather
from art_mcp import connect
from testbed.running import running
from trainer_server.common import Connection, Home
from trainer_server.engines.base import EngineSettings
from trainer_server.engines.served_model import ServedModel, resolve
from trainer_server.engines.vllm.command import environment, free_port
from trainer_server.engines.vllm.install import engine_python
from trainer_server.process.hardware import flavour

POLICY = "cities"
KEY = "benchmark"


@dataclass(frozen=True, slots=True)
class Call:
    """A prompt, and how many tokens were sampled after it."""

    prompt_ids: list[int]
    sampled: int


Round = list[list[Call]]
"""The calls of each run, in their order."""


async def product(connection: Connection, rounds: int, runs: int) -> list[tuple[Round, float]]:
    """Each round's calls, and its seconds, on the product's side."""
    cities = Path(sys.modules[build_agent.__module__].__file__ or "").with_name("city_server.py")
    found = []
    async with (
        connect([sys.executable, str(cities)]) as server,
        TrainerClient(connection.url, connection.api_key) as trainer,
    ):
        await trainer.create_policy(POLICY, rank=8)
        policy: dict[str, Any] = {"base_url": connection.url, "api_key": connection.api_key}
        agent = build_agent(ChatART(policy=POLICY, max_tokens=MAX_TOKENS, **policy), await server.tools())
        scenarios = training_scenarios(0)
        for number in range(rounds + 1):
            chosen = scenarios[number * len(KINDS) : (number + 1) * len(KINDS)]
            began = time.perf_counter()
            groups = await gather(agent, chosen, n=runs, max_concurrency=CONCURRENCY, temperature=1.0, progress=False)
            seconds = time.perf_counter() - began
            ids = [[call.id for call in run.completions if call.id] for group in groups for run in group.trajectories]
            rows = await trainer.completions([one for run in ids for one in run])
            calls = [[Call(list(rows[one].prompt_token_ids), len(rows[one].token_ids)) for one in run] for run in ids]
            found.append((calls, seconds))
    return found[1:]


async def raw(url: str, model: str, rounds: Sequence[Round]) -> list[float]:
    """Seconds of each round on vLLM alone, after one that is not counted."""
    async with httpx.AsyncClient(
        base_url=url, timeout=600, headers={"Authorization": f"Bearer {KEY}"}, limits=httpx.Limits(max_connections=None)
    ) as http:

        async def run(calls: Sequence[Call]) -> None:
            for call in calls:
                body = {
                    "model": model, "prompt": call.prompt_ids, "max_tokens": call.sampled, "ignore_eos": True,
                    "temperature": 1.0,
                }  # fmt: skip
                answer = (await http.post("/v1/completions", json=body)).raise_for_status().json()
                assert answer["usage"]["completion_tokens"] == call.sampled, answer["usage"]

        seconds = []
        # What is not counted has the prompts' common beginning, as the product's first round has, and no more of them.
        warm_up = [[Call(call.prompt_ids[:300], call.sampled) for call in calls] for calls in rounds[0]]
        for calls_of_runs in (warm_up, *rounds):
            began = time.perf_counter()
            await asyncio.gather(*map(run, calls_of_runs))
            seconds.append(time.perf_counter() - began)
    return seconds[1:]


def raw_line(base: ServedModel, cache: Path, port: int) -> list[str]:
    """vLLM as one would start it by hand for this model, with the block size that serves common prompts best."""
    return [
        *(str(engine_python(cache)), "-m", "vllm.entrypoints.openai.api_server", "--model", base.path),
        *("--served-model-name", base.name, "--host", "127.0.0.1", "--port", str(port), "--api-server-count", "1"),
        *("--generation-config", "vllm", "--uvicorn-log-level", "warning", "--max-model-len", "auto"),
        *(("--block-size", "32") if flavour() == "cpu" else ()),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--rounds", type=int, default=2, help="rounds that count (2)")
    parser.add_argument("--runs", type=int, default=8, help="runs of each of the six scenarios of a round (8)")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # runs of an untrained policy fail in many ways
    cache = Home.find().cache
    base = resolve("embedded", cache, lambda line: print(line, file=sys.stderr))

    def tell(line: str) -> None:
        print(f"  {line[:160]}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="art-rollouts-") as scratch:
        home = Path(scratch)
        with trainer_server(home / "home", home / "server.log", tell, "--max-rank", "8") as connection:
            ours = asyncio.run(product(connection, options.rounds, options.runs))
        port = free_port()
        settings = EngineSettings(base=base, home=Home.find(), cpu=flavour() == "cpu")
        own = environment(settings, KEY) | {"ART_CPU_LORA": "0", "ART_PRECISION": "0", "PYTHONPATH": ""}
        url = f"http://127.0.0.1:{port}"
        with running(raw_line(base, cache, port), own, home / "vllm.log", url):
            theirs = asyncio.run(raw(url, base.name, [calls for calls, _ in ours]))
    calls = [call for round_calls, _ in ours for run in round_calls for call in run]
    sampled = sum(call.sampled for call in calls)
    seconds = {"product": sum(spent for _, spent in ours), "raw": sum(theirs)}
    speeds = {side: sampled / spent for side, spent in seconds.items()}
    table = Table("side", "calls", "tokens", "s", "tokens/s")
    for side in speeds:
        table.add_row(side, str(len(calls)), str(sampled), f"{seconds[side]:.1f}", f"{speeds[side]:.0f}")
    console = Console(stderr=options.json)
    console.print(table)
    ratio = speeds["product"] / speeds["raw"]
    console.print(f"product over raw vLLM: {ratio:.2f}")
    if options.json:
        result = {
            "benchmark": "rollouts", "ratio": ratio, "tokens_per_second": speeds, "seconds": seconds,
            "calls": len(calls), "tokens": sampled,
            "prompt_tokens": sum(len(call.prompt_ids) for call in calls) / len(calls),
        }  # fmt: skip
        print(json.dumps(result))


if __name__ == "__main__":
    main()
