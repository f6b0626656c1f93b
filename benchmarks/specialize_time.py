"""Does `specialize` make a model better at an MCP server that nobody here wrote?

    python -m benchmarks.specialize_time [--json] [--seed 0] [--steps 4] [--output DIR]

Starts the trainer server on the embedded model and `mcp-server-time` over stdio (installed into an environment of its
own), invents scenarios from its schemas and a table of zone names, measures, imitates the references, trains with GRPO,
measures again on held-out scenarios. No language model but the embedded one is used. The last line under --json is
one JSON object: `before` and `after` are held-out success rates, `seconds` the whole of `specialize`, `ratio` after /
before (against one success where there was none before).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from art_examples.quickstart.server_process import trainer_server

from art_langgraph import GRPOConfig, SFTConfig, TrainerClient
from art_mcp import GenerationSettings, RunSettings, Specialization, TrainingSettings, WarmStart, specialize
from benchmarks.tasks.time_zones import TABLES, server_command


async def run(url: str, key: str, options: argparse.Namespace, output: Path) -> Specialization:
    async with TrainerClient(url, key) as client:
        await client.create_policy("time", rank=8)
        sft = SFTConfig(
            lr=options.sft_lr, num_train_epochs=options.epochs, per_device_train_batch_size=4, seed=options.seed
        )
        return await specialize(
            server_command(),
            policy="time",
            client=client,
            scenarios=options.scenarios,
            generation=GenerationSettings(resources=TABLES),
            warm_start=WarmStart(config=sft),
            training=TrainingSettings(steps=options.steps, config=GRPOConfig(lr=options.lr), difficulty_runs=0),
            runs=RunSettings(max_tokens=96),
            seed=options.seed,
            output=output,
            progress=False,
            on_stage=lambda text: print(f"  {text}", file=sys.stderr, flush=True),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scenarios", type=int, default=96, help="a quarter is held out (96)")
    parser.add_argument("--epochs", type=int, default=2, help="of the warm start (2)")
    parser.add_argument("--sft-lr", type=float, default=2e-3)
    parser.add_argument("--steps", type=int, default=6, help="GRPO steps of 4 scenarios × 8 runs (6)")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--output", type=Path, help="keep the report here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        with trainer_server(
            home, home / "server.log", lambda line: print(line, file=sys.stderr), "--max-rank", "8"
        ) as at:
            started = time.monotonic()
            made = asyncio.run(run(at.url, at.api_key, options, options.output or home / "report"))
            seconds = time.monotonic() - started
    before, after = made.before.success_rate or 0.0, made.after.success_rate or 0.0
    print(f"held out, before: {made.before}; after: {made.after}; {seconds:.0f} s", file=sys.stderr)
    if options.json:
        least = 1 / max(made.before.n, 1)
        result = {
            "benchmark": "specialize_time",
            "server": f"{made.server} {made.server_version}",
            "seed": options.seed,
            "before": before,
            "after": after,
            "seconds": seconds,
            "ratio": after / max(before, least),
            "held_out": len(made.after.trajectories),
            "stages": made.seconds,
            "interval": made.after.success_interval,
            "steps": [record.reward for record in made.steps],
        }
        print(json.dumps(result))


if __name__ == "__main__":
    main()
