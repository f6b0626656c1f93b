"""`art-langgraph autorl`: from a description of a task to a better policy."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art_langgraph.cli.options import (
    JsonOption,
    JudgeFlags,
    StepFlags,
    load_object,
    make_llm,
    rubric_text,
    with_flags,
)
from art_langgraph.cli.printing import only_json
from trainer_server.common.home import write_private
from trainer_server.wire import ConfigError

if TYPE_CHECKING:
    from art_langgraph.auto_rl.autorl import AutoRLReport


@dataclass(frozen=True, kw_only=True)
class AutoRLJudgeFlags(JudgeFlags):
    """The judge, which is needed.

    Args:
        judge: Model that invents scenarios and judges runs: openai/gpt-4o-mini, art/agent@3.
    """

    judge: str = field()


@with_flags
def autorl_command(
    task: Annotated[str, typer.Argument(help="What the agent is for, in plain words.")],
    graph: Annotated[str, typer.Option(help="The graph, as module:graph; it asks ChatART(policy=…).")],
    judge_flags: Annotated[AutoRLJudgeFlags, None],
    step: Annotated[StepFlags, None],
    policy: Annotated[str, typer.Option(help="Policy to train; made if it is missing.")] = "agent",
    scenarios: Annotated[
        str, typer.Option(help="How many scenarios to invent, or a JSONL file of your own. A quarter is held out.")
    ] = "32",
    examples: Annotated[Path | None, typer.Option(help="JSONL of scenarios to invent more of.")] = None,
    instructions: Annotated[str | None, typer.Option(help="Further instructions to the writer of scenarios.")] = None,
    steps: Annotated[int, typer.Option(help="Training steps.", min=1)] = 8,
    groups: Annotated[int, typer.Option(help="Scenarios per step.", min=1)] = 4,
    n: Annotated[int, typer.Option("--n", "-n", help="Runs per scenario, compared with each other.", min=2)] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the scenarios, their split and their order.")] = 0,
    output: Annotated[Path, typer.Option(help="Directory for report.md and the scenarios as JSONL.")] = Path("autorl"),
    as_json: JsonOption = False,
) -> None:
    """Train a policy from a description of its task: invent scenarios, judge runs, train, compare versions.

    The trainer server must be running (`art-langgraph serve`).

    Example: art-langgraph autorl "Answers questions about trains" --graph my_agent:graph --judge openai/gpt-4o-mini
    """
    from art_langgraph.datasets import load_scenarios, save_scenarios

    if scenarios.isdigit() and int(scenarios) < 2:
        raise ConfigError(f"--scenarios {scenarios}: at least 2 are needed, one to train on and one held out")

    async def run() -> AutoRLReport:
        from art_langgraph.auto_rl.autorl import autorl
        from art_langgraph.client.client import TrainerClient

        async with TrainerClient() as client:
            return await autorl(
                task,
                graph=load_object(graph),
                policy=policy,
                judge=make_llm(judge_flags.judge, judge_flags.judge_url),
                client=client,
                rubric=rubric_text(judge_flags.rubric),
                votes=judge_flags.votes,
                scenarios=int(scenarios) if scenarios.isdigit() else load_scenarios(scenarios),
                examples=load_scenarios(examples) if examples else (),
                instructions=instructions,
                steps=steps,
                groups_per_step=groups,
                n=n,
                config=step.config(),
                seed=seed,
                progress=sys.stderr.isatty(),
                on_stage=lambda stage: print(stage),  # the `print` of the moment: with --json, to the standard error
            )

    with only_json(as_json) as tell:
        report = asyncio.run(run())
        output.mkdir(parents=True, exist_ok=True)
        save_scenarios(output / "training.jsonl", report.training)
        save_scenarios(output / "held_out.jsonl", report.held_out)
        write_private(output / "report.md", report.markdown())
        print(report.dead_groups)
        print(report.comparison)
        print(f"use {report.model}; the report is {output / 'report.md'}")
        tell(
            {
                "model": report.model,
                "comparison": str(report.comparison),
                "steps": [record.summary() for record in report.steps],
                "dead_groups": report.dead_groups.summary(),
                "seconds": report.seconds,
                "cost": report.cost,
                "notes": report.notes,
                "report": str(output / "report.md"),
            }
        )
