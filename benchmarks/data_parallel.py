"""Our pool of two engines against one vLLM with two ranks of data parallelism: both behind the gateway, in one run.

    python -m benchmarks.data_parallel [--json] [--rollouts 16] [--runs 1] [--turns 4] [--own 150] [--rounds 2]
                                       [--adapters 4] [--side NAME]...

    pool            two vLLM servers. The gateway keeps a rollout on its engine, and the first prompts of a scenario on
                    one engine where they are long
    least busy      the same, with the words of the scenario in the system message, which the gateway does not look at:
                    a rollout goes to the engine with the fewest requests
    data parallel   one vLLM server with --data-parallel-size 2. vLLM chooses the rank of each request

A round is ROLLOUTS conversations at once, RUNS of each scenario, of TURNS turns each, with an adapter. All have the
same system prompt; a scenario begins with OWN words of its own, and a turn with all that was said before. The first
round is not counted. `ready`: seconds until the engines answer. `requests`: how many each engine or rank answered.
`cached`: which share of the prompts' tokens was in a prefix cache. Both are of vLLM's own counters. `swap`: seconds
until all engines or ranks hold a further adapter, the median of ADAPTERS. `GiB`: resident memory. Each side has the
machine for itself. The last line under --json is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
from art_examples.quickstart.server_process import trainer_server
from rich.console import Console
from rich.table import Table

from art_langgraph import TrainerClient
from testbed.running import running
from trainer_server.common import Connection, Home
from trainer_server.engines.base import EngineSettings
from trainer_server.engines.served_model import ServedModel, resolve
from trainer_server.engines.vllm.command import command, environment, free_port

KEY = "benchmark"
POLICY = "p"
SLOTS = 8
SIDES: dict[str, tuple[tuple[str, ...], ...]] = {
    "pool": ((), ()), "least busy": ((), ()), "data parallel": (("--data-parallel-size", "2"),),
}  # fmt: skip
"""By side: the further flags of each of its vLLM servers."""
SYSTEM = "You answer in one short sentence. " + "You know the seas, rivers and lakes of the world by name. " * 18
WORDS = ("north", "salt", "wave", "bay", "delta", "harbour", "ice", "tide", "bridge", "rain", "shore", "island")
_COUNTED = re.compile(
    r'vllm:(?P<what>request_success|prefix_cache_hits|prefix_cache_queries)_total\{engine="(?P<rank>\d+)".*\} '
    r"(?P<value>\S+)"
)


async def conversation(http: httpx.AsyncClient, name: str, scenario: str, in_system: bool, turns: int, own: int) -> int:
    """A rollout. Returns how many tokens were sampled.

    Args:
        http: Client of the gateway.
        name: Of the rollout.
        scenario: Its words are functions of this text.
        in_system: Whether they are in the system message.
        turns: Of the rollout.
        own: How many words there are.
    """
    text, sampled = "I have read: " + " ".join(random.Random(scenario).choices(WORDS, k=own)) + ". ", 0
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM + text if in_system else SYSTEM}]
    for turn in range(turns):
        before = "" if turn or in_system else text
        messages.append({"role": "user", "content": f"{before}Tell me about water number {turn} of {scenario}."})
        body = {"model": POLICY, "messages": messages, "max_tokens": 24, "temperature": 1.0}
        answer = await http.post("/v1/chat/completions", json=body, headers={"X-ART-Rollout": name})
        completion = answer.raise_for_status().json()
        sampled += completion["usage"]["completion_tokens"]
        messages.append({"role": "assistant", "content": completion["choices"][0]["message"]["content"]})
    await http.delete(f"/api/rollouts/{name}")
    return sampled


def counted(urls: Sequence[str]) -> dict[str, Counter[str]]:
    """vLLM's counters, by what they count and by engine or rank."""
    found: dict[str, Counter[str]] = {"request_success": Counter(), "prefix_cache_hits": Counter()}
    found["prefix_cache_queries"] = Counter()
    for number, url in enumerate(urls):
        text = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {KEY}"}, timeout=60).text
        for one in _COUNTED.finditer(text):
            found[one["what"]][f"{number}.{one['rank']}"] += int(float(one["value"]))
    return found


async def rollouts(
    connection: Connection, urls: Sequence[str], in_system: bool, options: argparse.Namespace
) -> dict[str, Any]:
    """Speed, balance and cache of the rounds that count."""
    async with TrainerClient(connection.url, connection.api_key) as trainer:
        await trainer.create_policy(POLICY, rank=8)
    headers = {"Authorization": f"Bearer {connection.api_key}"}
    limits = httpx.Limits(max_connections=None)
    sampled, seconds, before = 0, 0.0, counted(urls)
    async with httpx.AsyncClient(base_url=connection.url, headers=headers, limits=limits, timeout=600) as http:
        for number in range(options.rounds + 1):
            began = time.perf_counter()
            runs = (
                conversation(
                    http, f"round-{number}-{one}", f"lake {number}-{one // options.runs}", in_system,
                    options.turns, options.own,
                )
                for one in range(options.rollouts)
            )  # fmt: skip
            tokens = sum(await asyncio.gather(*runs))
            if number:
                sampled, seconds = sampled + tokens, seconds + time.perf_counter() - began
            else:
                before = counted(urls)
    after = counted(urls)
    grown = {what: {one: after[what][one] - before[what][one] for one in after[what]} for what in after}
    return {
        "tokens_per_second": sampled / seconds,
        "seconds": seconds,
        "tokens": sampled,
        "requests": list(grown["request_success"].values()),
        "cached": sum(grown["prefix_cache_hits"].values()) / sum(grown["prefix_cache_queries"].values()),
    }


