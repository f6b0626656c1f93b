"""Does `specialize` make a model better at an MCP server that nobody here wrote?

    python -m benchmarks.specialize --server git --seed 0 --json [--minutes 20] [--output DIR]
    python -m benchmarks.specialize --server git --seed 0 --scenarios 60
    python -m benchmarks.specialize --server git --seed 0 --coverage --json [--scenarios 60]

Starts the trainer server on the embedded model and the server (installed into an environment of its own) in a world
that is made by the seed: a Git repository, a database, a workbook, a vault of notes. Then it runs `specialize`, which
knows nothing of the server but what the server says. No language model but the embedded one is used. With --output the
report, the journal and ten scenarios, drawn by the seed from all kinds, are kept there. With --scenarios it only
generates scenarios, for so many seconds, and prints such ten.

Each file of `benchmarks/servers` that has a `SERVER` is a server: how to install it, its command, how to make its
world. On those with `use="development"` the rules of the generation are developed; the others are run once, at the end.

With --coverage it only generates scenarios, for the time that `art-langgraph scenarios` takes or for --scenarios
seconds, and prints which tools they call.
The last line under --json is then {"tools", "covered", "scenarios", "seconds"}: all tools of the server, those that a
scenario with the reply "result" calls, all scenarios, and the wall time of the generation. Without --coverage it is
the result of the whole run. `before`, `prompted`, `after_sft` and `after` have the success rates on
the three held-out sets (null: there is no such set) and the headline, the mean of `values` and `phrasings`. `n` has the
scenarios of each set in each measurement, `gain` what reinforcement learning gained over the warm start on the sets of
the headline, with p, and `gain_on_all_sets` the same on all sets. With seed 0, a server that `benchmarks/wordings/` has
requests for is measured on them too: `foreign` in each measurement, and `foreign` by who wrote them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from art_examples.quickstart.server_process import trainer_server

from art_langgraph import TrainerClient
from art_mcp import (
    GenerationSettings,
    MCPScenario,
    RunSettings,
    ScenarioSet,
    Specialization,
    TrainingSettings,
    connect,
    generate_scenarios,
    specialize,
)
from art_mcp.client.connect import Server
from art_mcp.specialization.specialization import STAGE_TITLES
from benchmarks.servers.http_process import http_process
from benchmarks.servers.registry import SERVERS, BenchmarkServer
from benchmarks.wordings.requests import SEED, foreign_file, foreign_rates
from trainer_server.common.jsonl import write_jsonl
from trainer_server.wire import MCPError

SHOWN = 10
"""Scenarios that are kept, a sample of all."""


@asynccontextmanager
async def connected(server: BenchmarkServer, world: Path, seed: int) -> AsyncIterator[Server]:
    """Connects to a server, whose world is made in an empty directory by the seed. One over HTTP is started before."""
    if server.endpoint:
        async with (
            http_process(server, world, seed) as (url, reset),
            connect(url, reset=reset, start_timeout=300) as opened,
        ):
            yield opened
        return
    worlds = [server.world(world, seed)] if server.world else None
    async with connect(server.command(), env=server.env or None, worlds=worlds, start_timeout=300) as opened:
        yield opened


async def shown(server: BenchmarkServer, world: Path, seed: int, seconds: float) -> ScenarioSet:
    """Generates scenarios as `specialize` does, and nothing else.

    Args:
        server: The server.
        world: An empty directory for the world.
        seed: Seed of the world and the scenarios.
        seconds: Time of the generation.
    """
    async with connected(server, world, seed) as opened:
        return await generate_scenarios(
            opened, seconds=seconds, seed=seed, resources=dict(server.tables) or None, progress=False
        )


async def measured(server: BenchmarkServer, world: Path, seed: int, seconds: float | None) -> Coverage:
    """Generates scenarios, and counts the tools that they call.

    Args:
        server: The server.
        world: An empty directory for the world.
        seed: Seed of the world and the scenarios.
        seconds: Time of the generation. None: as `generate_scenarios` has it.
    """
    async with connected(server, world, seed) as opened:
        tools = [entry["name"] for entry in await opened.listing("tools/list")] + list(opened.left_out)
        started = time.monotonic()
        try:
            made = await generate_scenarios(
                opened, seconds=seconds, seed=seed, resources=dict(server.tables) or None, progress=False
            )
        except MCPError as error:  # no scenario works: no tool is covered
            tell(str(error))
            made = ScenarioSet()
        return Coverage.of(tools, made.scenarios, time.monotonic() - started)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which tools of a server the scenarios call.

    Args:
        uses: Scenarios by tool, of those that must be answered with a result. All tools of the server are there.
        scenarios: Number of all scenarios.
        seconds: Wall time of their generation.
    """

    uses: dict[str, int]
    scenarios: int
    seconds: float

    @classmethod
    def of(cls, tools: Sequence[str], scenarios: Sequence[MCPScenario], seconds: float) -> Coverage:
        """Counts the scenarios of each tool.

        Args:
            tools: Names of all tools.
            scenarios: The scenarios.
            seconds: Wall time of their generation.
        """
        asked = [one.plan for one in scenarios if one.plan.reply == "result"]
        uses = Counter(tool for plan in asked for tool in {step.tool for step in plan.reference})
        return cls({tool: uses[tool] for tool in tools}, len(scenarios), seconds)

    def summary(self) -> dict[str, float]:
        """The numbers as JSON."""
        covered = sum(1 for count in self.uses.values() if count)
        seconds = round(self.seconds, 1)
        return {"tools": len(self.uses), "covered": covered, "scenarios": self.scenarios, "seconds": seconds}

    def __str__(self) -> str:
        """A table: how many scenarios call each tool, and the numbers."""
        width = max(map(len, self.uses), default=0)
        rows = [f"{tool:{width}}  {count or 'not covered':>5}" for tool, count in self.uses.items()]
        return "\n".join(
            [*rows, "{covered} of {tools} tools, {scenarios} scenarios, {seconds} s".format(**self.summary())]
        )


