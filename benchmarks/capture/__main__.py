"""What capture costs: a graph with ChatART, recorded, against the same graph with ChatOpenAI, not recorded.

    python -m benchmarks.capture [--json] [--concurrency 64] [--rollouts 128] [--rounds 7] [--no-vllm]
    python -m benchmarks.capture [--json] --client 64,512 [--client-rounds 1]

Both sides go through the same gateway to an engine that answers at once; rounds are interleaved, and a side's figure is
the median of its rounds. Then the gateway against vLLM itself, on the embedded model, with the same requests (left out
by --no-vllm, and said so). The last line under --json is one JSON object: `ratio` is time with / time without capture,
`added_ms` the difference per model call, `gateway_ratio` the gateway's throughput / vLLM's.

With --client it measures the client's processor time alone, for so many rollouts of an agent at once: `cpu_ms` a
completion, by part, of recorded rollouts and of LangGraph with ChatOpenAI (`benchmarks.capture.client`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.capture.client import measure_client
from benchmarks.capture.gateway import measure_gateway
from benchmarks.capture.recording import measure_capture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--concurrency", type=int, default=64, help="rollouts at once (64)")
    parser.add_argument("--rollouts", type=int, default=128, help="rollouts of one round (128)")
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds of each side (7)")
    parser.add_argument("--no-vllm", action="store_true", help="leave out the gateway against vLLM")
    parser.add_argument("--client", type=_numbers, help="measure the client alone, with so many rollouts at once")
    parser.add_argument("--client-rounds", type=int, default=1, help="counted rounds of each side of it (1)")
    options = parser.parse_args()
    if options.client:
        print_client(options)
        return
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


def print_client(options: argparse.Namespace) -> None:
    """The client's processor time."""
    with tempfile.TemporaryDirectory() as scratch:
        cases = measure_client(Path(scratch), options)
    table = Table("ms a completion", *(f"{case['rollouts']} {case['side']}" for case in cases))
    table.add_row("all", *(f"{case['cpu_ms']:.2f}" for case in cases))
    for part in dict.fromkeys(part for case in cases for part in case["cpu_ms_by_part"]):
        table.add_row(f"  {part}", *(f"{case['cpu_ms_by_part'].get(part, 0.0):.2f}" for case in cases))
    Console(stderr=options.json).print(table)
    if options.json:
        print(json.dumps({"benchmark": "client", "cases": cases}))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    main()
