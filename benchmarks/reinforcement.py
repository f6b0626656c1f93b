"""What does reinforcement learning add to the warm start of `specialize`, when it has time?

    python -m benchmarks.reinforcement --server git --seed 0 --json [--minutes 20] [--steps 60] [--output DIR]

Starts the trainer server on the embedded model and an MCP server in a world made by the seed, as
`benchmarks.specialize` does. First `specialize` gets its minutes for everything but reinforcement learning. Then GRPO
takes its steps on the training scenarios, with the settings that `specialize` has. The held-out scenarios are measured
before, after the warm start and after each `--every` steps, all of them with one run at temperature 0; none of them
decides anything.

The last line under --json has `curve`, a row for each measurement: the step, success on each held-out set, the headline
with its 95 % interval, the gain over the policy before the first step with p on all sets (of McNemar's exact test on
the same scenarios), and the seconds since the steps began; and `steps`, a row for each step: the mean reward, how many
groups had rewards that differ and so teach something, how many were added for those that did not, the entropy, and the
seconds of its rollouts and of its training. With --output the same is written to DIR/curve.json after each of them, so
that a run that is ended early leaves what it measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art_examples.quickstart.server_process import trainer_server

from art_langgraph import TrainerClient
from art_langgraph.loop.evaluate import evaluate
from art_langgraph.loop.train import train
from art_langgraph.loop.watch.record import StepRecord
from art_mcp import (
    Measurement,
    PairedGain,
    RunSettings,
    Specialization,
    TrainingSettings,
    verify,
)
from art_mcp.client.connect import Server
from art_mcp.specialization.agent import Toolbox
from art_mcp.specialization.settings import TEMPERATURE
from art_mcp.specialization.stages.reinforcement import hints_of, settings_of
from art_mcp.specialization.verify import solved
from benchmarks.servers.registry import SERVERS
from benchmarks.specialize import connected, specialize_for, tell

PATIENCE = 600.0
"""Seconds for a run: nothing else that this machine does may make it a failure."""


@dataclass(slots=True)
class Curve:
    """The measurements of a run and its steps.

    Args:
        server: Name of the server in the registry.
        seed: The seed.
        output: Where they are written. None: nowhere.
    """

    server: str
    seed: int
    output: Path | None
    measurements: list[tuple[int, Measurement, float]] = field(default_factory=list)
    """Each with the number of steps before it, and the seconds since the first one."""
    steps: list[dict[str, Any]] = field(default_factory=list)

    def add_step(self, record: StepRecord) -> None:
        """Keeps what a step did."""
        metrics = record.result.metrics
        row = {
            "step": record.step,
            "reward": record.reward,
            "informative": record.informative,
            "groups": len(record.groups),
            "replaced": record.replaced,
            "entropy": metrics.get("entropy"),
            "skipped": metrics.get("skipped"),
            "seconds": {name: round(seconds, 1) for name, seconds in record.seconds.items()},
        }
        self.steps.append(row)
        tell(str(record))
        self._write()

    def add(self, steps: int, measurement: Measurement, seconds: float) -> None:
        """Keeps a measurement.

        Args:
            steps: Number of steps before it.
            measurement: The measurement.
            seconds: Seconds since the first step began.
        """
        self.measurements.append((steps, measurement, seconds))
        tell(f"after {steps} steps: {measurement}")
        self._write()

    def _write(self) -> None:
        if self.output is not None:
            self.output.mkdir(parents=True, exist_ok=True)
            (self.output / "curve.json").write_text(json.dumps(self.summary(), indent=1) + "\n", encoding="utf-8")

    def summary(self) -> dict[str, Any]:
        """All of it as JSON."""
        start = next((measurement for steps, measurement, _ in reversed(self.measurements) if steps == 0), None)
        rows = []
        for steps, measurement, seconds in self.measurements:
            gain = start and PairedGain.of(measurement.evaluation, start.evaluation)
            interval = measurement.headline_interval
            rows.append(
                {
                    "steps": steps,
                    "stage": measurement.stage,
                    **measurement.rates(),
                    "headline_interval": list(interval) if interval else None,
                    "gain": gain.summary() if gain and steps else None,
                    "n": measurement.evaluation.n,
                    "seconds": round(seconds, 1),
                }
            )
        return {
            "benchmark": "reinforcement",
            "server": self.server,
            "seed": self.seed,
            "curve": rows,
            "steps": self.steps,
        }


async def run(url: str, key: str, options: argparse.Namespace, world: Path, curve: Curve) -> None:
    """Specializes a policy without reinforcement learning, and goes on with that alone.

    Args:
        url: Address of the trainer server.
        key: Its token.
        options: Options of the command line.
        world: An empty directory for the world.
        curve: Keeps what is measured.
    """
    server = SERVERS[options.server]
    training = TrainingSettings(lr=options.lr, loss_aggregation=options.loss_aggregation)
    runs = RunSettings(rank=options.rank, timeout=PATIENCE)
    async with TrainerClient(url, key) as client, connected(server, world, options.seed) as opened:
        output = options.output and options.output / "specialize"
        made = await specialize_for(opened, client, options, TrainingSettings(steps=0), runs, output)
        if "before" in made.measurements:
            curve.add(0, made.measurements["before"], 0.0)
        await reinforce(opened, client, made, training, runs, options, curve)


async def reinforce(
    opened: Server,
    client: TrainerClient,
    made: Specialization,
    training: TrainingSettings,
    runs: RunSettings,
    options: argparse.Namespace,
    curve: Curve,
) -> None:
    """Takes the steps, with a measurement after each `--every`.

    Args:
        opened: The MCP server.
        client: The trainer server.
        made: The specialization, whose policy and scenarios are taken.
        training: Settings of the steps.
        runs: How the agent is run.
        options: Options of the command line.
        curve: Keeps what is measured.
    """
    agent = (await Toolbox.of(opened, made.scenarios, False)).agent(client, made.policy, runs)
    count = 1 if opened.serial else runs.max_concurrency

    async def measure(stage: str, version: int) -> Measurement:
        evaluation = await evaluate(
            agent,
            made.scenarios.held_out,
            verify(),
            version=version,
            success=solved,
            max_concurrency=count,
            timeout=runs.timeout,
            progress=False,
        )
        return Measurement(stage, evaluation)

    warm = made.measurements.get("after_sft")
    if warm is None or warm.evaluation.n < len(made.scenarios.held_out):  # those minutes may not allow all of them
        warm = await measure("after_sft", made.version)
    curve.add(0, warm, 0.0)
    start, measuring = time.monotonic(), 0.0
    records = train(
        agent,
        made.scenarios.train,
        policy=made.policy,
        reward=verify(),
        steps=options.steps,
        client=client,
        groups_per_step=training.groups_per_step,
        n=training.n,
        config=settings_of(training),
        sampler="learnable",
        dynamic_sampling=training.dynamic_sampling,
        hints=hints_of(made.schemas),
        temperature=TEMPERATURE,
        max_concurrency=count,
        timeout=runs.timeout,
        seed=options.seed,
        progress=False,
    )
    async for record in records:
        curve.add_step(record)
        if record.step % options.every and record.step < options.steps:
            continue
        began = time.monotonic()
        measurement = await measure("after", record.result.version)
        measuring += time.monotonic() - began
        curve.add(record.step, measurement, time.monotonic() - start - measuring)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=list(SERVERS), required=True)
    parser.add_argument("--seed", type=int, default=0, help="of the world, the scenarios and the training (0)")
    parser.add_argument("--minutes", type=float, default=20.0, help="time until the first step (20)")
    parser.add_argument("--steps", type=int, default=60, help="GRPO steps (60)")
    parser.add_argument("--every", type=int, default=20, help="steps between two measurements (20)")
    rate = TrainingSettings.lr
    parser.add_argument("--lr", type=float, default=rate, help=f"learning rate of the steps ({rate:g})")
    parser.add_argument(
        "--loss-aggregation", choices=("trajectory", "loss_type"), default=TrainingSettings.loss_aggregation,
        help="whether each run weighs the same, or as the loss has it: each token (trajectory)",
    )  # fmt: skip
    parser.add_argument("--rank", type=int, default=8, choices=(8, 16, 32), help="of the LoRA (8)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--output", type=Path, help="keep curve.json and the report of `specialize` here")
    options = parser.parse_args()
    if options.output and options.output.exists() and any(options.output.iterdir()):
        parser.error(f"--output {options.output} is not empty")
    curve = Curve(options.server, options.seed, options.output)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        (home / "world").mkdir()
        arguments = ("--max-rank", str(options.rank))
        with trainer_server(home / "home", home / "server.log", tell, *arguments) as at:
            asyncio.run(run(at.url, at.api_key, options, home / "world", curve))
    if options.json:
        print(json.dumps(curve.summary()))


if __name__ == "__main__":
    main()
