"""Options of the command line that name a judge, and what `score --judge` and `train --judge` do with it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from art_langgraph.judge.ruler import RUBRIC, Ruler
from art_langgraph.llm.llm import LLM
from art_langgraph.rewards import score_group
from art_langgraph.store import TrajectoryStore
from art_langgraph.trajectory import Trajectory, TrajectoryGroup
from trainer_server.wire import ConfigError

JudgeOption = Annotated[
    str | None,
    typer.Option("--judge", help="Model that compares runs of a scenario: provider/name, or art/agent@3, art/base."),
]
UrlOption = Annotated[
    str | None,
    typer.Option("--judge-url", help="OpenAI-compatible endpoint of the judge; its key is read from ART_JUDGE_KEY."),
]
RubricOption = Annotated[
    str | None, typer.Option("--rubric", help="What is good: a text, or @FILE. Default: reaching the goal.")
]
VotesOption = Annotated[int, typer.Option("--votes", help="How often the judge is asked about each group.", min=1)]


def made_llm(model: str, url: str | None) -> LLM:
    """The model that the options name."""
    return LLM(model, base_url=url, api_key=os.environ.get("ART_JUDGE_KEY"))


def made_ruler(judge: str, url: str | None, rubric: str | None, votes: int) -> Ruler:
    """The judge that the options name. Raises ConfigError for a rubric that cannot be read."""
    return Ruler(made_llm(judge, url), rubric_text(rubric) or RUBRIC, votes=votes)


def rubric_text(rubric: str | None) -> str | None:
    """The text, or what is in the file that `@FILE` names. Raises ConfigError."""
    if rubric is None or not rubric.startswith("@"):
        return rubric
    try:
        return Path(rubric[1:]).read_text()
    except OSError as error:
        raise ConfigError(f"--rubric {rubric}: {error}") from None


async def judge_runs(store: TrajectoryStore, runs: Sequence[Trajectory], ruler: Ruler, source: str) -> list[Trajectory]:
    """Scores stored runs by scenario, keeps the scores, and tells what they cost and why some have none."""
    groups = TrajectoryGroup.by_scenario(list(runs))
    found: list[Trajectory] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("judged scenarios", total=len(groups))
        for judging in asyncio.as_completed([score_group(group, ruler) for group in groups]):
            group = await judging
            await asyncio.to_thread(store.score_group, group, source)
            found += group.trajectories
            bar.advance(task)
            if reason := next((one.reward_error for one in group.trajectories if one.reward_error), None):
                print(f"{group.scenario.id}: {reason}", file=sys.stderr)
    print(f"the judge: {ruler.usage}")
    return found
