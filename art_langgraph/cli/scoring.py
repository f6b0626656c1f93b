"""`art-langgraph feedback | score`: rewards for recorded runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from art_langgraph.cli.options import (
    JsonOption,
    JudgeFlags,
    RunArgument,
    RunFilter,
    StoreOption,
    find_trajectory,
    load_object,
    why_empty,
)
from art_langgraph.cli.printing.lists import only_json, print_json
from trainer_server.common.options import with_flags
from trainer_server.wire import ConfigError

if TYPE_CHECKING:
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
    from art_langgraph.store import TrajectoryStore

    target = TrajectoryStore(store)
    trajectory = find_trajectory(target, run)
    try:
        target.score(trajectory.id, value)
    except KeyError:
        raise ConfigError(
            f"{trajectory.id} has not ended, or was cut off: only a run that has ended takes a reward; give it then"
        ) from None
    if as_json:
        print_json({"id": trajectory.id, "reward": value})
    else:
        print(f"{trajectory.id}: reward {value:g}")


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

    A run that cannot be scored gets no reward, and is counted. A run that waits for the answer to an interrupt is left
    out: it has not ended.

    Example: art-langgraph score --reward my_agent:reward --since 1d
    """
    from art_langgraph.store import TrajectoryStore

    if (reward is None) == (judge_flags.judge is None):
        raise ConfigError("say either --reward module:function or --judge provider/name")
    chosen, target = run_filter.query(), TrajectoryStore(store)
    everything = target.list(**chosen)
    if not everything:
        print(why_empty(target, chosen), file=sys.stderr)
    ended = [trajectory for trajectory in everything if not trajectory.waiting]
    runs = [trajectory for trajectory in ended if again or not trajectory.scored]
    with only_json(as_json) as tell:
        if ruler := judge_flags.ruler():
            runs = asyncio.run(judge_runs(target, runs, ruler, str(judge_flags.judge)))
        elif reward is not None:
            asyncio.run(_score_runs(target, runs, load_object(reward), reward))
        scored = sum(trajectory.scored for trajectory in runs)
        kept, waiting = len(ended) - len(runs), len(everything) - len(ended)
        tell({"scored": scored, "failed": len(runs) - scored, "had_a_reward": kept, "waiting": waiting})
        print(f"{scored} scored, {len(runs) - scored} failed")
        if kept:
            print(f"{kept} runs had a reward already; --again scores them anew")
        if waiting:
            print(f"{waiting} runs are left out: they wait for the answer to an interrupt")


async def _score_runs(store: TrajectoryStore, runs: Sequence[Trajectory], reward: RewardFunction, source: str) -> None:
    from art_langgraph.rewards import score

    for trajectory in runs:
        await score(trajectory, reward)
        store.score_run(trajectory, source)
        if trajectory.reward_error:
            print(f"{trajectory.id}: {trajectory.reward_error}", file=sys.stderr)


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
    judged: list[Trajectory] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with progress_bar(*columns, shown=sys.stderr.isatty()) as bar:
        task = bar.add_task("judged scenarios", total=len(groups))
        for scoring in asyncio.as_completed([score_group(group, ruler) for group in groups]):
            group = await scoring
            await asyncio.to_thread(store.score_group, group, source)
            judged += group.trajectories
            bar.advance(task)
            if reason := next((run.reward_error for run in group.trajectories if run.reward_error), None):
                print(f"{group.scenario.id}: {reason}", file=sys.stderr)
    print(f"the judge: {ruler.usage}")
    return judged


def register(root: typer.Typer) -> None:
    """Adds these commands to `art-langgraph`."""
    root.command("feedback")(feedback_command)
    root.command("score")(score_command)
