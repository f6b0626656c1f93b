"""The scenarios of a specialization: given ones, or generated ones, each written when it is kept."""

from __future__ import annotations

from pathlib import Path

from art_mcp.client.connect import Server
from art_mcp.scenarios.generate import generate_scenarios
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.specialization.course import Course, Stage
from art_mcp.specialization.settings import GenerationSettings
from trainer_server.wire import ConfigError

LEAST = 15.0
"""Seconds of a generation that is resumed, at least."""


async def scenarios_for(
    server: Server,
    scenarios: int | ScenarioSet | str | Path | None,
    generation: GenerationSettings,
    course: Course,
    seed: int,
    progress: bool,
) -> ScenarioSet:
    """The given set, the set in a file, or generated scenarios. What an earlier process generated is not lost.

    Args:
        server: The server.
        scenarios: As that of `specialize`.
        generation: How scenarios are generated.
        course: The stages of the run.
        seed: Seed of the scenarios and their split.
        progress: Whether to show progress bars on a terminal.
    """
    directory = course.directory
    if course.ended("scenarios") is not None:
        return directory.scenarios()
    with course.stage("scenarios", f"tasks for {server.name} {server.version}") as stage:
        if server.world:
            course.tell(f"each run gets a copy of {server.world}")
        if server.serial:
            course.tell("the server is reset before each run, so that runs are one after another")
        if scenarios is None or isinstance(scenarios, int):
            divided = await _generated(server, scenarios, generation, course, stage, seed, progress)
        else:
            given = scenarios if isinstance(scenarios, ScenarioSet) else ScenarioSet.load(scenarios)
            divided = given.with_aliases(server.world.aliases) if server.world else given
        directory.save_scenarios(divided)
        sizes = {name: len(held_out) for name, held_out in divided.held_out_sets.items()}
        stage.facts |= {"train": len(divided.train), **sizes, "dropped": len(divided.dropped)}
        course.tell(divided.report())
    return divided


async def _generated(
    server: Server,
    n: int | None,
    generation: GenerationSettings,
    course: Course,
    stage: Stage,
    seed: int,
    progress: bool,
) -> ScenarioSet:
    """Generates scenarios. Those that an earlier process kept count, and the time that it spent too."""
    kept = course.directory.kept_scenarios()
    seconds = generation.seconds if stage.seconds is None else min(generation.seconds, stage.before + stage.seconds)
    made = await generate_scenarios(
        server,
        n,
        seconds=max(LEAST, seconds - stage.before),
        on_kept=course.directory.add_scenario,
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
