"""`art-langgraph train`: a step from recorded runs, or the training loop on scenarios."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated

import typer
from pydantic import ValidationError

from art_langgraph.cli.options import (
    AggregationOption,
    ErrorOption,
    GraphOption,
    JudgeOption,
    LrOption,
    RubricOption,
    SinceOption,
    StoreOption,
    ThreadOption,
    UrlOption,
    VotesOption,
    filters,
    make_ruler,
    with_flags,
)
from art_langgraph.cli.printing.lists import only_json
from art_langgraph.cli.training.loop import LoopFlags, run_loop
from art_langgraph.cli.training.recorded_runs import (
    find_unused_runs,
    from_rewarded_rollouts,
    judge_unscored_runs,
    replay_scenarios,
    train_once,
)
from trainer_server.wire import ConfigError, Distillation, GRPOConfig
from trainer_server.wire.text import moment


@with_flags
def train_command(
    policy: Annotated[str, typer.Option(help="Policy to train.")],
    loop: Annotated[LoopFlags, "Training loop"],
    from_store: Annotated[bool, typer.Option("--from-store", help="Train on runs of the trajectory store.")] = False,
    from_ledger: Annotated[
        bool,
        typer.Option(
            "--from-ledger",
            help="Train on rollouts of the trainer server that were given a reward, by HTTP or `session`.",
        ),
    ] = False,
    lr: LrOption = GRPOConfig().lr,
    loss_aggregation: AggregationOption = "loss_type",
    distill: Annotated[
        str | None,
        typer.Option(
            help="Let a teacher score the tokens too: a policy (big), a version (big@3), base, or the address of a "
            "vLLM that serve --teacher-url allows."
        ),
    ] = None,
    node: Annotated[list[str] | None, typer.Option(help="Train only this node; repeatable, patterns allowed.")] = None,
    replay: Annotated[int, typer.Option(help="Run each scenario anew this many times and compare those runs.")] = 0,
    graph_object: Annotated[
        str | None, typer.Option("--graph-object", help="Graph of the loop, or to replay, as module:graph.")
    ] = None,
    reward: Annotated[
        str | None, typer.Option(help="Reward function of the loop, or for replays, as module:function.")
    ] = None,
    judge: JudgeOption = None,
    judge_url: UrlOption = None,
    rubric: RubricOption = None,
    votes: VotesOption = 1,
    again: Annotated[
        bool, typer.Option("--again", help="Use runs again that an earlier step of this policy was given.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each step; all else goes to the standard error.")
    ] = False,
    store: StoreOption = None,
    graph: GraphOption = None,
    thread: ThreadOption = None,
    since: SinceOption = None,
    error: ErrorOption = None,
) -> None:
    """Make a training step from recorded runs, or train on scenarios step after step (--scenarios).

    Runs of the same scenario are compared with each other. A run alone in its scenario is compared with a running
    baseline, the mean reward of the policy's other runs; or, with --replay N, its scenario is run N times anew.
    Runs without a reward are left out: score them first (`feedback`, `score`), or with --judge MODEL, which compares
    the runs of each scenario. A run is used once, unless --again is given. Runs that evaluate a version are never used.
    Ctrl-C does not end a step that the server has accepted.

    With --from-ledger, runs are rollouts that programs made with a base URL of their own, and that got a reward by
    `POST /api/rollouts/ID/reward` or `session`. The store then only notes which of them were used.

    With --scenarios, the loop runs the graph itself, prints a line for each step, and creates a missing policy.
    With --held-out it measures itself on other scenarios, and warns with a remedy where something goes wrong. Runs and
    measurements are kept in the store; with --run, the same command continues a run that was interrupted.

    Example: art-langgraph train --from-store --policy agent --since 1d

    Example: art-langgraph train --policy agent --scenarios train.jsonl --graph-object my_agent:graph
    --reward my_agent:reward --held-out held_out.jsonl --evaluate-every 5 --patience 3 --keep-best
    """
    from art_langgraph.store import TrajectoryStore

    config = GRPOConfig(lr=lr, loss_aggregation=loss_aggregation, distill=_teacher(distill))
    if [from_store, from_ledger, loop.scenarios is not None].count(True) != 1:
        raise ConfigError(
            "say where the runs come from: --from-store (the trajectory store), --from-ledger (rollouts of the "
            "trainer server that have a reward), or --scenarios FILE (the loop makes its own runs, as `train()` does "
            "in Python)"
        )
    if loop.scenarios is not None:
        of_recorded = {
            "--replay": replay,
            "--again": again,
            "--graph": graph,
            "--thread": thread,
            "--since": since,
            "--error": error is not None,
        }
        _refuse(of_recorded, "cannot be combined with --scenarios: it is for recorded runs")
        if graph_object is None:
            raise ConfigError("--scenarios needs --graph-object module:graph: the graph that runs them")
        if reward is None and judge is None:
            raise ConfigError("--scenarios needs --reward module:function, or --judge: something has to score the runs")
        run_loop(
            policy,
            loop,
            graph_object,
            reward,
            as_json=as_json,
            group_reward=None if judge is None else make_ruler(judge, judge_url, rubric, votes),
            config=config,
            nodes=node,
            store=TrajectoryStore(store),
        )
        return
    _refuse(loop.changes(), "cannot be used without --scenarios: a single step has no loop to watch")
    if from_ledger:
        given = {
            "--replay": replay,
            "--judge": judge,
            "--graph": graph,
            "--thread": thread,
            "--error": error is not None,
        }
        _refuse(given, "cannot be combined with --from-ledger: it is for --from-store")
        with only_json(as_json) as tell:
            asyncio.run(
                from_rewarded_rollouts(
                    policy,
                    TrajectoryStore(store),
                    None if since is None else moment(since),
                    config,
                    node,
                    again=again,
                    notify=tell,
                )
            )
        return
    if replay and (not graph_object or not (reward or judge)):
        raise ConfigError("--replay needs --graph-object module:graph, and --reward module:function or --judge")
    target = TrajectoryStore(store)
    trajectories = target.list(**filters(graph, thread, since, error=error))
    recorded = [
        trajectory for trajectory in trajectories if any(call.policy == policy for call in trajectory.completions)
    ]
    ruler = None if judge is None else make_ruler(judge, judge_url, rubric, votes)

    async def step() -> None:
        from art_langgraph.client.client import TrainerClient

        async with TrainerClient() as trainer:
            runs = await find_unused_runs(trainer, target, policy, recorded, again)
            if replay:
                runs = await replay_scenarios(target, runs, replay, str(graph_object), reward, ruler)
            elif ruler:
                runs = await judge_unscored_runs(target, runs, ruler)
            await train_once(trainer, policy, target, runs, recorded, config, node, again, tell)

    with only_json(as_json) as tell:
        asyncio.run(step())


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


def register(root: typer.Typer) -> None:
    """Adds the command to `art-langgraph`."""
    root.command("train")(train_command)
