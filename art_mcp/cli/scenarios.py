"""`art-langgraph scenarios`. LangChain, litellm and the MCP SDK are imported when it runs: `--help` is fast."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art_langgraph.cli.options import JsonOption
from art_langgraph.cli.printing import print_json
from art_langgraph.loop.options import values_of
from art_mcp.cli.options import ConnectionFlags, GenerationFlags, ServerArgument
from art_mcp.options import SetOptions
from trainer_server.common.jsonl import append_jsonl
from trainer_server.common.options import with_flags
from trainer_server.wire import ConfigError

if TYPE_CHECKING:
    from art_mcp.scenarios.plan import MCPScenario


@dataclass(frozen=True, kw_only=True)
class ScenarioFlags(GenerationFlags, SetOptions):
    """A set of scenarios on the command line."""

    def keywords(self) -> dict[str, Any]:
        """Keywords of `generate_scenarios`."""
        return {**super().keywords(), **values_of(self, SetOptions), "seed": self.seed}


@with_flags
def scenarios_command(
    server: ServerArgument,
    generation: Annotated[ScenarioFlags, None],
    connection: Annotated[ConnectionFlags, None],
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
    as_json: JsonOption = False,
) -> None:
    """Generate tasks for an MCP server, do each of them twice, and write those that work as JSONL, to read and edit.

    Each task is written when it is kept: if this is interrupted or killed, the file has what there is by then.
    """
    from art_mcp.scenarios.scenario_set import ScenarioSet

    keywords = connection.keywords()
    if output.exists():
        raise ConfigError(f"{output} exists, and would be overwritten: name another file with --output, or delete it")
    count = 0

    def write(scenario: MCPScenario) -> None:
        nonlocal count
        if not count:  # not before: a server that cannot be used leaves no file
            ScenarioSet().save(output)
        append_jsonl(output, [scenario.model_dump(mode="json")])
        count += 1

    async def run() -> ScenarioSet:
        from art_mcp.client.connect import connect
        from art_mcp.scenarios.generate import generate_scenarios

        async with connect(server, **keywords) as live:
            progress = sys.stderr.isatty()
            return await generate_scenarios(live, n, on_kept=write, progress=progress, **generation.keywords())

    try:
        scenarios = asyncio.run(run())
    except BaseException:
        if count:
            print(f"interrupted: {count} scenarios are in {output}", file=sys.stderr)
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
