"""`art-langgraph autorl`: from a description of a task to a better policy."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art_langgraph.auto_rl.options import AutoRLPlainOptions
from art_langgraph.cli.options import (
    JsonOption,
    JudgeFlags,
    StepFlags,
    load_object,
    make_llm,
    rubric_text,
)
from art_langgraph.cli.printing import only_json
from art_langgraph.loop.options import values_of
from trainer_server.common.home import write_private
from trainer_server.common.options import with_flags
from trainer_server.wire import ConfigError

if TYPE_CHECKING:
    from art_langgraph.auto_rl.autorl import AutoRLReport


@dataclass(frozen=True, kw_only=True)
class AutoRLFlags(AutoRLPlainOptions, JudgeFlags):
    """`autorl` on the command line: its options, and what is written there in another form than in Python.

    Args:
        graph: The graph, as module:graph; it asks ChatART(policy=…).
        judge: Model that invents scenarios and judges runs: openai/gpt-4o-mini, art/agent@3.
        policy: Policy to train; made if it is missing.
        scenarios: How many scenarios to invent, or a JSONL file of your own. A quarter is held out.
        examples: JSONL of scenarios to invent more of.
        output: Directory for report.md and the scenarios as JSONL.
    """

    graph: str
    judge: str = field()
    policy: str = "agent"
    scenarios: str = "32"
    examples: Path | None = None
    output: Path = Path("autorl")


@with_flags
def autorl_command(
    task: Annotated[str, typer.Argument(help="What the agent is for, in plain words.")],
    flags: Annotated[AutoRLFlags, None],
    step: Annotated[StepFlags, None],
    as_json: JsonOption = False,
) -> None:
    """Train a policy from a description of its task: invent scenarios, judge runs, train, compare versions.

    The trainer server must be running (`art-langgraph serve`).

    Example: art-langgraph autorl "Answers questions about trains" --graph my_agent:graph --judge openai/gpt-4o-mini
    """
    from art_langgraph.datasets import save_scenarios

    if flags.scenarios.isdigit() and int(flags.scenarios) < 2:
        raise ConfigError(f"--scenarios {flags.scenarios}: at least 2 are needed, one to train on and one held out")
    with only_json(as_json) as notify:
        report, output = asyncio.run(_train(task, flags, step)), flags.output
        output.mkdir(parents=True, exist_ok=True)
        save_scenarios(output / "training.jsonl", report.training)
        save_scenarios(output / "held_out.jsonl", report.held_out)
        write_private(output / "report.md", report.markdown())
        print(report.dead_groups)
        print(report.comparison)
        print(f"use {report.model}; the report is {output / 'report.md'}")
        notify(
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


async def _train(task: str, flags: AutoRLFlags, step: StepFlags) -> AutoRLReport:
    from art_langgraph.auto_rl.autorl import autorl
    from art_langgraph.client.client import TrainerClient
    from art_langgraph.datasets import load_scenarios

    count = flags.scenarios
    scenarios = int(count) if count.isdigit() else load_scenarios(count)
    examples, rubric = load_scenarios(flags.examples) if flags.examples else (), rubric_text(flags.rubric)
    async with TrainerClient() as client:
        return await autorl(
            task,
            graph=load_object(flags.graph),
            policy=flags.policy,
            judge=make_llm(flags.judge, flags.judge_url),
            client=client,
            rubric=rubric,
            votes=flags.votes,
            scenarios=scenarios,
            examples=examples,
            config=step.config(),
            progress=sys.stderr.isatty(),
            on_stage=lambda stage: print(stage),  # the `print` of the moment: with --json, to the standard error
            **values_of(flags, AutoRLPlainOptions),
        )


def register(app: typer.Typer) -> None:
    """Adds this command to `art-langgraph`."""
    app.command("autorl")(autorl_command)
