"""The main job: an agent on a real MCP server, trained with GRPO, measurably better.

runs/<name>/summary.json    seed, steps, success before and after on held-out scenarios, seconds
runs/<name>/metrics.jsonl   a line per step
runs/<name>/curve.png, curve.svg, adapter/, home/ (the server's state), server.log
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_examples.quickstart import report
from art_examples.quickstart.agent import build_agent
from art_examples.quickstart.report import Measurement
from art_examples.quickstart.reward import reward, success
from art_examples.quickstart.scenarios import KINDS, held_out_scenarios, training_scenarios
from art_examples.quickstart.server_process import trainer_server
from langchain_core.runnables import Runnable
from rich.console import Console

from art_langgraph import ARTError, ChatART, GRPOConfig, TrainerClient, Trajectory, gather, train
from art_langgraph.loop.train import StepRecord
from art_mcp import connect
from trainer_server.process.files import write_atomic
from trainer_server.wire import ConfigError, Connection

RUNS = Path("runs")
POLICY = "cities"
LEARNING_RATE = 6e-4
GROUPS, ROLLOUTS, TEMPERATURE, MAX_TOKENS, CONCURRENCY = len(KINDS), 8, 1.0, 40, 48


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for. train: False measures the untrained policy and stops."""

    name: str
    seed: int
    steps: int
    held_out: int = 120
    train: bool = True
    resume: bool = False

    @classmethod
    def of(cls, name: str | None, seed: int | None, resume: bool, **others: Any) -> Options:
        """Fills in what was not given: a new name, or the latest run's; its seed. Raises ConfigError."""
        if not resume:
            seed = seed or 0
            return cls(name or f"{time.strftime('%Y%m%d-%H%M%S')}-seed{seed}", seed, **others)
        directory = RUNS / (name or "latest")
        try:
            began_with = int(json.loads((directory / "run.json").read_text())["seed"])
        except OSError:
            raise ConfigError(f"{directory} is no run: there is nothing to resume") from None
        if seed is not None and seed != began_with:
            raise ConfigError(f"{directory} was started with --seed {began_with}; resume it with the same seed")
        return cls(directory.resolve().name, began_with, resume=True, **others)


def run(options: Options) -> Path:
    """Runs the main job; returns the run's directory. Raises ARTError; KeyboardInterrupt after all is cleaned up."""
    console = Console()
    directory = RUNS / options.name
    _prepare(directory, options)
    started = time.monotonic()
    for one in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # both end it cleanly, also where a shell started it with SIGINT ignored
        signal.signal(one, signal.default_int_handler)
    with console.status("starting the trainer server") as status:

        def tell(line: str) -> None:
            status.update(line[:100])
            if not console.is_terminal:
                print(f"  {line[:160]}", flush=True)

        context = trainer_server(directory / "home", directory / "server.log", tell, "--max-rank", "8")
        connection = context.__enter__()
    try:
        ready = time.monotonic() - started
        console.print(f"server ready in {ready:.0f} s: {connection.url}")
        asyncio.run(_Quickstart(options, directory, connection, console, ready, started).run())
    finally:
        context.__exit__(None, None, None)
    return directory


def _prepare(directory: Path, options: Options) -> None:
    if not options.resume:
        if directory.exists():
            raise ConfigError(f"{directory} exists: go on with it by --resume, or choose another --name")
        write_atomic(directory / "run.json", json.dumps({"seed": options.seed}))
    aside = RUNS / f".latest.{os.getpid()}"
    aside.symlink_to(directory.name)
    os.replace(aside, RUNS / "latest")


