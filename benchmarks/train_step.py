"""One optimizer step on the same tokens and weights: the packed trainer, padded rows, and TRL's GRPOTrainer.

    python -m benchmarks.train_step [--case A B C D] [--repeats 3] [--json]       (about half an hour on two cores)
    python -m benchmarks.train_step --random-weights CONFIG_JSON      (a GPU; no weights needed)
    python -m benchmarks.train_step --random-weights benchmarks/steps/qwen3_5.json --case E --side packed padded

Cases: [A] 8 completions of 64 tokens on one prompt of 512. [B] 8 agent runs, a prompt of 1,500 tokens with tools and
4 turns of 100. [C] 50 branches of 64 tokens on 512. [D] two groups of the quickstart: its prompts and tools through
the model's chat template, 8 runs of two calls each; what the agent says is written here, not sampled. [E] 8 completions
of 100 tokens on one prompt of 1,500: the case of hybrid models, of which qwen3_5.json has the first layers' shape.

Sides, interleaved in one process, the median of `--repeats` after one step of case A that is not counted:
    packed    this project's step: PolicyModel.logprobs on the packed rows, grpo_loss, AdamW
    padded    the same with a row per run (turns that continue each other share it), padded on the right, transformers'
              own sdpa attention with its mask, logits at trained places only; the same LoRA code, head, dtype, loss
    trl       trl.GRPOTrainer's own loss, backward pass and optimizer on such rows, generation left out; its own LoRA
              (PEFT) and head; its gradient checkpointing, on by default, is off, which is faster
Padded rows go in micro-batches of `--micro-batch` tokens; a packed row of more has its layers checkpointed. All start
at the same weights, and the gradients of packed and padded are compared before anything is timed. Peak memory is
that of a process that does one side alone, packed or padded.

`limit`: tokens of all rows over unique tokens, what sharing alone can give; what the packed side's attention gains over
sdpa comes on top. `ratio`: smallest padded_ratio / limit of A-C and E. TFLOP/s count the products with the frozen
matrices of the layers alone, not head, attention and LoRA; the peak that they are compared with is that of one large
product.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.steps.cases import CASES, Run, case
from benchmarks.steps.sides import CONFIG, MAKE, make, randomise
from trainer_server.common import Home
from trainer_server.engines.served_model import resolve
from trainer_server.training.model.speed import flops_per_token, product_flops
from trainer_server.training.model.tree import pack

BAR = {"A": 0.75, "B": 0.70, "C": 0.75, "E": 0.75}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_memory(options: argparse.Namespace, name: str, side: str) -> float:
    """GiB at the peak of a process that takes one step on one side: of the GPU, or resident without one."""
    command = [sys.executable, "-m", "benchmarks.train_step", "--case", name, "--measure-memory", side,
               "--model", options.path, "--dtype", options.dtype,
               "--micro-batch", str(options.micro_batch)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    return float(done.stdout.strip().splitlines()[-1])


def measure_memory(options: argparse.Namespace, runs: Sequence[Run]) -> float:
    side = make(options.measure_memory, options.path, getattr(torch, options.dtype))
    side.step(runs, options.micro_batch)
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    # Not getrusage: a child's ru_maxrss begins with that of the process that started it.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20


def gradient_error(sides: dict[str, Any], runs: Sequence[Run], micro_batch: int) -> float:
    """Relative distance of the packed gradient from the padded one, at the same weights."""
    grads = []
    for name in ("packed", "padded"):
        sides[name].gradients(runs, micro_batch)
        grads.append(torch.cat([weight.grad.flatten().float() for _, weight in sides[name].named]))
        sides[name].optimizer.zero_grad(set_to_none=True)
    return float((grads[0] - grads[1]).norm() / grads[1].norm())


def measure(options: argparse.Namespace, name: str, sides: dict[str, Any], runs: list[Run]) -> dict[str, Any]:
    """Seconds, ratios, memory of one case."""
    calls = [call for run in runs for call in run.calls]
    packing = pack([c[0] for c in calls], [c[1] for c in calls], budget=CONFIG.token_budget)
    total = sum(len(tokens) - 1 for run in runs for tokens, _ in run.rows())
    times: dict[str, list[float]] = {side: [] for side in sides}
    for side in sides.values():
        randomise(side.named)
    error = gradient_error(sides, runs, options.micro_batch) if {"packed", "padded"} <= sides.keys() else None
    clock = CLOCKS[options.clock]
    for repeat in range(options.repeats):
        for side, one in sides.items():
            synchronise()
            started = clock()
            one.step(runs, options.micro_batch)
            synchronise()
            times[side].append(clock() - started)
            print(f"  {name} {repeat} {side}: {times[side][-1]:.2f} s", file=sys.stderr, flush=True)
    seconds = {side: statistics.median(values) for side, values in times.items()}
    peak = {} if options.no_memory else {side: peak_memory(options, name, side) for side in sides if side != "trl"}
    limit = total / packing.unique
    return {
        "tokens": total, "unique": packing.unique, "limit": limit, "gradient_error": error, "seconds": seconds,
        "repeats": times, "peak_memory": peak,
        **{f"{side}_ratio": seconds[side] / seconds["packed"] for side in sides if side != "packed"},
    }  # fmt: skip


def random_weights(config: Path, where: Path) -> str:
    """A model of this config with random weights, saved under `where`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config), dtype=torch.bfloat16)
    model.save_pretrained(where / "model")
    return str(where / "model")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--side", nargs="+", choices=MAKE, default=list(MAKE), help="sides to measure (all)")
    parser.add_argument("--repeats", type=int, default=3, help="of which the median is taken (3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--model", default="embedded", help="what --model of the server takes (embedded)")
    parser.add_argument("--random-weights", type=Path, metavar="CONFIG", help="a config.json; case D is left out")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--micro-batch", type=int, default=6144, help="tokens computed at once (6144)")
    parser.add_argument(
        "--clock", default="wall", choices=CLOCKS,
        help="cpu: the process's own seconds, for a machine that others use; take one thread then",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=0, help="of torch (its own choice)")
    parser.add_argument("--peak-tflops", type=float, help="of the device in this dtype (a large product, measured)")
    parser.add_argument("--no-memory", action="store_true", help="do not measure peak memory")
    parser.add_argument("--measure-memory", choices=MAKE, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.threads:
        torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        if options.random_weights:
            options.path = random_weights(options.random_weights, Path(scratch))
            options.case = [name for name in options.case if name != "D"]
        else:
            options.path = resolve(options.model, Home.find().cache, lambda line: print(line, file=sys.stderr)).path
        vocabulary = json.loads((Path(options.path) / "config.json").read_text())["vocab_size"]
        if options.measure_memory:
            print(measure_memory(options, case(options.case[0], vocabulary)))
            return
        sides = {side: make(side, options.path, getattr(torch, options.dtype)) for side in options.side}
        for side in sides.values():
            side.step(case("A", vocabulary), options.micro_batch)
        cases = {name: measure(options, name, sides, case(name, vocabulary)) for name in options.case}
        flops = flops_per_token(sides["packed"].model._base) / 1e12
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        product = product_flops(device, getattr(torch, options.dtype), size=2048, clock=CLOCKS[options.clock])
        peak = options.peak_tflops or product / 1e12
        for one in cases.values():
            done = {side: one["unique" if side == "packed" else "tokens"] for side in sides}
            one["tflops"] = {side: flops * done[side] / one["seconds"][side] for side in sides}
            one["mfu"] = {side: used / peak for side, used in one["tflops"].items()}
        report(options, cases, peak)


def report(options: argparse.Namespace, cases: dict[str, dict[str, Any]], peak: float) -> None:
    table = Table(
        "case", "tokens", "unique", "limit", "side", "seconds (repeats)", "ratio", "of limit", "GiB", "TFLOP/s"
    )
    for name, one in cases.items():
        for side, seconds in one["seconds"].items():
            repeats = one["repeats"][side]
            ratio = one.get(f"{side}_ratio")
            table.add_row(
                name, str(one["tokens"]), str(one["unique"]), f"{one['limit']:.2f}", side,
                f"{seconds:.2f} ({min(repeats):.2f}-{max(repeats):.2f})", f"{ratio:.2f}" if ratio else "",
                f"{ratio / one['limit']:.2f}" if ratio else "",
                f"{one['peak_memory'][side]:.2f}" if side in one["peak_memory"] else "",
                f"{one['tflops'][side]:.2f} ({one['mfu'][side]:.0%})",
            )  # fmt: skip
    Console(stderr=options.json, width=140).print(table)
    shares_of_limit = [
        one["padded_ratio"] / one["limit"] for name, one in cases.items() if name in BAR and "padded_ratio" in one
    ]
    ratio = min(shares_of_limit, default=None)
    if options.json:
        print(json.dumps({"benchmark": "train_step", "cases": cases, "peak_tflops": peak, "bar": BAR, "ratio": ratio}))


if __name__ == "__main__":
    main()
