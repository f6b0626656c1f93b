"""Recorded runs: `art-langgraph feedback | score` give them rewards; and a training step from them."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art_langgraph.cli.options import (
    JsonOption,
    JudgeFlags,
    RunArgument,
    RunFilter,
    StoreOption,
    existing_store,
    find_trajectory,
    load_function,
    load_object,
    why_empty,
)
from art_langgraph.cli.printing import new_version, only_json, print_outcome
from trainer_server.common.extensions import find
from trainer_server.common.options import with_flags
from trainer_server.wire import ConfigError, GRPOConfig
from trainer_server.wire.text import quantity

if TYPE_CHECKING:
    from art_langgraph.client.client import TrainerClient
    from art_langgraph.credit import Comparison
    from art_langgraph.judge.ruler import Ruler
    from art_langgraph.rewards import RewardFunction
    from art_langgraph.store import TrajectoryStore
    from art_langgraph.trajectory import Trajectory


def feedback_command(
    run: RunArgument,
    value: Annotated[float, typer.Option("--score", help="The reward; larger is better.")],
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Give a recorded run a reward, in place of all rewards that it had.

    Example: art-langgraph feedback tr-4f2a --score 1
    """
    target = existing_store(store)
    trajectory = find_trajectory(target, run)
    try:
        target.score(trajectory.id, value)
    except KeyError:
        raise ConfigError(
            f"{trajectory.id} has not ended, or was cut off: only a run that has ended takes a reward; give it then"
        ) from None
    print_outcome({"id": trajectory.id, "reward": value}, f"{trajectory.id}: reward {value:g}", as_json)


