"""Packing completions into prefix trees, alone: tokens per second, and whether time grows with tokens only.

    python -m benchmarks.steps.packing [--json] [--repeats 3]

Four kinds of data, up to 10 M tokens each: groups of 8 completions of 64 tokens on a prompt of 512; agents of 8 turns
of 100 on a prompt of 1,500, a completion for every turn; one prompt of 512 under everything; completions that share
nothing. A figure is the best repeat, by the process's own seconds: it has one thread. `ratio`: seconds per token at
10 M over those at 100 k, of the slowest kind; 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator

import numpy as np
from rich.console import Console
from rich.table import Table

from trainer_server.training.model.tree import Ints, pack

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
BUDGET = 8192
BAR = 2_000_000

Pair = tuple[Ints, Ints]


def groups(rng: np.random.Generator) -> Iterator[Pair]:
    while True:
        prompt = rng.integers(0, 50_000, 512)
        for _ in range(8):
            yield prompt, rng.integers(0, 50_000, 64)


def agents(rng: np.random.Generator) -> Iterator[Pair]:
    while True:
        prompt = rng.integers(0, 50_000, 1500)
        for _ in range(8):
            said = rng.integers(0, 50_000, 800)
            for turn in range(0, 800, 100):
                yield np.concatenate([prompt, said[:turn]]), said[turn : turn + 100]


def one_prompt(rng: np.random.Generator) -> Iterator[Pair]:
    prompt = rng.integers(0, 50_000, 512)
    while True:
        yield prompt, rng.integers(0, 50_000, 64)


def nothing_shared(rng: np.random.Generator) -> Iterator[Pair]:
    while True:
        yield rng.integers(0, 50_000, 512), rng.integers(0, 50_000, 64)


KINDS = {"groups": groups, "agents": agents, "one prompt": one_prompt, "nothing shared": nothing_shared}


def sized(pairs: Iterator[Pair], tokens: int) -> tuple[list[Ints], list[Ints]]:
    """Prompts and completions of about so many tokens together."""
    prompts, completions, count = [], [], 0
    while count < tokens:
        prompt, completion = next(pairs)
        prompts.append(prompt)
        completions.append(completion)
        count += len(prompt) + len(completion)
    return prompts, completions


def seconds(prompts: list[Ints], completions: list[Ints], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.process_time()
        pack(prompts, completions, budget=BUDGET)
        times.append(time.process_time() - started)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--repeats", type=int, default=3, help="repeats, of which the best is taken (3)")
    options = parser.parse_args()
    console = Console(stderr=options.json, width=110)
    table = Table("completions", *(f"{size:,} tokens" for size in SIZES), "linear (1)")
    speed: dict[str, dict[int, float]] = {}
    for kind, make in KINDS.items():
        speed[kind] = {}
        for size in SIZES:
            prompts, completions = sized(make(np.random.default_rng(0)), size)
            tokens = sum(map(len, prompts)) + sum(map(len, completions))
            speed[kind][size] = tokens / seconds(prompts, completions, options.repeats)
        found = speed[kind]
        table.add_row(kind, *(f"{found[s] / 1e6:.1f} M/s" for s in SIZES), f"{found[SIZES[1]] / found[SIZES[-1]]:.2f}")
    console.print(table)
    most = max(max(found.values()) for found in speed.values())
    for kind, found in speed.items():  # a plot: flat is linear
        for size in SIZES:
            console.print(f"{kind:>15} {size:>11,}  {'█' * round(50 * found[size] / most)}", highlight=False)
    if options.json:
        slowest = min(speed.values(), key=lambda found: found[SIZES[-1]])
        print(json.dumps({
            "benchmark": "packing", "tokens_per_second": slowest[SIZES[-1]], "bar": BAR, "speed": speed,
            "ratio": slowest[SIZES[1]] / slowest[SIZES[-1]],
        }))  # fmt: skip


if __name__ == "__main__":
    main()
