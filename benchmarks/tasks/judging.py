"""Does RULER rank runs as a hand-written reward does, and what does a policy learn from each?

    python -m benchmarks.tasks.judging [--json] [--seed 0] [--scenarios 16] [--steps 24]

A policy is warmed up on the task `reverse_text` (benchmarks/tasks) and runs each of the scenarios eight times. A judge
scores each group of runs over HTTP, by rules that are written here; it does not know the task's reward. Then one copy
of the policy is trained by the hand-written reward and one by the judge, and both are measured on held-out scenarios
by the hand-written reward. The last line under --json is one JSON object: `spearman` is the mean rank correlation of
judge and reward within the groups, `groups` how many groups have differing rewards, `trained` the held-out success by
source of the reward.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from art_examples.learning.judged import judge_of_rules, last_said
from art_examples.learning.learn import SERVER_ARGUMENTS, Learning
from art_examples.learning.runs import tell
from art_examples.quickstart.server_process import trainer_server
from rich.console import Console
from rich.table import Table

from art_langgraph import Evaluation, Ruler, TrainerClient, TrajectoryGroup
from benchmarks.tasks.reverse_text import reverse_text
from trainer_server.common import Connection

RUNS = 8
"""Runs of each scenario."""


def grade(task: str, answer: str) -> float:
    """The judge's rules, from 0 to 1, for the task to reverse letters.

    A third each: as many letters as the task has; the first letter is the task's last; the share of places that have
    the right letter.
    """
    letters, given = task.split(), answer.split()
    places = [a == b for a, b in zip(reversed(letters), given, strict=False)]
    first = bool(places) and places[0]
    return (float(len(given) == len(letters)) + float(first) + sum(places) / max(len(letters), len(given), 1)) / 3


def grade_of(begun: str, went_on: str) -> float:
    """The grade of a run by its transcript."""
    return grade(last_said(begun), last_said(went_on))


def spearman(groups: list[TrajectoryGroup], judged: list[TrajectoryGroup]) -> list[float]:
    """Rank correlation of rewards and the judge's scores in each group whose rewards, and whose scores, differ."""
    found = []
    for group, scored in zip(groups, judged, strict=True):
        rewards, scores = (pd.Series(one.rewards, dtype=float) for one in (group, scored))
        if rewards.notna().all() and scores.notna().all() and rewards.nunique() > 1 and scores.nunique() > 1:
            found.append(float(rewards.rank().corr(scores.rank())))
    return found


async def run(server: Connection, seed: int, scenarios: int, steps: int) -> dict[str, Any]:
    """Runs the benchmark and returns its result."""
    async with (
        TrainerClient(server.url, server.api_key) as client,
        reverse_text(seed) as task,
        judge_of_rules(grade_of) as judge,
    ):
        ruler = Ruler(judge)
        task = replace(task, recipe=replace(task.recipe, steps=steps))
        warmed = Learning(task, seed, client, "warm", tell)
        await warmed.create()
        await warmed.warm_start()
        warm = await warmed.measure("warm")
        groups = await warmed.gather(task.training[:scenarios], RUNS)
        judged = [await ruler.score(group) for group in groups]
        ranks = spearman(groups, judged)
        tell(f"rank correlation in {len(ranks)} of {len(groups)} groups: {fmean(ranks) if ranks else None}")
        version = (await client.policy("warm")).latest
        trained: dict[str, Evaluation] = {"warm start": warm}
        for source, by in (("reward", None), ("judge", ruler)):
            await client.fork("warm", version, f"by-{source}", optimizer=False)
            learning = Learning(task, seed, client, f"by-{source}", tell)
            await learning.train(group_reward=by)
            trained[source] = await learning.measure("after")
        return {
            "benchmark": "judging",
            "seed": seed,
            "spearman": fmean(ranks) if ranks else None,
            "spearman_by_group": ranks,
            "groups": len(ranks),
            "groups_in_all": len(groups),
            "judged": ruler.usage.calls,
            "trained": {
                source: {"success": made.success_rate, "interval": list(made.success_interval), "n": made.n}
                for source, made in trained.items()
            },
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scenarios", type=int, default=16, help=f"scenarios to rank {RUNS} runs of (16)")
    parser.add_argument("--steps", type=int, default=24, help="training steps by each source of rewards (24)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        with trainer_server(home, home / "server.log", tell, *SERVER_ARGUMENTS) as server:
            result = asyncio.run(run(server, options.seed, options.scenarios, options.steps))
    table = Table("policy", "held-out success (95 %)")
    for source, measured in result["trained"].items():
        low, high = measured["interval"]
        table.add_row(source, f"{measured['success']:.3f} ({low:.3f} - {high:.3f})")
    console = Console(stderr=options.json)
    console.print(f"rank correlation of judge and reward: {result['spearman']} in {result['groups']} groups")
    console.print(table)
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