@with_flags
def score_command(
    judge_flags: Annotated[JudgeFlags, None],
    run_filter: Annotated[RunFilter, None],
    reward: Annotated[str | None, typer.Option(help="Reward function, as module:function.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Also runs that have a reward.")] = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Score recorded runs with a reward function, or let a judge compare the runs of each scenario.

    A run that cannot be scored gets no reward, or keeps its earlier one, and is counted. A run that waits for the
    answer to an interrupt is left out: it has not ended. The exit status is 1 if there were runs and none could be
    scored.

    Example: art-langgraph score --reward my_agent:reward --since 1d
    """
    if (reward is None) == (judge_flags.judge is None):
        raise ConfigError("say either --reward module:function or --judge provider/name")
    query, target = run_filter.query(), existing_store(store)
    function: Any = load_function(reward) if reward else None
    everything = target.list(**query)
    if not everything:
        print(why_empty(target, query), file=sys.stderr)
    complete = [trajectory for trajectory in everything if not trajectory.waiting]
    runs = [trajectory for trajectory in complete if again or not trajectory.scored]
    with only_json(as_json) as notify:
        if ruler := judge_flags.ruler():
            runs = asyncio.run(judge_runs(target, runs, ruler, str(judge_flags.judge)))
        elif reward is not None:
            asyncio.run(_score_runs(target, runs, function, reward))
        count = sum(trajectory.scored for trajectory in runs)
        with_reward, waiting = len(complete) - len(runs), len(everything) - len(complete)
        notify({"scored": count, "failed": len(runs) - count, "had_a_reward": with_reward, "waiting": waiting})
        print(f"{count} scored, {len(runs) - count} failed")
        if with_reward:
            print(f"{with_reward} runs had a reward already; --again scores them anew")
        if waiting:
            print(f"{waiting} runs are left out: they wait for the answer to an interrupt")
    if runs and not count:
        raise typer.Exit(1)


async def _score_runs(store: TrajectoryStore, runs: Sequence[Trajectory], reward: RewardFunction, source: str) -> None:
    from art_langgraph.rewards import score

    for trajectory in runs:
        had_reward = trajectory.scored
        await score(trajectory, reward)
        keeps_reward = had_reward and not trajectory.scored
        if not keeps_reward:
            store.score_run(trajectory, source)
        if trajectory.reward_error:
            _print_failure(trajectory.id, trajectory.reward_error, keeps_reward)


def _print_failure(id: str, reason: str, keeps_reward: bool) -> None:
    print(f"{id}: {reason}{'; the earlier reward stays' if keeps_reward else ''}", file=sys.stderr)


async def judge_runs(store: TrajectoryStore, runs: Sequence[Trajectory], ruler: Ruler, source: str) -> list[Trajectory]:
    """Lets a judge score stored runs, scenario by scenario, and keeps the scores.

    Prints what the judge cost, and why a scenario could not be judged.

    Args:
        store: Where the scores are kept.
        runs: Runs to score. Runs of the same scenario are compared.
        ruler: The judge.
        source: Origin of the scores, for the store.

    Returns:
        Copies of the runs, with their scores.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

    from art_langgraph.progress import progress_bar
    from art_langgraph.rewards import score_group
    from art_langgraph.trajectory import TrajectoryGroup

    groups = TrajectoryGroup.by_scenario(list(runs))
    rewarded_ids = {run.id for run in runs if run.scored}
    result: list[Trajectory] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with progress_bar(*columns, shown=sys.stderr.isatty()) as bar:
        task = bar.add_task("judged scenarios", total=len(groups))
        for scoring in asyncio.as_completed([score_group(group, ruler) for group in groups]):
            group = await scoring
            changed = [run for run in group.trajectories if run.scored or run.id not in rewarded_ids]
            if changed:
                scores = group.model_copy(update={"trajectories": changed})
                await asyncio.to_thread(store.score_group, scores, source)
            result += group.trajectories
            bar.advance(task)
            if reason := next((run.reward_error for run in group.trajectories if run.reward_error), None):
                _print_failure(group.scenario.id, reason, len(changed) < len(group.trajectories))
    print(f"the judge: {ruler.usage}")
    return result


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A training step from recorded runs.

    Args:
        policy: The policy to train.
        store: Where the runs are, or where those of the ledger are marked as trained.
        config: Settings of the step.
        nodes: Patterns of the node paths to train; None: all.
        again: Whether runs that an earlier step was given are used again.
        notify: Prints a value as JSON, where JSON is asked for.
    """

    policy: str
    store: TrajectoryStore
    config: GRPOConfig
    nodes: list[str] | None
    again: bool
    notify: Callable[[Any], None]


async def from_rewarded_rollouts(step: RecordedStep, since: float | None) -> None:
    """A step from the rollouts of the trainer server that have a reward and were not trained on."""
    from art_langgraph.client.client import TrainerClient
    from art_langgraph.client.rollouts import read_rollouts
    from art_langgraph.trajectory import Scenario, Trajectory

    async with TrainerClient() as trainer:
        rollouts = [rollout async for rollout in trainer.rollouts(policy=step.policy, rewarded=True)]
        rollouts = [rollout for rollout in rollouts if since is None or rollout.created >= since]
        if not rollouts:
            print(
                f"no rollout in which {step.policy!r} answered has a reward: give rollouts one with POST "
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
            for rollout in rollouts
        ]
        fresh = {header.id for header in await find_unused_runs(trainer, step, headers)}
        runs = list(
            (await read_rollouts(trainer, [rollout.id for rollout in rollouts if rollout.id in fresh])).values()
        )
        earlier = [header for header in headers if header.id not in fresh]
        await train_once(trainer, step, runs, [*runs, *earlier])


async def find_unused_runs(trainer: TrainerClient, step: RecordedStep, runs: Sequence[Trajectory]) -> list[Trajectory]:
    """The runs that a step may take. Prints how many are left out, and why."""
    from art_langgraph.client.step_marks import settle

    policy, store = step.policy, step.store
    usable = [trajectory for trajectory in runs if not (trajectory.evaluation or trajectory.hints)]
    if evaluations := len(runs) - len(usable):
        print(
            f"{evaluations} of {len(runs)} runs are left out: they evaluate a version, or had hints, and are never "
            "trained on"
        )
    autopilots = find("art_langgraph.auto_pilot.state_store")
    autopilot_step = autopilots.StateStore(store, policy).step_of_a_running_autopilot() if autopilots else None
    if autopilot_step is not None:
        print(f"the autopilot of {policy} is running, and has a training step under way: its runs are in use")
    for job in await settle(trainer, store, policy, sending=autopilot_step):
        print(f"{job.id}, which was sent earlier, is still {job.status}: its runs are in use")
    if step.again:
        return usable
    used_ids = store.trained(policy)
    fresh = [trajectory for trajectory in usable if trajectory.id not in used_ids]
    if count := len(usable) - len(fresh):
        print(f"{count} of {len(usable)} runs are left out: {policy} was trained on them; --again uses them again")
    return fresh


async def replay_scenarios(
    store: TrajectoryStore, runs: Sequence[Trajectory], n: int, graph: str, reward: str | None, ruler: Ruler | None
) -> list[Trajectory]:
    """Runs the scenarios of recorded runs anew, `n` times each."""
    from art_langgraph.loop.rollout import gather

    whole_runs = [trajectory for trajectory in runs if trajectory.resumes is None]
    if count := len(runs) - len(whole_runs):
        print(f"{count} runs are left out: they resumed a thread whose first run is not in the store, or a checkpoint")
    scenarios = list({trajectory.scenario.id: trajectory.scenario for trajectory in whole_runs}.values())
    times = quantity(n, "time")
    print(f"replaying {quantity(len(scenarios), 'scenario')} {times}: their runs are compared with one another")
    groups = await gather(
        load_object(graph),
        scenarios,
        n,
        load_function(reward) if reward else None,
        group_reward=ruler,
        temperature=1.0,
        store=store,
    )
    return [trajectory for group in groups for trajectory in group.trajectories]


async def judge_unscored_runs(store: TrajectoryStore, runs: Sequence[Trajectory], ruler: Ruler) -> list[Trajectory]:
    """Lets the judge score the runs that have ended without a reward. Returns them, and the runs with a reward."""
    without_reward = [trajectory for trajectory in runs if not trajectory.scored and not trajectory.waiting]
    judgements = await judge_runs(store, without_reward, ruler, "ruler")
    return [*(trajectory for trajectory in runs if trajectory.scored), *judgements]


async def train_once(
    trainer: TrainerClient, step: RecordedStep, runs: Sequence[Trajectory], history: Sequence[Trajectory]
) -> None:
    """Compares runs, takes a training step on them, and records that they were used."""
    from art_langgraph.client.step_marks import StepMarks
    from art_langgraph.credit import compare
    from art_langgraph.loop.sampling.dead_groups import dead_groups
    from art_langgraph.trajectory import TrajectoryGroup

    policy, store, key = step.policy, step.store, uuid.uuid4().hex
    free_ids = store.begin_step(policy, key, [trajectory.id for trajectory in runs], again=step.again)
    if count := sum(trajectory.id not in free_ids for trajectory in runs):
        print(f"{count} of {len(runs)} runs are left out: another step of {policy} was given them meanwhile")
    runs = [trajectory for trajectory in runs if trajectory.id in free_ids]
    comparison = compare(runs, policy, history=history, nodes=step.nodes)
    _print_comparison(comparison)
    if not comparison.groups:
        store.end_step(policy, key, None)
        print("nothing to train on")
        raise typer.Exit(1)
    async with StepMarks(store, policy, key, comparison.trained_runs) as marks:
        job = await trainer.submit(policy, comparison.groups, step.config, idempotency_key=key)
        print(f"{job.id} is accepted: a training step of {policy}")
        marks.result = result = await trainer.result(job)
    metrics = result.metrics
    step.notify({"policy": policy, **result.model_dump(mode="json", exclude={"trajectories"})})
    several = [group for group in TrajectoryGroup.by_scenario(comparison.trained_runs) if len(group.trajectories) > 1]
    if several and (report := dead_groups(several)).scenarios:
        print(report)
    if reason := metrics.get("skipped"):
        print(f"{policy} stays at version {result.version}: {reason}; the runs can be used again")
        raise typer.Exit(1)
    drift = metrics.get("prefix_drift")
    head = new_version(await trainer.policy(policy), result.version)
    print(
        f"{head}: {quantity(metrics['completions'], 'completion')}, "
        f"mean reward {metrics['reward_mean']:.3f}" + ("" if drift is None else f", prefix drift {drift:.1%}")
    )


def _print_comparison(comparison: Comparison) -> None:
    print(
        f"{comparison.grouped_count} runs are compared with others of their scenario, {comparison.single} with a "
        f"running baseline; left out: {comparison.unscored_count} without a reward, {comparison.no_baseline} with "
        f"nothing to compare with, {comparison.no_completions} without a completion to train"
    )
    if comparison.mixed_scenarios:
        print(
            f"{comparison.mixed_scenarios} scenarios have scores of a judge's comparison beside other rewards: these "
            "are not compared with one another; `art-langgraph score --again` scores all runs in one way"
        )