def as_markdown(scenario: MCPScenario) -> str:
    """A scenario as a row of a table: what the user says, the calls of the reference, and the answer."""
    plan = scenario.plan
    said = " / ".join(message["content"] for message in scenario.messages if message["role"] == "user")
    calls = ", ".join(step.tool for step in plan.reference) or "no call"
    cells = (plan.kind, plan.split, said, calls, plan.answer)
    return "| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in cells) + " |"


async def run(url: str, key: str, options: argparse.Namespace, world: Path, output: Path) -> Specialization:
    """Connects to the server and specializes a policy to it.

    Args:
        url: Address of the trainer server.
        key: Its token.
        options: Options of the command line.
        world: An empty directory for the world.
        output: Directory of the run.
    """
    server = SERVERS[options.server]
    async with TrainerClient(url, key) as client, connected(server, world, options.seed) as opened:
        foreign = await foreign_file(opened, options.server, world.parent) if options.seed == SEED else None
        training, runs = TrainingSettings(steps=options.steps), RunSettings(rank=options.rank)
        return await specialize_for(opened, client, options, training, runs, output, foreign)


async def specialize_for(
    opened: Server,
    client: TrainerClient,
    options: argparse.Namespace,
    training: TrainingSettings,
    runs: RunSettings,
    output: Path | None,
    foreign: Path | None = None,
) -> Specialization:
    """Runs `specialize` as the options of a command line say.

    Args:
        opened: The server.
        client: The trainer server.
        options: Options of the command line: `server`, `minutes`, `seed`.
        training: How the policy is trained.
        runs: How the agent is run.
        output: Directory of the run. None: there is none.
        foreign: A file of requests that the generator did not write. None: there is none.
    """
    tables = dict(SERVERS[options.server].tables) or None
    return await specialize(
        opened,
        policy=options.server,
        client=client,
        minutes=options.minutes,
        generation=GenerationSettings(resources=tables, foreign=foreign),
        training=training,
        runs=runs,
        seed=options.seed,
        output=output,
        progress=False,
        on_stage=tell,
    )


def tell(text: str) -> None:
    """Prints a line of progress."""
    print(f"  {text}", file=sys.stderr, flush=True)


