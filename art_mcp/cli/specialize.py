"""`art-langgraph specialize`. LangChain, litellm and the MCP SDK are imported when it runs: `--help` is fast."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from art_langgraph.cli.options import JsonOption, StepFlags, load_object, make_llm, with_flags
from art_langgraph.cli.printing import print_json
from art_mcp.cli.options import (
    DestructiveOption,
    DifficultyOption,
    EnvOption,
    HeaderOption,
    InstructionsOption,
    ModelOption,
    ParaphraseOption,
    ResetOption,
    ResourceOption,
    SeedOption,
    ServerArgument,
    UrlOption,
    WorldOption,
    headers_of,
    variables_of,
)
from trainer_server.wire import ARTError, ConfigError

if TYPE_CHECKING:
    from art_mcp.specialization.settings import WarmStart
    from art_mcp.specialization.specialization import Specialization


@dataclass(frozen=True, kw_only=True)
class GRPOFlags(StepFlags):
    """A step of GRPO, with the defaults of `TrainingSettings`.

    Args:
        lr: Learning rate of the GRPO steps.
    """

    lr: float = field(default=3e-4, metadata={"min": 0.0})
    loss_aggregation: Literal["loss_type", "trajectory"] = "trajectory"


@with_flags
def specialize_command(
    server: ServerArgument,
    step: Annotated[GRPOFlags, None],
    policy: Annotated[str, typer.Option(help="Policy to train; created if it is missing.")] = "agent",
    minutes: Annotated[
        float,
        typer.Option(help="Time for everything, divided among the stages. 0: no limit, fixed numbers."),
    ] = 20.0,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory of report, scenarios, adapter.")] = Path(
        "specialized"
    ),
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --output that was killed, with the same options.")
    ] = False,
    scenarios: Annotated[
        str | None,
        typer.Option(
            metavar="N|FILE",
            help="Most scenarios to generate, or a JSONL file that `scenarios` wrote. Default: as many as time allows.",
        ),
    ] = None,
    model: ModelOption = None,
    model_url: UrlOption = None,
    paraphrase: ParaphraseOption = None,
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
        str,
        typer.Option(
            help="SFT before GRPO: on `reference`, on a JSONL file of conversations, or `none`. `auto`: `reference`, "
            "and `none` with --graph."
        ),
    ] = "auto",
    sft_lr: Annotated[float | None, typer.Option(help="Learning rate of the warm start.", min=0.0)] = None,
    sft_epochs: Annotated[int | None, typer.Option(help="Most epochs of the warm start.", min=1)] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Most GRPO steps. Default: as many as time allows, if 12 or more; without a limit 8.", min=0),
    ] = None,
    groups: Annotated[int, typer.Option(help="Scenarios per step.", min=1)] = 12,
    n: Annotated[int, typer.Option("--n", help="Runs of each scenario in a step.", min=2)] = 4,
    measure: Annotated[
        int, typer.Option(help="Runs of each scenario to measure its difficulty first; 0: steps find out.", min=0)
    ] = 0,
    evaluate_every: Annotated[
        int | None,
        typer.Option("--evaluate-every", help="Measure on the selection scenarios after so many steps.", min=1),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help="Stop after so many of these measurements without a gain beyond chance. Alone it measures after each "
            "step.",
            min=1,
        ),
    ] = None,
    keep_best: Annotated[
        bool,
        typer.Option(help="Take an earlier version if it is better than the last one on the selection scenarios."),
    ] = True,
    rank: Annotated[int | None, typer.Option(help="Rank of the LoRA, if the policy is created.", min=1)] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Maximum tokens of each answer. Default: as the longest reference.", min=1),
    ] = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Specialize a model to an MCP server: generate tasks, check that they can be done, train, show the difference.

    The trainer server must be running (`art-langgraph serve`). Without --model, --paraphrase and --judge nothing leaves
    this machine.
    """
    if isolation not in ("shared", "session"):
        raise ConfigError(f"--isolation {isolation!r} is neither shared nor session")
    if minutes < 0:
        raise ConfigError(f"--minutes {minutes:g} must be above 0, or 0 for no limit")
    headers, variables = headers_of(header), variables_of(env)
    chosen = _number_or_file(scenarios) if scenarios is not None else None
    tell = _stage_printer(stderr=as_json)

    async def run() -> Specialization:
        from art_mcp.client.connect import connect
        from art_mcp.specialization.settings import GenerationSettings, RunSettings, TrainingSettings
        from art_mcp.specialization.specialize import specialize

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
                minutes=minutes or None,
                scenarios=chosen,
                graph=load_object(graph) if graph else None,
                generation=GenerationSettings(
                    model=make_llm(model, model_url) if model else None,
                    paraphrase=make_llm(paraphrase, model_url) if paraphrase else None,
                    difficulty=difficulty,
                    instructions=instructions,
                    resources=resource,
                    allow_destructive=allow_destructive,
                ),
                warm_start=_warm_start(warm_start, sft_lr, sft_epochs, own_agent=graph is not None),
                training=TrainingSettings(
                    steps=steps,
                    groups_per_step=groups,
                    n=n,
                    lr=step.lr,
                    loss_aggregation=step.loss_aggregation,
                    difficulty_runs=measure,
                    judge=make_llm(judge, judge_url) if judge else None,
                    evaluate_every=evaluate_every,
                    patience=patience,
                    keep_best=keep_best,
                ),
                runs=RunSettings(max_tokens=max_tokens, rank=rank),
                seed=seed,
                output=output,
                resume=resume,
                progress=sys.stderr.isatty(),
                on_stage=tell,
            )

    try:
        made = asyncio.run(run())
    except ConfigError:
        raise
    except (ARTError, KeyboardInterrupt):
        if (output / "progress.jsonl").exists():
            print(f"what was done until now is in {output}; the same command with --resume goes on", file=sys.stderr)
        raise
    if as_json:
        dead = made.dead_groups.summary() if made.groups else None
        print_json({**made.summary(), "dead_groups": dead, "report": str(output / "report.html")})
        return
    if made.groups:
        print(made.dead_groups)
    for stage, measured in made.measurements.items():
        print(f"held out, {stage}: {measured}")
    if made.gain is not None:
        print(f"gain of reinforcement learning: {made.gain}")
    elif not made.steps and made.warm_start is not None:
        print("no step of reinforcement learning was taken")
    elif not made.steps:
        print("nothing was trained: if stages were left out for lack of time, give more --minutes")
    print(f"use {made.model}; the report is {output / 'report.html'}")


def _warm_start(option: str, lr: float | None, epochs: int | None, *, own_agent: bool) -> WarmStart | None:
    """The warm start that the options ask for. None: none."""
    from art_mcp.specialization.settings import WarmStart

    if option == "none" or (option == "auto" and own_agent):
        if lr is not None or epochs is not None:
            raise ConfigError("--sft-lr and --sft-epochs are for a warm start: give --warm-start reference or a file")
        return None
    return WarmStart(conversations=None if option in ("auto", "reference") else option, lr=lr or None, epochs=epochs)


def _stage_printer(*, stderr: bool) -> Callable[[str], None]:
    """Returns a function that prints a line with the seconds since the start of the command."""
    from rich.console import Console

    console, started = Console(stderr=stderr), time.monotonic()

    def print_stage(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:6.0f} s[/dim]  ", end="")
        console.print(text, markup=False, highlight=False)

    return print_stage


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
