"""`art-langgraph train --scenarios FILE`: the training loop, which makes its own runs."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from art_langgraph.cli.options import load_object
from art_langgraph.cli.printing.lists import only_json
from art_langgraph.loop.options import LoopOptions, values_of
from trainer_server.common import Home
from trainer_server.common.options import flag

if TYPE_CHECKING:
    from art_langgraph.loop.watch.record import StepRecord
    from art_langgraph.loop.watch.stopping import StopRule
    from art_langgraph.trajectory import TrajectoryGroup


@dataclass(frozen=True, kw_only=True)
class LoopFlags(LoopOptions):
    """The training loop on the command line: its options, and what is written there in another form than in Python.

    Args:
        scenarios: Train on runs of these scenarios, step after step: JSONL, a scenario per line.
        sampler: Scenarios of a step: all equally often, or those whose runs will most likely get unequal rewards.
        explore: Where all runs of a scenario got the same reward, run it again at a higher temperature: so many runs of
            a step, at most.
        hints: Where all runs of a scenario fail, run it once more with a hint in the prompt, and learn from it: a
            function that makes hints, as module:function; art_langgraph:hint_errors takes tools' errors.
        held_out: Scenarios that are never trained on (JSONL): success on them is measured before and after.
        stop_at: Stop when the lower bound (95 %) of held-out success is at least this.
        patience: Stop after so many evaluations without a gain beyond chance.
        minutes: Stop after this time.
        metrics: JSONL file that gets a row for each step. Default: a file in `progress` of ART_HOME.
        tracker: Show the run there: wandb, tensorboard, mlflow, trackio, langfuse, langsmith, or module:Class of yours;
            repeatable. Default: ART_TRACKERS.
    """

    scenarios: Path | None = None
    steps: int = field(default=20, metadata={"min": 1})
    sampler: Literal["uniform", "learnable"] = "uniform"
    explore: int = field(default=0, metadata={"min": 0})
    hints: str | None = None
    held_out: Path | None = None
    stop_at: float | None = None
    patience: int | None = field(default=None, metadata={"min": 1})
    minutes: float | None = field(default=None, metadata={"min": 0.0})
    metrics: Path | None = None
    tracker: list[str] | None = None

    def changes(self) -> dict[str, bool]:
        """The flags that need --scenarios, and whether they were given. Sizes are ignored without it."""
        options = {option.name: option.default for option in fields(self)}
        sizes = ("steps", "groups_per_step", "n")
        values = {name: getattr(self, name) for name in options if name not in sizes}
        return {flag(name): bool(value) and value != options[name] for name, value in values.items()}

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
    policy: str, flags: LoopFlags, graph: str, reward: str | None, *, as_json: bool = False, **options: Any
) -> None:
    """Trains a policy, and prints a line for each step, and in the end the scenarios that taught nothing.

    The policy is created if it is missing.

    Args:
        policy: Name of the policy.
        flags: What the command line says of the loop.
        graph: The graph, as module:graph.
        reward: The reward function, as module:function; None: the judge alone scores.
        as_json: Whether the standard output gets a line of JSON for each step, and the rest the standard error.
        **options: Further keywords of `train`.

    Raises:
        ConfigError: As `train`; or a file or an object cannot be read.
    """
    from art_langgraph.client.client import TrainerClient
    from art_langgraph.datasets import load_scenarios
    from art_langgraph.loop.sampling.dead_groups import dead_groups
    from art_langgraph.loop.sampling.exploration import Exploration
    from art_langgraph.loop.train import train
    from trainer_server.tracking import JSONLTracker, Tracker, named_by

    assert flags.scenarios is not None
    scorer = load_object(reward) if reward else None
    hints = load_object(flags.hints) if flags.hints else None
    agent, scenarios = load_object(graph), load_scenarios(flags.scenarios)
    rows = flags.progress(policy)
    named = named_by() if flags.tracker is None else flags.tracker
    trackers: list[str | Tracker] = [JSONLTracker(rows), *(name for name in named if name != "jsonl")]

    async def loop() -> None:
        async with TrainerClient() as trainer:
            if policy not in {known.name for known in await trainer.policies()}:
                await trainer.create_policy(policy)
            steps = train(
                agent,
                scenarios,
                policy=policy,
                reward=scorer,
                client=trainer,
                sampler=flags.sampler,
                explore=Exploration(n=flags.n, budget=flags.explore) if flags.explore else None,
                hints=hints,
                held_out=flags.held_out,
                stop_when=flags.rules(),
                trackers=trackers,
                progress=sys.stderr.isatty(),
                **values_of(flags, LoopOptions),
                **options,
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
            if flags.metrics is None:
                print(f"rows of the steps: {rows}")

    with only_json(as_json) as tell:
        asyncio.run(loop())
