"""LoRA requests on vLLM's CPU engine: stock against this project's plugin, on the same requests, in one run.

    python -m benchmarks.cpu_lora [--json] [--requests 32] [--tokens 48] [--repeats 2]

Each side gets a vLLM of its own, one after the other, with the same adapters (rank 8, random weights on all layers).
Cases, each with an adapter and without one (`base`), all requests at once, temperature 0, no end-of-text:
    common prompt    requests that share all but the last words of ~300 tokens; one adapter
    own prompts      requests that share nothing; one adapter
    four adapters    as the first, with four common prompts; each has an adapter of its own, and so its prefix cache
A figure is the best repeat, after one that is not counted. `over_base` is seconds with adapters over seconds without.
`decode_ms` is a decoding step of all sequences: requests of a common prompt with TOKENS and with a third of them, and
the difference of the two divided by that of the tokens. The last line under --json is one JSON object; `ratio` is stock
over plugin for the common prompt. Where there is a GPU the plugin is not used: nothing is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from trainer_server.common import Home
from trainer_server.engines.base import EngineSettings
from trainer_server.engines.served_model import ServedModel, resolve
from trainer_server.engines.vllm import install as engine_install
from trainer_server.engines.vllm.engine import VLLMEngine
from trainer_server.process.hardware import flavour
from trainer_server.wire import PolicySpec

RANK: Literal[8] = 8
ADAPTERS = 4
CASES = ("common prompt", "own prompts", "four adapters")


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that are sent at once.

    Args:
        case: The case, of CASES.
        adapted: Whether they name adapters, or the base model.
        brief: Whether they ask for a third of the tokens.
    """

    case: str
    adapted: bool
    brief: bool = False


WORKLOADS = [
    *(Workload(case, adapted) for case in CASES for adapted in (True, False)),
    *(Workload(CASES[0], adapted, brief=True) for adapted in (True, False)),
]


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


def requests(workload: Workload, base: str, number: int, batch: int) -> list[tuple[str, str]]:
    """Model and prompt of each request.

    Args:
        workload: The requests.
        base: Name of the base model.
        number: How many.
        batch: No batch finds the prompts of another in vLLM's prefix cache.
    """
    sentence = f"The harbour of town {batch}-{{}} was busy that morning, and nobody knew what the day would bring. "

    def text(name: object, sentences: int = 12) -> str:
        return "".join(sentence.format(f"{name} {at}") for at in range(sentences))

    groups = {"common prompt": 1, "own prompts": number, "four adapters": ADAPTERS}[workload.case]
    adapters = ADAPTERS if workload.case == "four adapters" else 1
    return [
        (
            f"bench{at % adapters}" if workload.adapted else base,
            f"{text(at % groups)}What did visitor {at} see?",
        )
        for at in range(number)
    ]


async def measure(
    base: ServedModel, home: Home, adapters: Sequence[Path], plugin: bool, options: argparse.Namespace
) -> tuple[dict[Workload, float], dict[str, float]]:
    """A side: seconds by workload, and tokens of a prompt by case."""
    os.environ["ART_CPU_LORA"] = "1" if plugin else "0"
    settings = EngineSettings(base=base, home=home, cpu=True, adapter_slots=ADAPTERS, max_rank=RANK)
    engine = VLLMEngine.with_child(settings)
    seconds: dict[Workload, float] = {}
    prompt_tokens: dict[str, float] = {}
    batches = count()

    async def ask(model: str, prompt: str, tokens: int) -> int:
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
        async with engine.complete(body) as reply:
            usage = (await reply.whole())["usage"]
        assert usage["completion_tokens"] == tokens, usage
        return int(usage["prompt_tokens"])

    try:
        await engine.start(lambda line: print(f"  {line}", file=sys.stderr, flush=True))
        for path in adapters:
            await engine.load(path.name, path)
        for workload in WORKLOADS:
            times = []
            tokens = brief(options.tokens) if workload.brief else options.tokens
            for _ in range(options.repeats + 1):
                batch = requests(workload, base.name, options.requests, next(batches))
                started = time.perf_counter()
                counts = await asyncio.gather(*(ask(*request, tokens) for request in batch))
                times.append(time.perf_counter() - started)
            seconds[workload] = min(times[1:])
            prompt_tokens[workload.case] = sum(counts) / len(counts)
            print(f"  {workload}: {seconds[workload]:.2f} s", file=sys.stderr, flush=True)
    finally:
        await engine.stop()
    return seconds, prompt_tokens


def brief(tokens: int) -> int:
    """The smaller number of tokens of `decode_ms`."""
    return max(1, tokens // 3)


def side(seconds: Mapping[Workload, float], tokens: int) -> dict[str, Any]:
    """The figures of a side.

    Args:
        seconds: By workload.
        tokens: Tokens of each answer.
    """
    by_case = {case: seconds[Workload(case, True)] for case in CASES}
    base = {case: seconds[Workload(case, False)] for case in CASES}

    def decode_ms(adapted: bool) -> float:
        whole, part = (seconds[Workload(CASES[0], adapted, brief)] for brief in (False, True))
        return 1000 * (whole - part) / (tokens - brief(tokens))

    return {
        "seconds": by_case,
        "base_seconds": base,
        "over_base": {case: by_case[case] / base[case] for case in CASES},
        "decode_ms": {"adapter": decode_ms(True), "base": decode_ms(False)},
    }


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
            home = Home(Path(scratch) / name)
            seconds, prompt_tokens = asyncio.run(measure(base, home, adapters, plugin, options))
            sides[name] = side(seconds, options.tokens)
    ratios = {case: sides["stock"]["seconds"][case] / sides["plugin"]["seconds"][case] for case in CASES}
    console = Console(stderr=options.json)
    table = Table("case", "prompt tokens", "stock s", "plugin s", "ratio", "stock over base", "plugin over base")
    for case in CASES:
        table.add_row(
            case,
            f"{prompt_tokens[case]:.0f}",
            *(f"{sides[name]['seconds'][case]:.2f}" for name in sides),
            f"{ratios[case]:.2f}",
            *(f"{sides[name]['over_base'][case]:.2f}" for name in sides),
        )
    console.print(table)
    table = Table(f"a decoding step of {options.requests} sequences, ms", "with an adapter", "base model")
    for name, figures in sides.items():
        table.add_row(name, *(f"{figures['decode_ms'][which]:.0f}" for which in ("adapter", "base")))
    console.print(table)
    if options.json:
        shape = {"requests": options.requests, "tokens": options.tokens, "prompt_tokens": prompt_tokens}
        result = {"benchmark": "cpu_lora", **shape, **sides, "ratios": ratios, "ratio": ratios[CASES[0]]}
        print(json.dumps(result))


if __name__ == "__main__":
    main()
