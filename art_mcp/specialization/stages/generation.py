"""Generation: the scenarios of a run, a user's own or generated ones, each written when it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from art_mcp.scenarios.coverage import coverage_warning
from art_mcp.scenarios.generate import default_seconds, generate_scenarios
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.specialization.context import RunContext
from art_mcp.specialization.stage_runner import Stage, StageRecord
from trainer_server.wire import ConfigError

LEAST = 15.0
"""Seconds of a generation that is resumed, at least."""


@dataclass(slots=True)
class Generation(Stage):
    """Generates scenarios, or takes a set, or reads a file of one. Then the run can begin."""

    context: RunContext
    name = "scenarios"
    weight = 6.0

    async def run(self) -> None:
        """Writes all scenarios, divided into sets."""
        server, scenarios, runner = self.context.server, self.context.options.scenarios, self.context.runner
        with runner.stage(self.name, f"tasks for {server.name} {server.version}") as record:
            if server.world:
                runner.on_stage(f"each run gets a copy of {server.world}")
            if server.serial:
                runner.on_stage("the server is reset before each run, so that runs are one after another")
            if scenarios is None or isinstance(scenarios, int):
                scenario_set = await self._generate(scenarios, record)
                scenario_set.scenarios += self._foreign()
            else:
                own = scenarios if isinstance(scenarios, ScenarioSet) else ScenarioSet.load(scenarios)
                scenario_set = own.with_aliases(server.world.aliases) if server.world else own
            if len(scenario_set) and not scenario_set.has_calls:
                raise ConfigError(f"no scenario for {server.name} calls a tool: {scenario_set.report()}")
            runner.directory.save_scenarios(scenario_set)
            sizes = {name: len(held_out) for name, held_out in scenario_set.held_out_sets.items()}
            record.facts |= {"train": len(scenario_set.train), **sizes, "dropped": len(scenario_set.dropped)}
            runner.on_stage(scenario_set.report())
            if warning := coverage_warning(scenario_set.tool_coverage):
                runner.remark("coverage", warning)
                runner.on_stage(f"warning: {warning}")
        await self.context.begin(scenario_set)

    async def restore(self, end: Mapping[str, Any]) -> None:
        """Reads the scenarios, with their difficulty if that was measured."""
        await self.context.begin(self.context.runner.directory.scenarios())

    def _foreign(self) -> list[MCPScenario]:
        """The requests of the file that the generator did not write."""
        path, world = self.context.options.generation.foreign, self.context.server.world
        if path is None:
            return []
        requests = ScenarioSet.load(path)
        if world:
            requests = requests.with_aliases(world.aliases)
        return [scenario.with_plan(split="foreign") for scenario in requests.scenarios]

    async def _generate(self, n: int | None, record: StageRecord) -> ScenarioSet:
        """Generates scenarios. Those that an earlier process kept count, and the time that it spent too."""
        options, directory = self.context.options, self.context.runner.directory
        generation, before = options.generation, record.seconds_before
        seconds = generation.seconds
        if seconds is None:
            seconds = await default_seconds(self.context.server)
        if record.seconds is not None:
            seconds = min(seconds, before + record.seconds)
        scenarios = await generate_scenarios(
            self.context.server,
            n,
            seconds=max(LEAST, seconds - before),
            on_kept=directory.add_scenario,
            kept=directory.kept_scenarios(),
            seed=options.seed,
            progress=options.progress,
            **{
                entry.name: getattr(generation, entry.name)
                for entry in fields(generation)
                if entry.name not in ("seconds", "foreign")
            },
        )
        if not len(scenarios):
            raise ConfigError(f"no task of {self.context.server.name} could be kept: {scenarios.report()}")
        return scenarios
