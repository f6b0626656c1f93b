"""`art-langgraph specialize`. LangChain, litellm and the MCP SDK are imported when it runs: `--help` is fast."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art_langgraph.cli.options import AggregationOption, load_object, make_llm
from art_mcp.cli.options import (
    DestructiveOption,
    DifficultyOption,
    EnvOption,
    HeaderOption,
    InstructionsOption,
    ModelOption,
    ResetOption,
    ResourceOption,
    SeedOption,
    ServerArgument,
    UrlOption,
    WorldOption,
    headers_of,
    variables_of,
)
from trainer_server.wire import ConfigError, GRPOConfig, SFTConfig

if TYPE_CHECKING:
    from art_mcp.specialization.specialization import Specialization


def specialize_command(
    server: ServerArgument,
    policy: Annotated[str, typer.Option(help="Policy to train; created if it is missing.")] = "agent",
    scenarios: Annotated[
        str, typer.Option(metavar="N|FILE", help="Number to generate, or a JSONL file that `scenarios` wrote.")
    ] = "96",
    model: ModelOption = None,
    model_url: UrlOption = None,
    resource: ResourceOption = None,
    allow_destructive: DestructiveOption = False,
    instructions: InstructionsOption = None,
    difficulty: DifficultyOption = (1, 5),
    header: HeaderOption = None,
    env: EnvOption = None,
    world: WorldOption = None,
    reset: ResetOption = None,
    isolation: Annotated[
        str, typer.Option(help="`session`: a session for each run, for servers with a state.")
    ] = "shared",
    graph: Annotated[
        str | None, typer.Option(help="Your agent: module:function, which takes the tools. It asks ChatART(policy=…).")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="Model that compares runs, besides the verifier.")] = None,
    judge_url: Annotated[str | None, typer.Option(help="OpenAI-compatible endpoint of the judge.")] = None,
    warm_start: Annotated[
        str | None, typer.Option(help="SFT before GRPO, on `reference` or on a JSONL file of conversations.")
    ] = None,
    sft_lr: Annotated[float, typer.Option(help="Learning rate of the warm start.", min=0.0)] = 1e-3,
    sft_epochs: Annotated[int, typer.Option(help="Epochs of the warm start.", min=1)] = 3,
    steps: Annotated[int, typer.Option(help="GRPO steps.", min=0)] = 8,
    groups: Annotated[int, typer.Option(help="Scenarios per step.", min=1)] = 4,
    n: Annotated[int, typer.Option("--n", help="Runs of each scenario in a step.", min=2)] = 8,
    measure: Annotated[int, typer.Option(help="Runs of each scenario to measure its difficulty; 0: none.", min=0)] = 4,
    lr: Annotated[float, typer.Option(help="Learning rate of GRPO.", min=0.0)] = 2e-4,
    loss_aggregation: AggregationOption = "loss_type",
    evaluate_every: Annotated[
        int | None, typer.Option("--evaluate-every", help="Measure on held-out scenarios after so many steps.", min=1)
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many measurements without a gain beyond chance.", min=1)
    ] = None,
    keep_best: Annotated[
        bool, typer.Option("--keep-best", help="Promote and export the version with the highest held-out success.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(help="Maximum tokens of each answer.", min=1)] = 256,
    seed: SeedOption = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory of report, scenarios, adapter.")] = Path(
        "specialized"
    ),
) -> None:
    """Specialize a model to an MCP server: generate tasks, check that they can be done, train, show the difference.

    The trainer server must be running (`art-langgraph serve`). Without --model and --judge nothing leaves this machine.
    """
    if isolation not in ("shared", "session"):
        raise ConfigError(f"--isolation {isolation!r} is neither shared nor session")
    headers, variables = headers_of(header), variables_of(env)
    chosen = _number_or_file(scenarios)
    tell = _stage_printer()

    async def run() -> Specialization:
        from art_mcp.client.connect import connect
        from art_mcp.specialization.settings import GenerationSettings, RunSettings, TrainingSettings, WarmStart
        from art_mcp.specialization.specialize import specialize

        sft = SFTConfig(lr=sft_lr, num_train_epochs=sft_epochs, seed=seed)
        conversations = None if warm_start == "reference" else warm_start
        async with connect(
            server,
            env=variables,
            isolation="session" if isolation == "session" else "shared",
            headers=headers,
            worlds=world or None,
            reset=reset,
        ) as connected:
            return await specialize(
                connected,
                policy=policy,
                scenarios=chosen,
                graph=load_object(graph) if graph else None,
                generation=GenerationSettings(
                    model=make_llm(model, model_url) if model else None,
                    difficulty=difficulty,
                    instructions=instructions,
                    resources=resource,
                    allow_destructive=allow_destructive,
                ),
                warm_start=WarmStart(conversations=conversations, config=sft) if warm_start else None,
                training=TrainingSettings(
                    steps=steps,
                    groups_per_step=groups,
                    n=n,
                    config=GRPOConfig(lr=lr, loss_aggregation=loss_aggregation),
                    difficulty_runs=measure,
                    judge=make_llm(judge, judge_url) if judge else None,
                    evaluate_every=evaluate_every,
                    patience=patience,
                    keep_best=keep_best,
                ),
                runs=RunSettings(max_tokens=max_tokens),
                seed=seed,
                output=output,
                progress=sys.stderr.isatty(),
                on_stage=tell,
            )

    made = asyncio.run(run())
    print(made.dead_groups)
    print(f"held out, before: {made.before}")
    print(f"held out, after: {made.after}")
    print(f"use {made.model}; the report is {output / 'report.html'}")


def _stage_printer() -> Callable[[str], None]:
    """Returns a function that prints a line with the seconds since the start of the command."""
    from rich.console import Console

    console, started = Console(), time.monotonic()

    def tell(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:6.0f} s[/dim]  ", end="")
        console.print(text, markup=False, highlight=False)

    return tell


def _number_or_file(scenarios: str) -> int | Path:
    """The value of --scenarios. Raises ConfigError for a number below 1 and for a missing file."""
    if scenarios.removeprefix("-").isdigit():
        if (count := int(scenarios)) < 1:
            raise ConfigError(f"--scenarios {count}: at least one must be generated")
        return count
    if not Path(scenarios).is_file():
        raise ConfigError(
            f"--scenarios {scenarios!r} is neither a number nor a file; `art-langgraph scenarios` writes one"
        )
    return Path(scenarios)
