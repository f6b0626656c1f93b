"""`art-langgraph specialize` and `art-langgraph scenarios`."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from art_langgraph.cli.judge import made_llm
from art_langgraph.cli.trajectories import imported
from art_mcp.client.connect import connect
from art_mcp.scenarios.generate import generate_scenarios
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.specialization.specialize import Specialization, specialize
from trainer_server.wire import ConfigError, GRPOConfig, SFTConfig

ServerArgument = Annotated[str, typer.Argument(metavar="SERVER", help="The MCP server: a command, or an http(s) URL.")]
CountOption = Annotated[int, typer.Option("-n", help="Scenarios to invent, the held-out ones included.", min=1)]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="Model that writes scenarios (provider/name). Default: made from schemas alone."),
]
UrlOption = Annotated[
    str | None,
    typer.Option("--model-url", help="OpenAI-compatible endpoint of it; its key: ART_JUDGE_KEY."),
]
ResourceOption = Annotated[
    list[Path] | None,
    typer.Option("--resource", help="Values for arguments: PARAMETER.txt or PARAMETER=FILE, one a line; or JSON."),
]
DestructiveOption = Annotated[
    bool, typer.Option("--allow-destructive", help="Also call tools that may destroy something.")
]
InstructionsOption = Annotated[str | None, typer.Option(help="What the writer of scenarios should heed.")]
DifficultyOption = Annotated[tuple[int, int], typer.Option(help="Least and greatest difficulty, 1 to 5.")]
HeaderOption = Annotated[list[str] | None, typer.Option("--header", help="For a URL, as 'Name: value'; repeatable.")]
SeedOption = Annotated[int, typer.Option(help="Of scenarios, their split and orders.")]


def scenarios_command(
    server: ServerArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="JSONL file to write.")] = Path("scenarios.jsonl"),
    n: CountOption = 24,
    model: ModelOption = None,
    model_url: UrlOption = None,
    resource: ResourceOption = None,
    allow_destructive: DestructiveOption = False,
    instructions: InstructionsOption = None,
    difficulty: DifficultyOption = (1, 5),
    header: HeaderOption = None,
    seed: SeedOption = 0,
) -> None:
    """Invent tasks for an MCP server, do each of them once, and write those that work as JSONL, to read and edit."""

    async def run() -> ScenarioSet:
        async with connect(server, headers=_headers(header)) as live:
            return await generate_scenarios(
                live, n, model=made_llm(model, model_url) if model else None, difficulty=difficulty, seed=seed,
                instructions=instructions, resources=resource, allow_destructive=allow_destructive,
                progress=sys.stderr.isatty(),
            )  # fmt: skip

    found = asyncio.run(run())
    found.save(output)
    print(found.report())
    print(f"written to {output}")
    if not len(found):
        raise typer.Exit(1)


def specialize_command(
    server: ServerArgument,
    policy: Annotated[str, typer.Option(help="Policy to train; made if it is missing.")] = "agent",
    scenarios: Annotated[Path | None, typer.Option(help="JSONL of `scenarios`, instead of inventing any.")] = None,
    n: CountOption = 96,
    model: ModelOption = None,
    model_url: UrlOption = None,
    resource: ResourceOption = None,
    allow_destructive: DestructiveOption = False,
    instructions: InstructionsOption = None,
    difficulty: DifficultyOption = (1, 5),
    header: HeaderOption = None,
    isolation: Annotated[str, typer.Option(help="`session`: one for each run, for servers with a state.")] = "shared",
    graph: Annotated[
        str | None, typer.Option(help="Your agent, as module:function of the tools; it asks ChatART(policy=…).")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="Model that compares runs, besides the verifier.")] = None,
    judge_url: Annotated[str | None, typer.Option(help="OpenAI-compatible endpoint of the judge.")] = None,
    warm_start: Annotated[
        str | None, typer.Option(help="Imitate first: `reference`, or a JSONL file of conversations.")
    ] = None,
    sft_lr: Annotated[float, typer.Option(help="Learning rate of the warm start.", min=0.0)] = 1e-3,
    sft_epochs: Annotated[int, typer.Option(help="Passes of the warm start.", min=1)] = 3,
    steps: Annotated[int, typer.Option(help="GRPO steps.", min=0)] = 8,
    groups: Annotated[int, typer.Option(help="Scenarios per step.", min=1)] = 4,
    rollouts: Annotated[int, typer.Option(help="Runs of each scenario in a step.", min=2)] = 8,
    measure: Annotated[int, typer.Option(help="Runs of each scenario that tell how hard it is; 0: none.", min=0)] = 4,
    lr: Annotated[float, typer.Option(help="Learning rate of GRPO.", min=0.0)] = 2e-4,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.", min=1)] = 256,
    seed: SeedOption = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory of report, scenarios, adapter.")] = Path(
        "specialized"
    ),
) -> None:
    """Specialize a model to an MCP server: invent tasks, check that they can be done, train, show the difference.

    The trainer server must be running (`art-langgraph serve`). Without --model and --judge nothing leaves this machine.
    """
    if isolation not in ("shared", "session"):
        raise ConfigError(f"--isolation {isolation!r} is neither shared nor session")
    console = Console()
    started = time.monotonic()

    def tell(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - started:6.0f} s[/dim]  ", end="")
        console.print(text, markup=False, highlight=False)

    async def run() -> Specialization:
        return await specialize(
            server, policy=policy, scenarios=scenarios, n=n, model=made_llm(model, model_url) if model else None,
            difficulty=difficulty, instructions=instructions, resources=resource, allow_destructive=allow_destructive,
            graph=imported(graph) if graph else None, judge=made_llm(judge, judge_url) if judge else None,
            warm_start=warm_start, sft=SFTConfig(lr=sft_lr, num_train_epochs=sft_epochs, seed=seed), steps=steps,
            groups_per_step=groups, rollouts=rollouts, measure=measure, config=GRPOConfig(lr=lr), seed=seed,
            max_tokens=max_tokens, isolation="session" if isolation == "session" else "shared",
            headers=_headers(header), output=output, progress=sys.stderr.isatty(), on_stage=tell,
        )  # fmt: skip

    made = asyncio.run(run())
    console.print(f"held-out success: {made.before} → {made.after}", highlight=False)
    console.print(f"use {made.model}; the report is {output / 'report.html'}", highlight=False)


def register(root: typer.Typer) -> None:
    """Adds these commands to `art-langgraph`."""
    root.command("scenarios")(scenarios_command)
    root.command("specialize")(specialize_command)


def _headers(given: list[str] | None) -> dict[str, str] | None:
    """Raises ConfigError for what is no header; its value is not repeated: it may be a secret."""
    found = {}
    for one in given or ():
        name, colon, value = one.partition(":")
        if not colon or not name.strip():
            raise ConfigError("--header takes 'Name: value'")
        found[name.strip()] = value.strip()
    return found or None
