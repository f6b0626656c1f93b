"""`art-langgraph autorl`: from a description of a task to a better policy."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from art_langgraph.autorl.autorl import AutoRLReport, autorl
from art_langgraph.cli.judge import RubricOption, UrlOption, VotesOption, made_llm, rubric_text
from art_langgraph.cli.trajectories import imported
from art_langgraph.client.client import TrainerClient
from art_langgraph.datasets import load_scenarios, save_scenarios
from trainer_server.wire import GRPOConfig


def autorl_command(
    task: Annotated[str, typer.Argument(help="What the agent is for, in plain words.")],
    graph: Annotated[str, typer.Option(help="The graph, as module:graph; it asks ChatART(policy=…).")],
    judge: Annotated[str, typer.Option(help="Model that invents inputs and judges runs: provider/name, art/agent@3.")],
    policy: Annotated[str, typer.Option(help="Policy to train; made if it is missing.")] = "agent",
    judge_url: UrlOption = None,
    rubric: RubricOption = None,
    votes: VotesOption = 1,
    inputs: Annotated[int, typer.Option(help="Inputs to invent; a quarter is held out.", min=2)] = 32,
    scenarios: Annotated[Path | None, typer.Option(help="JSONL of inputs to take instead of inventing any.")] = None,
    examples: Annotated[Path | None, typer.Option(help="JSONL of inputs to invent more of.")] = None,
    instructions: Annotated[str | None, typer.Option(help="What else the writer of inputs should heed.")] = None,
    steps: Annotated[int, typer.Option(help="Training steps.", min=1)] = 8,
    groups: Annotated[int, typer.Option(help="Inputs per step.", min=1)] = 4,
    n: Annotated[int, typer.Option("-n", help="Runs of each input in a step, compared with one another.", min=2)] = 8,
    lr: Annotated[float, typer.Option(help="Learning rate.", min=0.0)] = 1e-4,
    seed: Annotated[int, typer.Option(help="Of inputs, their split, and orders.")] = 0,
    output: Annotated[Path, typer.Option(help="Directory for report.md and the inputs as JSONL.")] = Path("autorl"),
) -> None:
    """Train a policy from a description of its task: invent inputs, let a judge compare runs, train, compare versions.

    The trainer server must be running (`art-langgraph serve`).
    """

    async def run() -> AutoRLReport:
        async with TrainerClient() as client:
            return await autorl(
                task, graph=imported(graph), policy=policy, judge=made_llm(judge, judge_url), client=client,
                rubric=rubric_text(rubric), votes=votes, inputs=inputs,
                scenarios=load_scenarios(scenarios) if scenarios else None,
                examples=load_scenarios(examples) if examples else (), instructions=instructions, steps=steps,
                groups_per_step=groups, n=n, config=GRPOConfig(lr=lr), seed=seed, progress=sys.stderr.isatty(),
                on_stage=print,
            )  # fmt: skip

    report = asyncio.run(run())
    output.mkdir(parents=True, exist_ok=True)
    save_scenarios(output / "training.jsonl", report.training)
    save_scenarios(output / "held_out.jsonl", report.held_out)
    (output / "report.md").write_text(report.markdown())
    print(report.comparison)
    print(f"use {report.adapter}; the report is {output / 'report.md'}")


def register(root: typer.Typer) -> None:
    """Adds this command to `art-langgraph`."""
    root.command("autorl")(autorl_command)