async def swaps(urls: Sequence[str], adapter: Path, number: int) -> float:
    """Seconds until all engines hold a further adapter: the median."""
    seconds = []
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, timeout=600) as http:
        for one in range(number):
            body = {"lora_name": f"swap-{one}", "lora_path": str(adapter)}
            began = time.perf_counter()
            answers = await asyncio.gather(*(http.post(f"{url}/v1/load_lora_adapter", json=body) for url in urls))
            seconds.append(time.perf_counter() - began)
            assert [answer.status_code for answer in answers] == [200] * len(urls), answers[0].text
            unload = {"lora_name": f"swap-{one}"}
            await asyncio.gather(*(http.post(f"{url}/v1/unload_lora_adapter", json=unload) for url in urls))
    return statistics.median(seconds)


def resident() -> float:
    """GiB of the processes that this one started, pages that several share counted for each."""
    found = psutil.Process(os.getpid()).children(recursive=True)
    return sum(child.memory_info().rss for child in found if child.is_running()) / 2**30


def measured(side: str, base: ServedModel, scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One side."""
    urls, home = [], Home.find()
    began = time.perf_counter()
    with ExitStack() as stack:
        starting = []
        for number, flags in enumerate(SIDES[side]):
            port = free_port()
            extra = ("--max-model-len", "2048", "--max-num-seqs", str(options.rollouts), *flags)
            settings = EngineSettings(
                base=base, home=home, cpu=True, adapter_slots=SLOTS, max_rank=8, args=extra, kv_cache_gib=1
            )
            line = command(settings, port)
            urls.append(f"http://127.0.0.1:{port}")
            started = running(line, environment(settings, KEY), scratch / f"{side}-{number}.log", urls[-1])
            starting.append(started)
        _enter_all(stack, starting)
        ready, memory = time.perf_counter() - began, resident()
        arguments = [word for url in urls for word in ("--engine-url", url)]
        arguments += ["--adapter-slots", str(SLOTS), "--max-rank", "8"]
        where = scratch / f"{side}-home"
        with trainer_server(where, scratch / f"{side}.log", lambda _: None, *arguments) as connection:
            figures = asyncio.run(rollouts(connection, urls, side == "least busy", options))
            adapter = next(Home(where).policies.rglob("adapter_model.safetensors")).parent
            figures["swap_seconds"] = asyncio.run(swaps(urls, adapter, options.adapters))
    return {**figures, "ready_seconds": ready, "resident_gib": memory}


def _enter_all(stack: ExitStack, starting: Sequence[Any]) -> None:
    """Starts all servers at once: each waits in a thread until it is ready."""
    with ThreadPoolExecutor(len(starting)) as pool:
        for one in [pool.submit(started.__enter__) for started in starting]:
            one.result()
    for started in starting:
        stack.push(started.__exit__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--rollouts", type=int, default=16, help="conversations at once (16)")
    parser.add_argument("--runs", type=int, default=1, help="of them of each scenario (1)")
    parser.add_argument("--turns", type=int, default=4, help="turns of each (4)")
    parser.add_argument("--own", type=int, default=150, help="words that a conversation begins with (150)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds that count (2)")
    parser.add_argument("--adapters", type=int, default=4, help="adapters that are loaded (4)")
    parser.add_argument("--side", action="append", choices=list(SIDES), help="only this one; may be repeated (all)")
    options = parser.parse_args()
    os.environ["ART_ENGINE_API_KEY"] = KEY
    base = resolve("embedded", Home.find().cache, lambda line: print(line, file=sys.stderr))
    with tempfile.TemporaryDirectory(prefix="art-data-parallel-") as scratch:
        sides = {side: measured(side, base, Path(scratch), options) for side in options.side or SIDES}
    table = Table("side", "ready, s", "tokens/s", "requests", "cached", "swap, s", "GiB")
    for side, found in sides.items():
        table.add_row(
            side, f"{found['ready_seconds']:.0f}", f"{found['tokens_per_second']:.0f}",
            " + ".join(map(str, found["requests"])), f"{found['cached']:.2f}", f"{found['swap_seconds']:.3f}",
            f"{found['resident_gib']:.1f}",
        )  # fmt: skip
    console = Console(stderr=options.json)
    console.print(table)
    if options.json:
        print(json.dumps({"benchmark": "data_parallel", "sides": sides}))


if __name__ == "__main__":
    main()
