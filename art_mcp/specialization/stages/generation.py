"""The scenarios of a specialization: given ones, or generated ones, each written when it is kept."""

from __future__ import annotations

from pathlib import Path

from art_mcp.client.connect import Server
from art_mcp.scenarios.generate import generate_scenarios
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.specialization.settings import GenerationSettings
from art_mcp.specialization.stage_runner import Stage, StageRunner
from trainer_server.wire import ConfigError

LEAST = 15.0
"""Seconds of a generation that is resumed, at least."""


async def scenarios_for(
    server: Server,
    scenarios: int | ScenarioSet | str | Path | None,
    generation: GenerationSettings,
    stage_runner: StageRunner,
    seed: int,
    progress: bool,
) -> ScenarioSet:
    """The given set, the set in a file, or generated scenarios. What an earlier process generated is not lost.

    Args:
        server: The server.
        scenarios: Maximum number of scenarios to generate, or a set of scenarios, or a JSONL file of one. None: as many
            good ones as there is time for.
        generation: How scenarios are generated.
        stage_runner: The stages of the run.
        seed: Seed of the scenarios and their split.
        progress: Whether to show progress bars on a terminal.
    """
    directory = stage_runner.directory
    if stage_runner.end_event("scenarios") is not None:
        return directory.scenarios()
    with stage_runner.stage("scenarios", f"tasks for {server.name} {server.version}") as stage:
        if server.world:
            stage_runner.on_stage(f"each run gets a copy of {server.world}")
        if server.serial:
            stage_runner.on_stage("the server is reset before each run, so that runs are one after another")
        if scenarios is None or isinstance(scenarios, int):
            divided = await _generate_set(server, scenarios, generation, stage_runner, stage, seed, progress)
        else:
            given = scenarios if isinstance(scenarios, ScenarioSet) else ScenarioSet.load(scenarios)
            divided = given.with_aliases(server.world.aliases) if server.world else given
        directory.save_scenarios(divided)
        sizes = {name: len(held_out) for name, held_out in divided.held_out_sets.items()}
        stage.facts |= {"train": len(divided.train), **sizes, "dropped": len(divided.dropped)}
        stage_runner.on_stage(divided.report())
    return divided


async def _generate_set(
    server: Server,
    n: int | None,
    generation: GenerationSettings,
    stage_runner: StageRunner,
    stage: Stage,
    seed: int,
    progress: bool,
) -> ScenarioSet:
    """Generates scenarios. Those that an earlier process kept count, and the time that it spent too."""
    kept = stage_runner.directory.kept_scenarios()
    seconds = generation.seconds if stage.seconds is None else min(generation.seconds, stage.before + stage.seconds)
    made = await generate_scenarios(
        server,
        n,
        seconds=max(LEAST, seconds - stage.before),
        on_kept=stage_runner.directory.add_scenario,
        kept=kept,
        model=generation.model,
        paraphrase=generation.paraphrase,
        difficulty=generation.difficulty,
        seed=seed,
        instructions=generation.instructions,
        resources=generation.resources,
        allow_destructive=generation.allow_destructive,
        held_out=generation.held_out,
        progress=progress,
    )
    if not len(made):
        raise ConfigError(f"no task of {server.name} could be kept: {made.report()}")
    return made
