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
from trainer_server.wire.text import quantity

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
    from art_mcp.scenarios.coverage import coverage_json, coverage_warning
    from art_mcp.scenarios.generate import ScenarioOptions, generate_scenarios
    from art_mcp.scenarios.scenario_set import ScenarioSet

    keywords = connection.keywords()
    ScenarioOptions(server, n, **generation.keywords()).check()  # before the server is started
    if output.exists():
        raise ConfigError(f"{output} exists, and would be overwritten: name another file with --output, or delete it")
    count = 0
    talk: list[MCPScenario] = []  # what was made before the first scenario that calls a tool

    def write(scenario: MCPScenario) -> None:
        nonlocal count
        if not (count or scenario.tools):
            talk.append(scenario)
            return
        if not count:  # not before: a server that cannot be used leaves no file
            ScenarioSet().save(output)
        scenarios = [*talk, scenario]
        append_jsonl(output, [each.model_dump(mode="json") for each in scenarios])
        count += len(scenarios)
        talk.clear()

    async def run() -> ScenarioSet:
        from art_mcp.client.connect import connect

        async with connect(server, **keywords) as live:
            progress = sys.stderr.isatty()
            return await generate_scenarios(live, n, on_kept=write, progress=progress, **generation.keywords())

    try:
        scenarios = asyncio.run(run())
    except BaseException:
        if count:
            print(f"interrupted: {quantity(count, 'scenario')} kept in {output}", file=sys.stderr)
        raise
    if scenarios.has_calls:
        scenarios.save(output)
    file = str(output) if scenarios.has_calls else None
    coverages = scenarios.tool_coverage
    if as_json:
        sizes = {name: len(held_out) for name, held_out in scenarios.held_out_sets.items()}
        dropped = Counter(record.kind for record in scenarios.dropped)
        numbers = {"scenarios": len(scenarios), "train": len(scenarios.train), "held_out": sizes}
        facts = {"dropped": dropped, "coverage": coverage_json(coverages), "notes": scenarios.notes}
        print_json({"file": file, **numbers, **facts})
    else:
        print(scenarios.report())
        what = "no scenario calls a tool" if len(scenarios) else "no scenario works"
        print(f"written to {output}" if file else f"{what}: {output} is not written")
    if warning := coverage_warning(coverages):
        print(f"warning: {warning}", file=sys.stderr)
    if file is None:
        raise typer.Exit(1)
