"""`art-langgraph scenarios`. LangChain, litellm and the MCP SDK are imported when it runs, so that `--help` is fast."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art_langgraph.cli.options import JsonOption, make_llm
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
from trainer_server.common.jsonl import append_jsonl
from trainer_server.wire import ConfigError

if TYPE_CHECKING:
    from art_mcp.scenarios.plan import MCPScenario


def scenarios_command(
    server: ServerArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="JSONL file to write.")] = Path("scenarios.jsonl"),
    n: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--n",
            help="Scenarios to generate, held-out ones included. Default: as many as there is time for.",
            min=1,
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time for the whole generation.", min=1.0)] = 120.0,
    model: ModelOption = None,
    model_url: UrlOption = None,
    paraphrase: ParaphraseOption = None,
    held_out: Annotated[
        float,
        typer.Option(help="Share to hold out from training, a third of it for each held-out set.", min=0.0, max=0.9),
    ] = 0.25,
    resource: ResourceOption = None,
    allow_destructive: DestructiveOption = False,
    instructions: InstructionsOption = None,
    difficulty: DifficultyOption = (1, 5),
    header: HeaderOption = None,
    env: EnvOption = None,
    world: WorldOption = None,
    reset: ResetOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Generate tasks for an MCP server, do each of them twice, and write those that work as JSONL, to read and edit.

    Each task is written when it is kept: if this is interrupted or killed, the file has what there is by then.
    """
    from art_mcp.scenarios.scenario_set import ScenarioSet

    headers, variables = headers_of(header), variables_of(env)
    if output.exists():
        raise ConfigError(f"{output} exists, and would be overwritten: name another file with --output, or delete it")
    written = 0

    def write(scenario: MCPScenario) -> None:
        nonlocal written
        if not written:  # not before: a server that cannot be used leaves no file
            ScenarioSet().save(output)
        append_jsonl(output, [scenario.model_dump(mode="json")])
        written += 1

    async def run() -> ScenarioSet:
        from art_mcp.client.connect import connect
        from art_mcp.scenarios.generate import generate_scenarios

        async with connect(server, env=variables, headers=headers, worlds=world or None, reset=reset) as live:
            return await generate_scenarios(
                live,
                n,
                seconds=seconds,
                on_kept=write,
                model=make_llm(model, model_url) if model else None,
                paraphrase=make_llm(paraphrase, model_url) if paraphrase else None,
                held_out=held_out,
                difficulty=difficulty,
                seed=seed,
                instructions=instructions,
                resources=resource,
                allow_destructive=allow_destructive,
                progress=sys.stderr.isatty(),
            )

    try:
        scenarios = asyncio.run(run())
    except BaseException:
        if written:
            print(f"interrupted: {written} scenarios are in {output}", file=sys.stderr)
        raise
    if len(scenarios):
        scenarios.save(output)
    if as_json:
        sizes = {name: len(held_out) for name, held_out in scenarios.held_out_sets.items()}
        dropped = Counter(record.kind for record in scenarios.dropped)
        numbers = {"scenarios": len(scenarios), "train": len(scenarios.train), "held_out": sizes}
        file = str(output) if len(scenarios) else None
        print_json({"file": file, **numbers, "dropped": dropped, "notes": scenarios.notes})
    else:
        print(scenarios.report())
        print(f"written to {output}" if len(scenarios) else f"no scenario works: {output} is not written")
    if not len(scenarios):
        raise typer.Exit(1)
