"""`art-langgraph train`: a step from recorded runs, of the store or of the server's ledger. `sft`: a warm start."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from art_langgraph.cli.options import (
    AggregationOption,
    ErrorOption,
    GraphOption,
    JudgeOption,
    RubricOption,
    SinceOption,
    StoreOption,
    ThreadOption,
    UrlOption,
    VotesOption,
    filters,
    load_object,
    make_ruler,
    moment,
)
from trainer_server.wire import ConfigError, GRPOConfig, SFTConfig

if TYPE_CHECKING:
    from art_langgraph.client.client import TrainerClient
    from art_langgraph.credit import Comparison
    from art_langgraph.judge.ruler import Ruler
    from art_langgraph.store import TrajectoryStore
    from art_langgraph.trajectory import Trajectory

_HISTORY = 200
"""How many earlier scored runs the running baseline is made of."""
_AT_ONCE = 16
"""Rollouts that are read at once."""
_SFT = SFTConfig()


def train_command(
    policy: Annotated[str, typer.Option(help="Policy to train.")],
    from_store: Annotated[bool, typer.Option("--from-store", help="Train on runs of the trajectory store.")] = False,
    from_ledger: Annotated[
        bool,
        typer.Option(
            "--from-ledger",
            help="Train on rollouts of the trainer server that were given a reward, by HTTP or `session`.",
        ),
    ] = False,
    lr: Annotated[float, typer.Option(help="Learning rate.", min=0.0)] = 1e-4,
    loss_aggregation: AggregationOption = "loss_type",
    node: Annotated[list[str] | None, typer.Option(help="Train only this node; repeatable, patterns allowed.")] = None,
    replay: Annotated[int, typer.Option(help="Run each scenario anew this many times and compare those runs.")] = 0,
    graph_object: Annotated[
        str | None, typer.Option("--graph-object", help="Graph to replay, as module:graph.")
    ] = None,
    reward: Annotated[str | None, typer.Option(help="Reward function for replays, as module:function.")] = None,
    judge: JudgeOption = None,
    judge_url: UrlOption = None,
    rubric: RubricOption = None,
    votes: VotesOption = 1,
    again: Annotated[
        bool, typer.Option("--again", help="Use runs again that an earlier step of this policy was given.")
    ] = False,
    store: StoreOption = None,
    graph: GraphOption = None,
    thread: ThreadOption = None,
    since: SinceOption = None,
    error: ErrorOption = None,
) -> None:
    """Make a training step from recorded runs.

    Runs of the same scenario are compared with each other. A run alone in its scenario is compared with a running
    baseline, the mean reward of the policy's other runs; or, with --replay N, its scenario is run N times anew.
    Runs without a reward are left out: score them first (`feedback`, `score`), or with --judge MODEL, which compares
    the runs of each scenario. A run is used once, unless --again is given. Runs that evaluate a version are never used.
    Ctrl-C does not end a step that the server has accepted.

    With --from-ledger, runs are rollouts that programs made with a base URL of their own, and that got a reward by
    `POST /api/rollouts/ID/reward` or `session`. The store then only notes which of them were used.

    Example: art-langgraph train --from-store --policy agent --since 1d
    """
    from art_langgraph.store import TrajectoryStore

    if from_store == from_ledger:
        raise ConfigError(
            "say where the runs come from: --from-store (the trajectory store) or --from-ledger (rollouts of the "
            "trainer server that have a reward); in Python, `train()` makes its own runs"
        )
    if from_ledger:
        given = {
            "--replay": replay,
            "--judge": judge,
            "--graph": graph,
            "--thread": thread,
            "--error": error is not None,
        }
        if wrong := [name for name, value in given.items() if value]:
            raise ConfigError(f"{', '.join(wrong)} cannot be combined with --from-ledger: it is for --from-store")
        asyncio.run(
            _from_ledger(
                policy,
                TrajectoryStore(store),
                None if since is None else moment(since),
                GRPOConfig(lr=lr, loss_aggregation=loss_aggregation),
                node,
                again=again,
            )
        )
        return
    if replay and (not graph_object or not (reward or judge)):
        raise ConfigError("--replay needs --graph-object module:graph, and --reward module:function or --judge")
    target = TrajectoryStore(store)
    found = target.list(**filters(graph, thread, since, error=error))
    recorded = [trajectory for trajectory in found if any(call.policy == policy for call in trajectory.completions)]
    ruler = None if judge is None else make_ruler(judge, judge_url, rubric, votes)

    async def step() -> None:
        from art_langgraph.client.client import TrainerClient

        async with TrainerClient() as trainer:
            runs = await _unused(trainer, target, policy, recorded, again)
            if replay:
                runs = await _replay(target, runs, replay, str(graph_object), reward, ruler)
            elif ruler:
                runs = await _judge(target, runs, ruler)
            config = GRPOConfig(lr=lr, loss_aggregation=loss_aggregation)
            await _train(trainer, policy, target, runs, recorded, config, node)

    asyncio.run(step())


async def _from_ledger(
    policy: str,
    store: TrajectoryStore,
    since: float | None,
    config: GRPOConfig,
    nodes: list[str] | None,
    *,
    again: bool,
) -> None:
    """A step from the rollouts of the trainer server that have a reward and were not trained on."""
    from art_langgraph.client.client import TrainerClient
    from art_langgraph.trajectory import Scenario, Trajectory

    async with TrainerClient() as trainer:
        listed = [one async for one in trainer.rollouts(policy=policy, rewarded=True)]
        listed = [one for one in listed if since is None or one.created >= since]
        if not listed:
            print(
                f"no rollout in which {policy!r} answered has a reward: give rollouts one with POST "
                "/api/rollouts/ID/reward, or by `session`"
            )
            raise typer.Exit(1)
        headers = [  # what the ledger need not be read for
            Trajectory(
                id=one.id,
                scenario=Scenario(id=one.scenario or "", input=None),
                reward=one.reward,
                evaluation=one.evaluation,
            )
            for one in listed
        ]
        fresh = {header.id for header in await _unused(trainer, store, policy, headers, again)}
        limit = asyncio.Semaphore(_AT_ONCE)

        async def read(rollout_id: str) -> Trajectory:
            async with limit:
                return await trainer.rollout(rollout_id)

        runs = await asyncio.gather(*(read(one.id) for one in listed if one.id in fresh))
        earlier = [header for header in headers if header.id not in fresh]
        await _train(trainer, policy, store, runs, [*runs, *earlier], config, nodes)


async def _unused(
    trainer: TrainerClient, store: TrajectoryStore, policy: str, recorded: Sequence[Trajectory], again: bool
) -> list[Trajectory]:
    """The runs that a step may take. Says which ones are left out, and why."""
    from art_langgraph.client.step_marks import settle

    usable = [trajectory for trajectory in recorded if not (trajectory.evaluation or trajectory.hints)]
    if evaluations := len(recorded) - len(usable):
        print(
            f"{evaluations} of {len(recorded)} runs are left out: they evaluate a version, or had hints, and are never "
            "trained on"
        )
    for job in await settle(trainer, store, policy):
        print(f"{job.id}, which was sent earlier, is still {job.status}: its runs are in use")
    if again:
        return usable
    used = store.trained(policy)
    fresh = [trajectory for trajectory in usable if trajectory.id not in used]
    if skipped := len(usable) - len(fresh):
        print(f"{skipped} of {len(usable)} runs are left out: {policy} was trained on them; --again uses them again")
    return fresh


async def _replay(
    store: TrajectoryStore, runs: Sequence[Trajectory], n: int, graph: str, reward: str | None, ruler: Ruler | None
) -> list[Trajectory]:
    """Runs the scenarios of recorded runs anew, `n` times each."""
    from art_langgraph.loop.rollout import gather

    begun = [trajectory for trajectory in runs if trajectory.resumes is None]
    if lost := len(runs) - len(begun):
        print(f"{lost} runs are left out: they resumed a thread whose first run is not in the store, or a checkpoint")
    scenarios = list({trajectory.scenario.id: trajectory.scenario for trajectory in begun}.values())
    print(f"replaying {len(scenarios)} scenarios {n} times: their runs are compared with one another")
    groups = await gather(
        load_object(graph),
        scenarios,
        n,
        load_object(reward) if reward else None,
        group_reward=ruler,
        temperature=1.0,
        store=store,
    )
    return [trajectory for group in groups for trajectory in group.trajectories]


async def _judge(store: TrajectoryStore, runs: Sequence[Trajectory], ruler: Ruler) -> list[Trajectory]:
    """Lets the judge score the runs that have ended without a reward. Returns them, and the runs with a reward."""
    from art_langgraph.cli.scoring import judge_runs

    unscored = [trajectory for trajectory in runs if not trajectory.scored and not trajectory.waiting]
    judged = await judge_runs(store, unscored, ruler, "ruler")
    return [*(trajectory for trajectory in runs if trajectory.scored), *judged]


async def _train(
    trainer: TrainerClient,
    policy: str,
    store: TrajectoryStore,
    runs: Sequence[Trajectory],
    recorded: Sequence[Trajectory],
    config: GRPOConfig,
    nodes: list[str] | None,
) -> None:
    """Compares runs, takes a training step on them, and records that they were used."""
    from art_langgraph.client.step_marks import StepMarks
    from art_langgraph.credit import compare

    chosen = {trajectory.id for trajectory in runs}
    earlier = (run for run in recorded if run.id not in chosen and run.scored and not run.evaluation)
    comparison = compare(runs, policy, history=list(islice(earlier, _HISTORY)), nodes=nodes)
    _tell(comparison)
    if not comparison.groups:
        print("nothing to train on")
        raise typer.Exit(1)
    key = uuid.uuid4().hex
    async with StepMarks(store, policy, key, comparison.trained) as marks:
        job = await trainer.submit(policy, comparison.groups, config, idempotency_key=key)
        print(f"{job.id} is accepted: a training step of {policy}")
        marks.result = result = await trainer.result(job)
    metrics = result.metrics
    if skipped := metrics.get("skipped"):
        print(f"{policy} stays at version {result.version}: {skipped}; the runs can be used again")
        raise typer.Exit(1)
    drift = metrics.get("prefix_drift")
    print(
        f"{policy}@{result.version} is served: {metrics['completions']} completions, "
        f"mean reward {metrics['reward_mean']:.3f}" + ("" if drift is None else f", prefix drift {drift:.1%}")
    )


def _tell(comparison: Comparison) -> None:
    print(
        f"{comparison.grouped} runs are compared with others of their scenario, {comparison.single} with a running "
        f"baseline; left out: {comparison.unscored} without a reward, {comparison.no_baseline} with nothing to compare "
        f"with, {comparison.no_completions} without a completion to train"
    )
    if comparison.apart:
        print(
            f"{comparison.apart} scenarios have scores of a judge's comparison beside other rewards: these are not "
            "compared with one another; `art-langgraph score --again` scores all runs in one way"
        )


def sft_command(
    policy: Annotated[str, typer.Argument(help="Policy to start warm.")],
    file: Annotated[Path, typer.Argument(help="JSONL, a conversation per line: {'messages': [...], 'tools': [...]}.")],
    lr: Annotated[float, typer.Option(help="Peak learning rate.", min=0.0)] = _SFT.lr,
    epochs: Annotated[int, typer.Option(help="Passes over the file.", min=1)] = _SFT.num_train_epochs,
    batch_size: Annotated[int, typer.Option(help="Rows of an update.", min=1)] = _SFT.per_device_train_batch_size,
    max_length: Annotated[int, typer.Option(help="Tokens; longer answers are skipped.", min=2)] = _SFT.max_length,
    seed: Annotated[int, typer.Option(help="Order of the rows.", min=0)] = _SFT.seed,
    train_on: Annotated[
        Literal["all", "last"], typer.Option(help="Imitate all answers of a conversation, or the last one.")
    ] = _SFT.train_on,
) -> None:
    """Start a policy warm: its next version imitates conversations, in OpenAI's fine-tuning format.

    Only what assistants said is learnt, tool calls included.

    Example: art-langgraph sft agent good.jsonl --epochs 2
    """
    config = SFTConfig(
        lr=lr,
        num_train_epochs=epochs,
        per_device_train_batch_size=batch_size,
        max_length=max_length,
        seed=seed,
        train_on=train_on,
    )

    async def start() -> None:
        from art_langgraph.client.client import TrainerClient

        async with TrainerClient() as trainer:
            result = await trainer.sft(policy, file, config)
        metrics = result.metrics
        skipped = {**metrics["turns_skipped"], **metrics["conversations_skipped"]}
        left_out = ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "nothing"
        if reason := metrics.get("skipped"):
            print(f"{policy} stays at version {result.version}: {reason}")
            raise typer.Exit(1)
        print(
            f"{policy}@{result.version} is served: {metrics['turns']} answers of {metrics['tokens_trained']} tokens, "
            f"loss {metrics['loss_first']:.3f} → {metrics['loss_last']:.3f}; left out: {left_out}"
        )

    asyncio.run(start())


def register(root: typer.Typer) -> None:
    """Adds these commands to `art-langgraph`."""
    root.command("train")(train_command)
    root.command("sft")(sft_command)
