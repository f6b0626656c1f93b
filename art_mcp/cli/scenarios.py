"""`art-langgraph scenarios`. LangChain, litellm and the MCP SDK are imported when it runs, so that `--help` is fast."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art_langgraph.cli.options import make_llm
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

if TYPE_CHECKING:
    from art_mcp.scenarios.scenario_set import ScenarioSet


def scenarios_command(
    server: ServerArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="JSONL file to write.")] = Path("scenarios.jsonl"),
    n: Annotated[int, typer.Option("-n", "--n", help="Scenarios to generate, held-out ones included.", min=1)] = 24,
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
    seed: SeedOption = 0,
) -> None:
    """Generate tasks for an MCP server, do each of them once, and write those that work as JSONL, to read and edit."""
    headers, variables = headers_of(header), variables_of(env)

    async def run() -> ScenarioSet:
        from art_mcp.client.connect import connect
        from art_mcp.scenarios.generate import generate_scenarios

        async with connect(server, env=variables, headers=headers, worlds=world or None, reset=reset) as live:
            return await generate_scenarios(
                live,
                n,
                model=make_llm(model, model_url) if model else None,
                difficulty=difficulty,
                seed=seed,
                instructions=instructions,
                resources=resource,
                allow_destructive=allow_destructive,
                progress=sys.stderr.isatty(),
            )

    scenarios = asyncio.run(run())
    scenarios.save(output)
    print(scenarios.report())
    print(f"written to {output}")
    if not len(scenarios):
        raise typer.Exit(1)
