"""LoRA requests on vLLM's CPU engine: stock against this project's plugin, on the same requests, in one run.

    python -m benchmarks.cpu_lora [--json] [--requests 32] [--tokens 48] [--repeats 2]

Each side gets a vLLM of its own, one after the other, with the same adapters (rank 8, random weights on all layers).
Workloads, all requests at once, temperature 0, no end-of-text:
    common prompt    one adapter, requests that share all but the last words of ~300 tokens
    own prompts      one adapter, requests that share nothing
    four adapters    as the first, over four adapters
    base             as the first, without an adapter
A workload's figure is its best repeat, after one that is not counted. The last line under --json is one JSON object;
`ratio` is stock over plugin for the common prompt. Where there is a GPU the plugin is not used: nothing is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from trainer_server.engines.base import EngineSettings
from trainer_server.engines.served_model import ServedModel, resolve
from trainer_server.engines.vllm import install as engine_install
from trainer_server.engines.vllm.engine import VLLMEngine
from trainer_server.process.hardware import flavour
from trainer_server.wire import Home, PolicySpec

RANK: Literal[8] = 8
ADAPTERS = 4
WORKLOADS = ("common prompt", "own prompts", "four adapters", "base")


def make_adapters(base: ServedModel, where: Path) -> list[Path]:
    """Adapters with random A and B."""
    import torch

    from trainer_server.training.model.policy import PolicyModel

    model = PolicyModel(base.path)
    found = []
    for index in range(ADAPTERS):
        model.initialise(PolicySpec(name=f"bench{index}", rank=RANK, seed=index))
        with torch.no_grad():
            for name, weight in model.parameters():
                if "lora_B" in name:
                    weight.normal_(0.0, 0.01)
        path = where / f"bench{index}"
        path.mkdir()
        model.save(path)
        found.append(path)
    return found


def requests(workload: str, base: str, count: int, repeat: int) -> list[tuple[str, str]]:
    """(model, prompt) of every request; no repeat finds the prompts of another in vLLM's prefix cache."""
    sentence = f"The harbour of town {repeat}-{{}} was busy that morning, and nobody knew what the day would bring. "
    common = "".join(sentence.format(number) for number in range(13))
    own = ["".join(sentence.format(f"{index} {number}") for number in range(12)) for index in range(count)]
    prompts = own if workload == "own prompts" else [f"{common}What did visitor {index} see?" for index in range(count)]
    models = {"base": [base], "four adapters": [f"bench{index}" for index in range(ADAPTERS)]}.get(workload, ["bench0"])
    return [(models[index % len(models)], prompt) for index, prompt in enumerate(prompts)]


async def measure(
    base: ServedModel, home: Home, adapters: Sequence[Path], plugin: bool, options: argparse.Namespace
) -> dict[str, Any]:
    """Seconds by workload on one side."""
    os.environ["ART_CPU_LORA"] = "1" if plugin else "0"
    settings = EngineSettings(base=base, home=home, cpu=True, adapter_slots=ADAPTERS, max_rank=RANK)
    engine = VLLMEngine.launched(settings)
    seconds: dict[str, float] = {}
    prompt_tokens: dict[str, float] = {}

    async def one(model: str, prompt: str) -> int:
        body = {
            "model": model, "prompt": prompt, "max_tokens": options.tokens, "temperature": 0.0, "ignore_eos": True,
        }  # fmt: skip
        answer = (await engine.client.http.post("/v1/completions", json=body)).raise_for_status().json()
        assert answer["usage"]["completion_tokens"] == options.tokens
        return int(answer["usage"]["prompt_tokens"])

    try:
        await engine.start(lambda line: print(f"  {line}", file=sys.stderr, flush=True))
        for path in adapters:
            await engine.load(path.name, path)
        for workload in WORKLOADS:
            times = []
            for repeat in range(options.repeats + 1):
                batch = requests(workload, base.name, options.requests, repeat)
                started = time.perf_counter()
                counts = await asyncio.gather(*(one(*request) for request in batch))
                times.append(time.perf_counter() - started)
            seconds[workload] = min(times[1:])
            prompt_tokens[workload] = sum(counts) / len(counts)
            print(f"  {workload}: {seconds[workload]:.2f} s", file=sys.stderr, flush=True)
    finally:
        await engine.stop()
    return {"seconds": seconds, "prompt_tokens": prompt_tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--requests", type=int, default=32, help="requests at once (32)")
    parser.add_argument("--tokens", type=int, default=48, help="tokens to generate for each (48)")
    parser.add_argument("--repeats", type=int, default=2, help="counted repeats, of which the best is taken (2)")
    options = parser.parse_args()
    if flavour() != "cpu":
        message = "there is a GPU here: vLLM computes LoRA with its own GPU kernels, the CPU plugin is not used"
        print(json.dumps({"benchmark": "cpu_lora", "skipped": message, "ratio": None}) if options.json else message)
        return
    cache = Home.find().cache
    engine_install.install(cache, lambda line: print(line, file=sys.stderr))
    base = resolve("embedded", cache, lambda line: print(line, file=sys.stderr))
    with tempfile.TemporaryDirectory() as scratch:
        adapters = make_adapters(base, Path(scratch))
        sides = {}
        for name, plugin in (("stock", False), ("plugin", True)):
            print(name, file=sys.stderr, flush=True)
            sides[name] = asyncio.run(measure(base, Home(Path(scratch) / name), adapters, plugin, options))
    stock, plugin_side = sides["stock"]["seconds"], sides["plugin"]["seconds"]
    ratios = {workload: stock[workload] / plugin_side[workload] for workload in WORKLOADS}
    result = {
        "benchmark": "cpu_lora", "requests": options.requests, "tokens": options.tokens,
        "prompt_tokens": sides["plugin"]["prompt_tokens"], "stock_s": stock, "plugin_s": plugin_side,
        "ratios": ratios, "ratio": ratios["common prompt"],
        "over_base": {side: sides[side]["seconds"]["common prompt"] / sides[side]["seconds"]["base"] for side in sides},
    }  # fmt: skip
    table = Table("workload", "prompt tokens", "stock s", "plugin s", "ratio")
    for workload in WORKLOADS:
        table.add_row(
            workload, f"{result['prompt_tokens'][workload]:.0f}", f"{stock[workload]:.2f}",
            f"{plugin_side[workload]:.2f}", f"{ratios[workload]:.2f}",
        )  # fmt: skip
    Console(stderr=options.json).print(table)
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
