"""`art-langgraph train --scenarios FILE`: the training loop, which makes its own runs."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from art_langgraph.cli.options import load_object
from art_langgraph.cli.printing.lists import only_json
from trainer_server.wire import ConfigError, GRPOConfig, Home

if TYPE_CHECKING:
    from art_langgraph.judge.ruler import Ruler
    from art_langgraph.loop.watch.record import StepRecord
    from art_langgraph.loop.watch.stopping import StopRule
    from art_langgraph.store import TrajectoryStore
    from art_langgraph.trajectory import TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """What the command line says about the loop. The arguments of `train` of the same names explain them.

    Args:
        scenarios: JSONL file of the scenarios to train on.
        graph: The graph, as module:graph.
        reward: The reward function, as module:function; None: the judge alone scores.
        steps: Number of the last step.
        groups_per_step: Scenarios of a step.
        n: Runs of each scenario.
        sampler: Which scenarios a step gets.
        explore: Runs of a step, at most, that explore dead groups; 0: none.
        hints: The function that makes hints, as module:function; None: no hints.
        held_out: JSONL file of the held-out scenarios; None: nothing is measured.
        evaluate_every: Steps between two evaluations.
        stop_at: Ends the run when the lower bound of held-out success is at least this.
        patience: Ends the run after this many evaluations without a gain beyond chance.
        minutes: Ends the run after this time.
        keep_best: Whether the best version is promoted.
        run: Name of the training run; with one, a run that was interrupted is continued.
        metrics: JSONL file that gets a row for each step; None: one in the home directory.
        trackers: Names of trackers; None: those in `ART_TRACKERS`.
    """

    scenarios: Path
    graph: str
    reward: str | None
    steps: int
    groups_per_step: int
    n: int
    sampler: Literal["uniform", "learnable"]
    explore: int
    hints: str | None
    held_out: Path | None
    evaluate_every: int | None
    stop_at: float | None
    patience: int | None
    minutes: float | None
    keep_best: bool
    run: str
    metrics: Path | None
    trackers: list[str] | None

    def progress(self, policy: str) -> Path:
        """The file that gets a row for each step."""
        if self.metrics is not None:
            return self.metrics
        name = re.sub(r"[^\w.-]", "-", self.run) or time.strftime("%Y%m%d-%H%M%S")
        return Home.find().root / "progress" / f"{policy}-{name}.jsonl"

    def rules(self) -> list[StopRule]:
        """What ends the run early."""
        from art_langgraph.loop.watch.stopping import Plateau, TargetReached, TimeBudget

        rules: list[StopRule] = []
        if self.stop_at is not None:
            rules.append(TargetReached(self.stop_at))
        if self.patience is not None:
            rules.append(Plateau(self.patience))
        if self.minutes is not None:
            rules.append(TimeBudget(minutes=self.minutes))
        return rules


def run_loop(
    policy: str,
    options: LoopOptions,
    *,
    config: GRPOConfig,
    nodes: list[str] | None,
    ruler: Ruler | None,
    store: TrajectoryStore,
    as_json: bool = False,
) -> None:
    """Trains a policy, and prints a line for each step, and in the end the scenarios that taught nothing.

    The policy is created if it is missing.

    Args:
        policy: Name of the policy.
        options: What the command line says.
        config: Settings of every step.
        nodes: The nodes to train; None: all.
        ruler: Compares the runs of a scenario; None: the reward function alone scores.
        store: Where runs and evaluations are kept.
        as_json: Whether the standard output gets a line of JSON for each step, and the rest the standard error.

    Raises:
        ConfigError: As `train`; or a file or an object cannot be read.
    """
    from art_langgraph.client.client import TrainerClient
    from art_langgraph.datasets import load_scenarios
    from art_langgraph.loop.sampling.dead_groups import dead_groups
    from art_langgraph.loop.sampling.exploration import Exploration
    from art_langgraph.loop.train import train
    from trainer_server.wire.trackers import JSONLTracker, Tracker, named_by

    if options.reward is None and ruler is None:
        raise ConfigError("--scenarios needs --reward module:function, or --judge: something has to score the runs")
    graph = load_object(options.graph)
    reward = load_object(options.reward) if options.reward else None
    hints = load_object(options.hints) if options.hints else None
    scenarios = load_scenarios(options.scenarios)
    rows = options.progress(policy)
    named = named_by() if options.trackers is None else options.trackers
    trackers: list[str | Tracker] = [JSONLTracker(rows), *(name for name in named if name != "jsonl")]

    async def loop() -> None:
        async with TrainerClient() as trainer:
            if policy not in {known.name for known in await trainer.policies()}:
                await trainer.create_policy(policy)
            steps = train(
                graph,
                scenarios,
                policy=policy,
                reward=reward,
                group_reward=ruler,
                steps=options.steps,
                client=trainer,
                groups_per_step=options.groups_per_step,
                n=options.n,
                config=config,
                sampler=options.sampler,
                explore=Exploration(n=options.n, budget=options.explore) if options.explore else None,
                hints=hints,
                nodes=nodes,
                store=store,
                run=options.run,
                held_out=options.held_out,
                evaluate_every=options.evaluate_every,
                stop_when=options.rules(),
                keep_best=options.keep_best,
                trackers=trackers,
                progress=sys.stderr.isatty(),
            )
            groups: list[TrajectoryGroup] = []
            last: StepRecord | None = None
            async for record in steps:
                if last is None and record.baseline is not None:
                    print(f"before: {record.baseline}")
                last = record
                print(record, flush=True)
                tell(record.summary())
                groups += record.groups
            if (report := dead_groups(groups)).dead:
                print(report)
            if last is not None and last.spent is not None:
                print(last.spent)
            if options.metrics is None:
                print(f"rows of the steps: {rows}")

    with only_json(as_json) as tell:
        asyncio.run(loop())
