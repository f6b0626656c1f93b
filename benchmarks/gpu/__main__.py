"""What this project does on a machine with one GPU: one command, without a network.

    python -m benchmarks.gpu --json [--minutes 8] [--model DIRECTORY] [--only PART...] [--output FILE]
    python -m benchmarks.gpu --tiny --device cpu                        (a rehearsal without a GPU)
    python -m benchmarks.gpu --page                                     (writes the tables of the documentation)

The parts come in order of worth, each in a process of its own that is ended when its time is over:

    exactness   packed rows against transformers and PEFT, each sequence alone, fp32 and bf16
    step-SIZE   Qwen3 of 0.6B, 1.7B, 4B with random weights, LoRA of rank 16: packed, padded rows at their best
                micro-batch, those with PEFT's own adapters. S: 8 answers of 256 tokens on a prompt of 512. M: groups
                of 8 agents, 1,500 tokens and 4 turns of 150. L: 8 answers of 512 on 12,000
    serving     0.6B: two starts of vLLM; 64 to 512 answers of 256 tokens at once through the gateway, to LangGraph
                graphs with capture, and of vLLM alone; three steps of 16 × 8 runs, by phase
    learning    the quickstart's agent on real weights, until its success rises beyond its interval
    sft         a warm start
    swap        a change of the version under load
    turns       engine and trainer on the GPU by turns (`serve --share-gpu`), vLLM asleep meanwhile
    tests       the tests that need a GPU
    bits        base models in 4 and 8 bits, if bitsandbytes is installed
    several     two trainer processes, if there are two GPUs

`mfu`: operations of layers, head and attention a second, over those of one large bf16 product in the same process; what
is computed twice counts once. `over_packed`: seconds of a side over those of the packed side. With --output each figure
is added as it comes; --output docs/benchmarks/gpu.json and then --page bring the documentation up to date. Ends with
status 1 if a part failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import signal
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.page import FIGURES, runs_of, write_pages
from benchmarks.gpu.parts import PARTS, Options, Row, run_part, skip_reason
from trainer_server.common import Home
from trainer_server.engines.vllm import install

_MINUTES = 8.0


def machine(device: str) -> dict[str, Any]:
    """What the figures are of."""
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "peft")}
    return {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
        "gpus": torch.cuda.device_count() if device == "cuda" else 0,
        **versions,
        "vllm": installation.requirement if (installation := install.status(Home.find().cache)) else None,
    }


def measure(options: argparse.Namespace, run: dict[str, Any]) -> None:
    """Measures all parts for which there is time; `run` gets their figures as they come."""
    began, gpus = time.monotonic(), run["gpus"]
    earlier = runs_of(options.output) if options.output is not None and options.output.exists() else []

    def write() -> None:
        if options.output is not None:
            scratch = options.output.with_suffix(".part")
            scratch.write_text(json.dumps({"runs": [*earlier, run]}, indent=1) + "\n", encoding="utf-8")
            scratch.replace(options.output)

    with tempfile.TemporaryDirectory(prefix="art-gpu-") as scratch:
        common = Options(device=options.device, tiny=options.tiny, model=options.model, scratch=Path(scratch))
        for part in PARTS:
            if options.only and part.name not in options.only:
                continue
            figures: dict[str, Any] = {"state": "running", "rows": []}
            run["parts"][part.name] = figures
            left = 60 * options.minutes - (time.monotonic() - began)
            limit = min(part.seconds * options.minutes / _MINUTES, left)
            reason = skip_reason(part, gpus)
            if reason is None and limit < part.seconds / 4:
                reason = f"{max(0, left):.0f} s are left of --minutes {options.minutes:g}"
            if reason is not None:
                figures["state"] = f"skipped: {reason}"
                print(f"{part.name}: skipped: {reason}", file=sys.stderr, flush=True)
                continue

            def on_row(row: Row, part: str = part.name, figures: dict[str, Any] = figures) -> None:
                figures["rows"].append(row)
                print(f"{part}: {json.dumps(row)[:300]}", file=sys.stderr, flush=True)
                write()

            print(f"{part.name}: {limit:.0f} s at most", file=sys.stderr, flush=True)
            figures |= run_part(part, common, limit, on_row)
            print(f"{part.name}: {figures['state']}, {figures['seconds']:.0f} s", file=sys.stderr, flush=True)
            print("\n".join(figures.get("output", [])[-15:]), file=sys.stderr, flush=True)
            write()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="for all parts (8)")
    parser.add_argument("--model", help="a directory of real weights for `learning` (the embedded model)")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], help="these parts alone")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where it is measured (cuda)")
    parser.add_argument("--tiny", action="store_true", help="small sizes: a rehearsal, whose figures mean nothing")
    parser.add_argument("--output", type=Path, help=f"add the figures to this file as they come (docs: {FIGURES.name})")
    parser.add_argument("--page", action="store_true", help="write the tables of the docs, and measure nothing")
    options = parser.parse_args()
    if options.page:
        write_pages()
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here: --tiny --device cpu rehearses the program without one")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that parts end with this program
    run: dict[str, Any] = {**machine(options.device), "tiny": options.tiny, "parts": {}}
    measure(options, run)
    if options.json:
        print(json.dumps({"benchmark": "gpu", **run}))
    if any(part["state"].startswith(("failed", "ended")) for part in run["parts"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