def result_of(made: Specialization, server: str, seed: int, seconds: float) -> dict[str, Any]:
    """The result as JSON.

    Args:
        made: The outcome.
        server: Name of the server in the registry.
        seed: The seed.
        seconds: Wall time of `specialize`.
    """
    measured = made.measurements
    return {
        "benchmark": "specialize",
        "server": server,
        "server_version": f"{made.server} {made.server_version}".strip(),
        "seed": seed,
        **{stage: measured[stage].rates() if stage in measured else None for stage in STAGE_TITLES},
        "seconds": round(seconds, 1),
        "n": {stage: {name: one.n for name, one in found.sets.items()} for stage, found in measured.items()},
        "headline_intervals": {stage: found.headline_interval for stage, found in measured.items()},
        "foreign": {stage: foreign_rates(found) for stage, found in measured.items()},
        "gain": made.gain.summary() if made.gain else None,
        "gain_on_all_sets": made.gain_on_all_sets.summary() if made.gain_on_all_sets else None,
        "selection": made.selection,
        "scenarios": {"train": len(made.scenarios.train), "held_out": len(made.scenarios.held_out)},
        "stages": {stage: round(took, 1) for stage, took in made.seconds.items()},
        "tokens": {stage: tokens.summary() for stage, tokens in made.tokens.items()},
        "warm_start": {
            name: (made.warm_start or {}).get(name)
            for name in ("rows", "updates", "epochs", "stopped", "validation_losses", "tokens_per_second")
        },
        "steps": [row["reward"] for row in made.steps],
        "notes": made.notes,
    }


def sample(scenarios: Sequence[MCPScenario], seed: int) -> list[MCPScenario]:
    """SHOWN scenarios that nobody picked, of all kinds by turns.

    Args:
        scenarios: All scenarios.
        seed: Seed of the choice.
    """
    rng = random.Random(f"sample-{seed}")
    left: defaultdict[str, list[MCPScenario]] = defaultdict(list)
    for scenario in rng.sample(list(scenarios), len(scenarios)):
        left[scenario.plan.kind].append(scenario)
    turns = zip_longest(*left.values())
    return [scenario for turn in turns for scenario in turn if scenario is not None][:SHOWN]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=list(SERVERS), required=True)
    parser.add_argument("--seed", type=int, default=0, help="of the world, the scenarios and the training (0)")
    parser.add_argument("--minutes", type=float, default=20.0, help="time for everything (20)")
    parser.add_argument("--steps", type=int, help="most GRPO steps (as many as there is time for)")
    parser.add_argument("--rank", type=int, default=8, choices=(8, 16, 32), help="of the LoRA (8)")
    parser.add_argument(
        "--scenarios",
        type=float,
        metavar="SECONDS",
        help="only generate scenarios, for so many seconds, and print ten of them as rows of a table",
    )
    parser.add_argument(
        "--coverage", action="store_true", help="only generate scenarios, and print the tools they call"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--output", type=Path, help="keep the report, the journal and ten scenarios here")
    options = parser.parse_args()
    if options.output and options.output.exists() and any(options.output.iterdir()):
        parser.error(f"--output {options.output} is not empty")
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        (home / "world").mkdir()
        server = SERVERS[options.server]
        if options.coverage:
            coverage = asyncio.run(measured(server, home / "world", options.seed, options.scenarios))
            print(json.dumps(coverage.summary()) if options.json else coverage)
            return
        if options.scenarios:
            made = asyncio.run(shown(server, home / "world", options.seed, options.scenarios))
            tell(made.report())
            print("\n".join(as_markdown(scenario) for scenario in sample(made.scenarios, options.seed)))
            return
        output = options.output or home / "report"
        arguments = ("--max-rank", str(options.rank))
        with trainer_server(home / "home", home / "server.log", tell, *arguments) as at:
            started = time.monotonic()
            try:
                made = asyncio.run(run(at.url, at.api_key, options, home / "world", output))
            finally:
                if options.output and output.exists():
                    shutil.copy(home / "server.log", output / "server.log")
            seconds = time.monotonic() - started
    if options.output:
        kept = sample(made.scenarios.scenarios, options.seed)
        write_jsonl(output / "ten_scenarios.jsonl", [one.model_dump(mode="json") for one in kept])
    result = result_of(made, options.server, options.seed, seconds)
    for stage, found in made.measurements.items():
        tell(f"{stage}: {found}")
    gains = f"{made.gain}; on all sets: {made.gain_on_all_sets}" if made.steps else "no step was taken"
    tell(f"gain of reinforcement learning: {gains}; {seconds:.0f} s")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
