"""`art-langgraph train`: a step from recorded runs, or the training loop on scenarios."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import ValidationError

from art_langgraph.cli.options import (
    JudgeFlags,
    NodeFlags,
    RunFilter,
    StoreOption,
    existing_store,
    load_function,
    load_object,
)
from art_langgraph.cli.printing import only_json
from art_langgraph.cli.recorded_runs import (
    RecordedStep,
    find_unused_runs,
    from_rewarded_rollouts,
    judge_unscored_runs,
    replay_scenarios,
    train_once,
)
from art_langgraph.loop.options import ExecutorName, LoopOptions, values_of
from trainer_server.common import Home
from trainer_server.common.options import flag, near_name, with_flags
from trainer_server.wire import ConfigError, Distillation, GRPOConfig

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
        executor: Where the graph runs: in this process, in a worker process for each processor, or on a Ray cluster.
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
    executor: ExecutorName = "local"
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

        rules: list[StopRule | None] = [
            None if self.stop_at is None else TargetReached(self.stop_at),
            None if self.patience is None else Plateau(self.patience),
            None if self.minutes is None else TimeBudget(minutes=self.minutes),
        ]
        return [rule for rule in rules if rule is not None]


def run_loop(
    policy: str, flags: LoopFlags, graph: str, reward: str | None, *, as_json: bool = False, **options: Any
) -> None:
    """Trains a policy, and prints a line for each step, and in the end the scenarios that taught nothing.

    The policy is created if it is missing, and has no name that is almost that of another one.

    Args:
        policy: Name of the policy.
        flags: What the command line says of the loop.
        graph: The graph, as module:graph.
        reward: The reward function, as module:function; None: the judge alone scores.
        as_json: Whether the standard output gets a line of JSON for each step, and the rest the standard error.
        **options: Further keywords of `train`.

    Raises:
        ConfigError: As `train`; or a file or an object cannot be read; or the policy is missing, and its name may be a
            misspelt one.
    """
    from art_langgraph.client.client import TrainerClient
    from art_langgraph.datasets import load_scenarios
    from art_langgraph.loop.sampling.dead_groups import dead_groups
    from art_langgraph.loop.sampling.informative import Exploration
    from art_langgraph.loop.train import train
    from trainer_server.tracking import JSONLTracker, Tracker, named_by

    assert flags.scenarios is not None
    scenarios = load_scenarios(flags.scenarios)  # before the graph, whose module may look for a server
    held_out = load_scenarios(flags.held_out) if flags.held_out else None
    scorer = load_function(reward) if reward else None
    hints = load_function(flags.hints) if flags.hints else None
    agent = load_object(graph)
    rows = flags.progress(policy)
    names = named_by() if flags.tracker is None else flags.tracker
    trackers: list[str | Tracker] = [JSONLTracker(rows), *(name for name in names if name != "jsonl")]

    async def loop() -> None:
        async with TrainerClient() as trainer:
            names = [item.name for item in await trainer.policies()]
            if policy not in names:
                _check_spelling(policy, names)
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
                executor=flags.executor,
                held_out=held_out,
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
                notify(record.summary())
                groups += record.groups
            if (report := dead_groups(groups)).dead:
                print(report)
            if last is not None and last.spent is not None:
                print(last.spent)
            if flags.metrics is None:
                print(f"rows of the steps: {rows}")

    with only_json(as_json) as notify:
        asyncio.run(loop())


@dataclass(frozen=True, kw_only=True)
class SourceFlags:
    """A step from recorded runs on the command line.

    Args:
        from_store: Train on runs of the trajectory store.
        from_ledger: Train on rollouts of the trainer server that were given a reward, by HTTP or `session`.
        replay: Run each scenario anew this many times and compare those runs.
        again: Use runs again that an earlier step of this policy was given.
    """

    from_store: bool = False
    from_ledger: bool = False
    replay: int = 0
    again: bool = False


@dataclass(frozen=True, kw_only=True)
class AgentFlags(JudgeFlags):
    """A graph on the command line, and what scores its runs.

    Args:
        graph_object: Graph of the loop, or to replay, as module:graph.
        reward: Reward function of the loop, or for replays, as module:function.
    """

    graph_object: str | None = None
    reward: str | None = None


@dataclass(frozen=True, kw_only=True)
class PolicyFlags(NodeFlags):
    """A training step of `train` on the command line.

    Args:
        distill: Let a teacher score the tokens too: a policy (big), a version (big@3), base, or the address of a vLLM
            that serve --teacher-url allows.
    """

    distill: str | None = None

    def config(self) -> GRPOConfig:
        """The settings of the step. Raises ConfigError where `distill` names no teacher."""
        return super().config().model_copy(update={"distill": _teacher(self.distill)})


@with_flags
def train_command(
    policy: Annotated[str, typer.Option(help="Policy to train.")],
    source: Annotated[SourceFlags, None],
    run_filter: Annotated[RunFilter, None],
    agent: Annotated[AgentFlags, None],
    step: Annotated[PolicyFlags, None],
    loop: Annotated[LoopFlags, "Training loop"],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each step; all else goes to the standard error.")
    ] = False,
    store: StoreOption = None,
) -> None:
    """Make a training step from recorded runs, or train on scenarios step after step (--scenarios).

    Runs of the same scenario are compared with each other. A run alone in its scenario is compared with a running
    baseline, the mean reward of the policy's other runs; or, with --replay N, its scenario is run N times anew.
    Runs without a reward are left out: score them first (`feedback`, `score`), or with --judge MODEL, which compares
    the runs of each scenario. A run is used once, unless --again is given. Runs that evaluate a version are never used.
    Ctrl-C does not end a step that the server has accepted.

    With --from-ledger, runs are rollouts that programs made with a base URL of their own, and that got a reward by
    `POST /api/rollouts/ID/reward` or `session`. The store then only notes which of them were used.

    With --scenarios, the loop runs the graph itself, prints a line for each step, and creates a missing policy, unless
    its name is almost that of another one.
    With --held-out it measures itself on other scenarios, and warns with a remedy where something goes wrong. Runs and
    measurements are kept in the store; with --run, the same command continues a run that was interrupted.

    Example: art-langgraph train --from-store --policy agent --since 1d

    Example: art-langgraph train --policy agent --scenarios train.jsonl --graph-object my_agent:graph
    --reward my_agent:reward --held-out held_out.jsonl --evaluate-every 5 --patience 3 --keep-best
    """
    from art_langgraph.store import TrajectoryStore

    config = step.config()
    if [source.from_store, source.from_ledger, loop.scenarios is not None].count(True) != 1:
        raise ConfigError(
            "say where the runs come from: --from-store (the trajectory store), --from-ledger (rollouts of the "
            "trainer server that have a reward), or --scenarios FILE (the loop makes its own runs, as `train()` does "
            "in Python)"
        )
    filters = {"--graph": run_filter.graph, "--thread": run_filter.thread, "--error": run_filter.error is not None}
    replays = {"--replay": source.replay}
    if loop.scenarios is not None:
        for_recorded_runs = {**replays, "--again": source.again, **filters, "--since": run_filter.since}
        _refuse(for_recorded_runs, "cannot be combined with --scenarios: it is for recorded runs")
        if agent.graph_object is None:
            raise ConfigError("--scenarios needs --graph-object module:graph: the graph that runs them")
        if agent.reward is None and agent.judge is None:
            raise ConfigError("--scenarios needs --reward module:function, or --judge: something has to score the runs")
        run_loop(
            policy,
            loop,
            agent.graph_object,
            agent.reward,
            as_json=as_json,
            group_reward=agent.ruler(),
            config=config,
            nodes=step.node,
            store=TrajectoryStore(store),
        )
        return
    _refuse(loop.changes(), "cannot be used without --scenarios: a single step has no loop to watch")
    if source.from_ledger:
        for_the_store = {**replays, "--judge": agent.judge, **filters}
        _refuse(for_the_store, "cannot be combined with --from-ledger: it is for --from-store")
    elif source.replay and not (agent.graph_object and (agent.reward or agent.judge)):
        raise ConfigError("--replay needs --graph-object module:graph, and --reward module:function or --judge")
    with only_json(as_json) as notify:
        runs_store = TrajectoryStore(store) if source.from_ledger else existing_store(store)
        recorded_step = RecordedStep(policy, runs_store, config, step.node, source.again, notify)
        if source.from_ledger:
            asyncio.run(from_rewarded_rollouts(recorded_step, run_filter.moment()))
        else:
            asyncio.run(_from_store(recorded_step, run_filter, agent, source.replay))


async def _from_store(step: RecordedStep, run_filter: RunFilter, agent: AgentFlags, replay: int) -> None:
    """A step from the runs of the trajectory store in which the policy answered."""
    from art_langgraph.client.client import TrainerClient

    history = [
        trajectory
        for trajectory in step.store.list(**run_filter.query())
        if any(call.policy == step.policy for call in trajectory.completions)
    ]
    ruler = agent.ruler()
    async with TrainerClient() as trainer:
        runs = await find_unused_runs(trainer, step, history)
        if replay:
            runs = await replay_scenarios(step.store, runs, replay, str(agent.graph_object), agent.reward, ruler)
        elif ruler:
            runs = await judge_unscored_runs(step.store, runs, ruler)
        await train_once(trainer, step, runs, history)


def _check_spelling(policy: str, names: list[str]) -> None:
    """Raises ConfigError where the name of a missing policy may be a misspelt one."""
    if match := near_name(policy, names):
        raise ConfigError(
            f"--policy {policy}: there is no such policy; there are: {', '.join(sorted(names))}. If {match} is not "
            f"meant, create it first: art-langgraph policies create {policy}"
        )


def _teacher(teacher: str | None) -> Distillation | None:
    """What `--distill` names. Raises ConfigError: it is no teacher."""
    if teacher is None:
        return None
    try:
        return Distillation(teacher=teacher)
    except ValidationError as error:
        raise ConfigError(f"--distill: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None


def _refuse(options: Mapping[str, object], why: str) -> None:
    """Raises ConfigError where any of these options was given, with their names."""
    if wrong := [name for name, value in options.items() if value]:
        raise ConfigError(f"{', '.join(wrong)} {why}")
