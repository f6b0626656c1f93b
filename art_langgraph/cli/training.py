"""`art-langgraph train`: a step from recorded runs, or the training loop on scenarios. `sft`: a warm start."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import ValidationError

from art_langgraph.cli.loop import LoopOptions, run_loop
from art_langgraph.cli.options import (
    AggregationOption,
    ErrorOption,
    GraphOption,
    JsonOption,
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
)
from art_langgraph.cli.printing.lists import only_json
from trainer_server.wire import ConfigError, Distillation, GRPOConfig, SFTConfig
from trainer_server.wire.text import moment

if TYPE_CHECKING:
    from art_langgraph.client.client import TrainerClient
    from art_langgraph.credit import Comparison
    from art_langgraph.judge.ruler import Ruler
    from art_langgraph.store import TrajectoryStore
    from art_langgraph.trajectory import Trajectory

_LOOP = "Training loop"
"""Where `--help` lists the options of the loop."""
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
    scenarios: Annotated[
        Path | None,
        typer.Option(
            "--scenarios",
            help="Train on runs of these scenarios, step after step: JSONL, a scenario per line.",
            rich_help_panel=_LOOP,
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of the loop.", min=1, rich_help_panel=_LOOP)] = 20,
    groups_per_step: Annotated[int, typer.Option(help="Scenarios of a step.", min=1, rich_help_panel=_LOOP)] = 4,
    n: Annotated[int, typer.Option("--n", help="Runs of each scenario.", min=2, rich_help_panel=_LOOP)] = 8,
    sampler: Annotated[
        Literal["uniform", "learnable"],
        typer.Option(
            help="Scenarios of a step: all equally often, or those whose runs will most likely get unequal rewards.",
            rich_help_panel=_LOOP,
        ),
    ] = "uniform",
    explore: Annotated[
        int,
        typer.Option(
            help="Where all runs of a scenario got the same reward, run it again at a higher temperature: so many runs "
            "of a step, at most.",
            min=0,
            rich_help_panel=_LOOP,
        ),
    ] = 0,
    hints: Annotated[
        str | None,
        typer.Option(
            help="Where all runs of a scenario fail, run it once more with a hint in the prompt, and learn from it: a "
            "function that makes hints, as module:function; art_langgraph:hint_errors takes tools' errors.",
            rich_help_panel=_LOOP,
        ),
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(
            "--held-out",
            help="Scenarios that are never trained on (JSONL): success on them is measured before and after.",
            rich_help_panel=_LOOP,
        ),
    ] = None,
    evaluate_every: Annotated[
        int | None,
        typer.Option("--evaluate-every", help="Measure after every so many steps too.", min=1, rich_help_panel=_LOOP),
    ] = None,
    stop_at: Annotated[
        float | None,
        typer.Option(
            "--stop-at",
            help="Stop when the lower bound (95 %) of held-out success is at least this.",
            rich_help_panel=_LOOP,
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            "--patience",
            help="Stop after so many evaluations without a gain beyond chance.",
            min=1,
            rich_help_panel=_LOOP,
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="Stop after this time.", min=0.0, rich_help_panel=_LOOP)
    ] = None,
    keep_best: Annotated[
        bool,
        typer.Option(
            "--keep-best",
            help="Promote the version with the highest held-out success: the policy's name then means it.",
            rich_help_panel=_LOOP,
        ),
    ] = False,
    run: Annotated[
        str,
        typer.Option("--run", help="Name of the run: the same command continues it.", rich_help_panel=_LOOP),
    ] = "",
    metrics: Annotated[
        Path | None,
        typer.Option(
            "--metrics",
            help="JSONL file that gets a row for each step. Default: a file in `progress` of ART_HOME.",
            rich_help_panel=_LOOP,
        ),
    ] = None,
    tracker: Annotated[
        list[str] | None,
        typer.Option(
            help="Show the run there: wandb, tensorboard, mlflow, trackio, langfuse, langsmith, or module:Class of "
            "yours; repeatable. Default: ART_TRACKERS.",
            rich_help_panel=_LOOP,
        ),
    ] = None,
    lr: Annotated[float, typer.Option(help="Learning rate.", min=0.0)] = 1e-4,
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
    if [from_store, from_ledger, scenarios is not None].count(True) != 1:
        raise ConfigError(
            "say where the runs come from: --from-store (the trajectory store), --from-ledger (rollouts of the "
            "trainer server that have a reward), or --scenarios FILE (the loop makes its own runs, as `train()` does "
            "in Python)"
        )
    of_the_loop = {
        "--sampler": sampler != "uniform",
        "--explore": explore,
        "--hints": hints,
        "--held-out": held_out,
        "--evaluate-every": evaluate_every,
        "--stop-at": stop_at,
        "--patience": patience,
        "--minutes": minutes,
        "--keep-best": keep_best,
        "--run": run,
        "--metrics": metrics,
        "--tracker": tracker,
    }
    if scenarios is None:
        _refuse(of_the_loop, "cannot be used without --scenarios: a single step has no loop to watch")
    else:
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
        run_loop(
            policy,
            LoopOptions(
                scenarios=scenarios,
                graph=graph_object,
                reward=reward,
                steps=steps,
                groups_per_step=groups_per_step,
                n=n,
                sampler=sampler,
                explore=explore,
                hints=hints,
                held_out=held_out,
                evaluate_every=evaluate_every,
                stop_at=stop_at,
                patience=patience,
                minutes=minutes,
                keep_best=keep_best,
                run=run,
                metrics=metrics,
                trackers=tracker,
            ),
            config=config,
            nodes=node,
            ruler=None if judge is None else make_ruler(judge, judge_url, rubric, votes),
            store=TrajectoryStore(store),
            as_json=as_json,
        )
        return
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
                _from_ledger(
                    policy,
                    TrajectoryStore(store),
                    None if since is None else moment(since),
                    config,
                    node,
                    again=again,
                    tell=tell,
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
            runs = await _unused(trainer, target, policy, recorded, again)
            if replay:
                runs = await _replay(target, runs, replay, str(graph_object), reward, ruler)
            elif ruler:
                runs = await _judge(target, runs, ruler)
            await _train(trainer, policy, target, runs, recorded, config, node, again, tell)

    with only_json(as_json) as tell:
        asyncio.run(step())


def _teacher(named: str | None) -> Distillation | None:
    """What `--distill` names. Raises ConfigError: it is no teacher."""
    if named is None:
        return None
    try:
        return Distillation(teacher=named)
    except ValidationError as error:
        raise ConfigError(f"--distill: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None


def _refuse(options: Mapping[str, object], why: str) -> None:
    """Raises ConfigError where any of these options was given, with their names."""
    if wrong := [name for name, value in options.items() if value]:
        raise ConfigError(f"{', '.join(wrong)} {why}")


async def _from_ledger(
    policy: str,
    store: TrajectoryStore,
    since: float | None,
    config: GRPOConfig,
    nodes: list[str] | None,
    *,
    again: bool,
    tell: Callable[[Any], None],
) -> None:
    """A step from the rollouts of the trainer server that have a reward and were not trained on."""
    from art_langgraph.client.client import TrainerClient
    from art_langgraph.trajectory import Scenario, Trajectory

    async with TrainerClient() as trainer:
        listed = [rollout async for rollout in trainer.rollouts(policy=policy, rewarded=True)]
        listed = [rollout for rollout in listed if since is None or rollout.created >= since]
        if not listed:
            print(
                f"no rollout in which {policy!r} answered has a reward: give rollouts one with POST "
                "/api/rollouts/ID/reward, or by `session`"
            )
            raise typer.Exit(1)
        headers = [  # what the ledger need not be read for
            Trajectory(
                id=rollout.id,
                scenario=Scenario(id=rollout.scenario or "", input=None),
                reward=rollout.reward,
                evaluation=rollout.evaluation,
            )
            for rollout in listed
        ]
        fresh = {header.id for header in await _unused(trainer, store, policy, headers, again)}
        limit = asyncio.Semaphore(_AT_ONCE)

        async def read(rollout_id: str) -> Trajectory:
            async with limit:
                return await trainer.rollout(rollout_id)

        runs = await asyncio.gather(*(read(rollout.id) for rollout in listed if rollout.id in fresh))
        earlier = [header for header in headers if header.id not in fresh]
        await _train(trainer, policy, store, runs, [*runs, *earlier], config, nodes, again, tell)


async def _unused(
    trainer: TrainerClient, store: TrajectoryStore, policy: str, recorded: Sequence[Trajectory], again: bool
) -> list[Trajectory]:
    """The runs that a step may take. Says which ones are left out, and why."""
    from art_langgraph.auto_pilot.state_store import StateStore
    from art_langgraph.client.step_marks import settle

    usable = [trajectory for trajectory in recorded if not (trajectory.evaluation or trajectory.hints)]
    if evaluations := len(recorded) - len(usable):
        print(
            f"{evaluations} of {len(recorded)} runs are left out: they evaluate a version, or had hints, and are never "
            "trained on"
        )
    flown = StateStore(store, policy).step_of_a_running_autopilot()
    if flown is not None:
        print(f"the autopilot of {policy} is running, and has a training step under way: its runs are in use")
    for job in await settle(trainer, store, policy, sending=flown):
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
    again: bool,
    tell: Callable[[Any], None],
) -> None:
    """Compares runs, takes a training step on them, and records that they were used."""
    from art_langgraph.client.step_marks import StepMarks
    from art_langgraph.credit import compare
    from art_langgraph.loop.sampling.dead_groups import dead_groups
    from art_langgraph.trajectory import TrajectoryGroup

    key = uuid.uuid4().hex
    chosen = store.begin_step(policy, key, [trajectory.id for trajectory in runs], again=again)
    if taken := sum(trajectory.id not in chosen for trajectory in runs):
        print(f"{taken} of {len(runs)} runs are left out: another step of {policy} was given them meanwhile")
    runs = [trajectory for trajectory in runs if trajectory.id in chosen]
    comparison = compare(runs, policy, history=recorded, nodes=nodes)
    _tell(comparison)
    if not comparison.groups:
        store.end_step(policy, key, None)
        print("nothing to train on")
        raise typer.Exit(1)
    async with StepMarks(store, policy, key, comparison.trained) as marks:
        job = await trainer.submit(policy, comparison.groups, config, idempotency_key=key)
        print(f"{job.id} is accepted: a training step of {policy}")
        marks.result = result = await trainer.result(job)
    metrics = result.metrics
    tell({"policy": policy, **result.model_dump(mode="json", exclude={"trajectories"})})
    several = [group for group in TrajectoryGroup.by_scenario(comparison.trained) if len(group.trajectories) > 1]
    if several and (report := dead_groups(several)).scenarios:
        print(report)
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
    if comparison.mixed_scenarios:
        print(
            f"{comparison.mixed_scenarios} scenarios have scores of a judge's comparison beside other rewards: these "
            "are not compared with one another; `art-langgraph score --again` scores all runs in one way"
        )


def sft_command(
    policy: Annotated[str, typer.Argument(help="Policy to start warm.")],
    file: Annotated[Path, typer.Argument(help="JSONL, a conversation per line: {'messages': [...], 'tools': [...]}.")],
    lr: Annotated[float, typer.Option(help="Peak learning rate.", min=0.0)] = _SFT.lr,
    epochs: Annotated[int, typer.Option(help="Passes over the file.", min=1)] = _SFT.num_train_epochs,
    batch_size: Annotated[
        int, typer.Option(help="Conversations of an update.", min=1)
    ] = _SFT.per_device_train_batch_size,
    validation: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|SHARE",
            help="Conversations to measure and not to train: a file, or a share of FILE such as 0.1 or 10%. The "
            "version has the weights with the least held-out loss.",
        ),
    ] = None,
    patience: Annotated[
        int,
        typer.Option(help="Measurements without a new least held-out loss that end the training; 0: none do.", min=0),
    ] = _SFT.patience or 0,
    max_seconds: Annotated[
        float | None, typer.Option(help="Seconds for training; the version is made of what was learnt by then.")
    ] = _SFT.max_seconds,
    detach_prefix: Annotated[
        bool,
        typer.Option(
            "--detach-prefix",
            help="Compute what the conversations of an update begin with, such as tools, without a backward pass: on "
            "CPUs updates then take less time.",
        ),
    ] = _SFT.detach_prefix,
    max_length: Annotated[int, typer.Option(help="Tokens; longer answers are skipped.", min=2)] = _SFT.max_length,
    seed: Annotated[int, typer.Option(help="Order of the rows.", min=0)] = _SFT.seed,
    train_on: Annotated[
        Literal["all", "last"], typer.Option(help="Imitate all answers of a conversation, or the last one.")
    ] = _SFT.train_on,
    as_json: JsonOption = False,
) -> None:
    """Start a policy warm: its next version imitates conversations, in OpenAI's fine-tuning format.

    Only what assistants said is learnt, tool calls included.

    Example: art-langgraph sft agent good.jsonl --validation 10% --max-seconds 300
    """
    if max_seconds is not None and max_seconds <= 0:
        raise ConfigError(f"--max-seconds {max_seconds:g} must be above 0")
    config = SFTConfig(
        lr=lr,
        num_train_epochs=epochs,
        per_device_train_batch_size=batch_size,
        detach_prefix=detach_prefix,
        max_length=max_length,
        seed=seed,
        train_on=train_on,
        patience=patience or None,
        max_seconds=max_seconds,
    )

    async def start() -> None:
        from art_langgraph.client.client import TrainerClient

        async with TrainerClient() as trainer:
            result = await trainer.sft(
                policy, file, config, validation=None if validation is None else _validation(validation)
            )
        metrics = result.metrics
        tell({"policy": policy, **result.model_dump(mode="json", exclude={"trajectories"})})
        skipped = {**metrics["turns_skipped"], **metrics["conversations_skipped"]}
        left_out = ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "nothing"
        if reason := metrics.get("skipped"):
            print(f"{policy} stays at version {result.version}: {reason}")
            raise typer.Exit(1)
        print(
            f"{policy}@{result.version} is served: {metrics['turns']} answers of {metrics['tokens_trained']} tokens, "
            f"loss {metrics['loss_first']:.3f} → {metrics['loss_last']:.3f}{_held_out(metrics)}; left out: {left_out}"
        )

    with only_json(as_json) as tell:
        asyncio.run(start())


def _validation(given: str) -> Path | float:
    """The value of --validation: a share, or else a file."""
    percent = given.removesuffix("%")
    try:
        return float(percent) / (100 if percent != given else 1)
    except ValueError:
        return Path(given)


def _held_out(metrics: Mapping[str, Any]) -> str:
    """How the held-out loss went, and what ended the training; empty without validation."""
    by = {"epochs": "all epochs", "patience": "no new least held-out loss", "max_seconds": "out of time"}
    ended = f"; ended after {metrics['updates']} updates: {by[metrics['stopped']]}"
    if not (losses := metrics["validation_losses"]):
        return ended
    kept = metrics["updates_kept"]
    return f", held-out loss {losses[0]:.3f} → {min(losses):.3f} (that of {kept} updates, which is kept){ended}"


def register(root: typer.Typer) -> None:
    """Adds these commands to `art-langgraph`."""
    root.command("train")(train_command)
    root.command("sft")(sft_command)