class _Quickstart:
    """One run, from the first measurement to the report."""

    def __init__(
        self, options: Options, directory: Path, connection: Connection, console: Console, ready: float, started: float
    ) -> None:
        self.options, self.directory, self.connection, self.console = options, directory, connection, console
        self.ready, self.started = ready, started
        self.metrics = directory / "metrics.jsonl"

    async def run(self) -> None:
        server = [sys.executable, str(Path(__file__).with_name("city_server.py"))]
        async with connect(server) as mcp, TrainerClient(self.connection.url, self.connection.api_key) as trainer:
            policy = await trainer.create_policy(POLICY, rank=8, seed=self.options.seed)
            tools = await mcp.tools()
            self.console.print(f"MCP server {mcp.name!r}: {', '.join(tool.name for tool in tools)}")

            def agent(version: int | None = None) -> Runnable[Any, Any]:
                name = POLICY if version is None else f"{POLICY}@{version}"
                return build_agent(
                    ChatART(policy=name, base_url=self.connection.url, api_key=self.connection.api_key,
                            max_tokens=MAX_TOKENS, max_retries=6),
                    tools,
                )  # fmt: skip

            before = await self._measure(agent(0), 0)
            self._say(before, "before training")
            after = None
            if self.options.train:
                await self._train(agent(), trainer)
                policy = next(one for one in await trainer.policies() if one.name == POLICY)
                after = await self._measure(agent(policy.latest), policy.latest)
                self._say(after, "after training")
                await trainer.export(POLICY, policy.latest, self.directory / "adapter")
        self._report(before, after)

    async def _measure(self, graph: Runnable[Any, Any], version: int) -> Measurement:
        """Held-out scenarios at temperature 0, never trained on. Kept for a resumed run."""
        file = self.directory / f"held_out@{version}.jsonl"
        if file.exists():
            lines = file.read_text().splitlines()
            return Measurement(version, [Trajectory.model_validate_json(line) for line in lines])
        groups = await gather(
            graph, held_out_scenarios(self.options.held_out), 1, reward, max_concurrency=CONCURRENCY, temperature=0.0,
            progress=f"measuring version {version}" if self.console.is_terminal else False,
        )  # fmt: skip
        trajectories = [one for group in groups for one in group.trajectories]
        if failed := [one for one in trajectories if one.error]:
            self.console.print(f"{len(failed)} runs raised, the first: {failed[0].error}", style="red")
        write_atomic(file, "".join(one.model_dump_json() + "\n" for one in trajectories))
        return Measurement(version, trajectories)

    async def _train(self, graph: Runnable[Any, Any], trainer: TrainerClient) -> None:
        done = self._steps()
        self.console.print(f"{'step':>4} {'reward':>7} {'success':>8} {'rollout s':>10} {'train s':>8} {'swap s':>7}")
        for row in done:
            self._show(row)
        loop = train(
            graph, training_scenarios(self.options.seed), policy=POLICY, reward=reward, steps=self.options.steps,
            client=trainer, groups_per_step=GROUPS, n=ROLLOUTS, config=self._config, max_concurrency=CONCURRENCY,
            temperature=TEMPERATURE, shuffle=False, run=self.options.name, first_step=len(done) + 1,
            progress=self.console.is_terminal,
        )  # fmt: skip
        async for record in loop:
            row = _row(record)
            with self.metrics.open("a") as file:
                file.write(json.dumps(row) + "\n")
            self._show(row)

    def _config(self, step: int) -> GRPOConfig:
        """A constant learning rate for the first half of the run, then down to nearly nothing."""
        left = 1 - (step - 1) / self.options.steps
        return GRPOConfig(lr=LEARNING_RATE * min(1.0, 2 * left))

    def _steps(self) -> list[dict[str, Any]]:
        """Steps of this run that are done."""
        if not self.metrics.exists():
            return []
        return [json.loads(line) for line in self.metrics.read_text().splitlines()]

    def _show(self, row: dict[str, Any]) -> None:
        numbers = [f"{row[key]:.3f}" if row[key] is not None else "-" for key in ("reward", "success")]
        seconds = row["seconds"]
        note = f"  {row['skipped']}" if row["skipped"] else ""
        self.console.print(
            f"{row['step']:>4} {numbers[0]:>7} {numbers[1]:>8} {seconds['rollout']:>10.1f} {seconds['train']:>8.1f} "
            f"{seconds['swap']:>7.2f}{note}",
            highlight=False,
        )

    def _say(self, one: Measurement, when: str) -> None:
        self.console.print(f"held-out success {when}: {one.successes / one.n:.3f} (n = {one.n}, temperature 0)")

    def _report(self, before: Measurement, after: Measurement | None) -> None:
        steps = self._steps()
        measurements = [before, *([after] if after else [])]
        swaps = [row["seconds"]["swap"] for row in steps]
        summary = {
            "seed": self.options.seed,
            "steps": len(steps),
            "before": before.summary(),
            "after": after.summary() if after else None,
            "seconds": {
                "ready": round(self.ready, 3),
                "rollout": round(sum(row["seconds"]["rollout"] for row in steps), 3),
                "train": round(sum(row["seconds"]["train"] for row in steps), 3),
                "swap_median": round(statistics.median(swaps), 4) if swaps else None,
                "total": round(time.monotonic() - self.started, 3),
            },
        }
        report.draw_curve(self.directory, steps, measurements)
        write_atomic(self.directory / "summary.json", json.dumps(summary, indent=2) + "\n")
        if after:
            report.show_trajectories(self.console, before, after)
        report.show_comparison(self.console, measurements)
        self.console.print(f"summary, curve, metrics and adapter are in {self.directory}/ (also runs/latest)")


def _row(record: StepRecord) -> dict[str, Any]:
    trajectories = [one for group in record.groups for one in group.trajectories]
    return {
        "step": record.step,
        "version": record.result.version,
        "reward": record.reward,
        "success": statistics.fmean(map(success, trajectories)) if trajectories else None,
        "seconds": record.seconds,
        "skipped": record.result.metrics.get("skipped"),
        "metrics": record.result.metrics,
    }


__all__ = ["ARTError", "Options", "run"]
