"""Generates scenarios for an MCP server: drafts, removal of duplicates, execution, balance over the tools, split."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from art_langgraph.llm.llm import LLM, Model
from art_langgraph.progress import progress_bar
from art_mcp.client.connect import Server, connect
from art_mcp.client.reset import Reset
from art_mcp.scenarios.catalog import REMEDY, Catalog, CatalogTool, describe_withheld, read_catalog
from art_mcp.scenarios.drafting.drafter import Drafter
from art_mcp.scenarios.drafting.look_around import COLUMNS, look_around, look_at_tables
from art_mcp.scenarios.drafting.sql import Sql, sql_parameter
from art_mcp.scenarios.drafting.tables import Resources, tables_of
from art_mcp.scenarios.drafting.values import Values
from art_mcp.scenarios.execute import Trials
from art_mcp.scenarios.phrasing.phraser import Phraser
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.production.composer import Composer
from art_mcp.scenarios.production.producer import Producer
from art_mcp.scenarios.production.quotas import ScenarioQuota
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.scenarios.summary import GRAM, find_copied_words
from art_mcp.scenarios.writing.generation import write_scenarios
from art_mcp.scenarios.writing.paraphrase import paraphrase_scenarios
from art_mcp.scenarios.writing.writer import Writer
from art_mcp.worlds.place import Worlds
from trainer_server.wire import ConfigError

LOOKING = 0.25
"""Share of the time that is spent on looking around, at most."""

WRITTEN = 96
"""Scenarios that a language model writes if no number is given: each costs money."""


async def generate_scenarios(
    server: Server | Catalog | str | Sequence[str],
    n: int | None = None,
    *,
    model: Model | None = None,
    paraphrase: Model | None = None,
    seconds: float = 120.0,
    on_kept: Callable[[MCPScenario], None] = lambda scenario: None,
    kept: Sequence[MCPScenario] = (),
    difficulty: tuple[int, int] = (1, 5),
    seed: int = 0,
    instructions: str | None = None,
    resources: Resources | None = None,
    allow_destructive: bool = False,
    held_out: float = 0.25,
    rounds: int = 4,
    budget: float | None = None,
    progress: bool = True,
    worlds: Worlds | None = None,
    reset: Reset | None = None,
) -> ScenarioSet:
    """Generates tasks for a server, executes a reference solution of each, and keeps those that work.

    The same seed gives the same scenarios if the server gives the same answers.

    Args:
        server: A connected server, or what `connect` takes. From a bare catalog nothing can be executed: the set then
            holds drafts, and a note says so.
        n: Scenarios to keep at most. None: as many as there are good ones within `seconds`.
        model: Language model that writes the scenarios ("provider/name", an LLM, or a LangChain chat model). It is
            asked again until there are enough, `rounds` are over, or `budget` is spent. None drafts them from schemas
            alone.
        paraphrase: Language model that rewrites the texts of scenarios. None leaves them as they are.
        seconds: Time for the whole generation.
        on_kept: Called for each scenario when it is kept, so that an interrupted generation loses nothing.
        kept: Scenarios of an interrupted generation, of the same server and seed. They count, and stay in their sets.
        difficulty: Least and greatest difficulty, from 1 to 5.
        seed: Seed of the drafts and of the split.
        instructions: Additional instructions for the model. None adds nothing to the catalog.
        resources: Values by the name of a parameter, or files of them (`load_tables`).
        allow_destructive: Whether to call tools that may change something (`CatalogTool.why_changing`) also where the
            change would stay: without worlds and reset.
        held_out: Share of the scenarios to hold out from training, from 0 to 1.
        rounds: Maximum number of rounds in which the model is asked.
        budget: USD that each model may cost. None sets no limit.
        progress: Whether to show progress bars on a terminal.
        worlds: What the server works on, as `connect` takes it: each execution gets a copy. A connected server has it.
        reset: Resets the server before each execution, as `connect` takes it. A connected server has it.

    Returns:
        The scenarios, split into training and held-out sets, and the dropped tasks with the reasons.

    Raises:
        ConfigError: A setting is invalid.
        MCPError: The server cannot be used.
        LLMError: The model failed before any scenario was kept.
    """
    if isinstance(server, str) or not isinstance(server, Server | Catalog):
        async with connect(server, worlds=worlds, reset=reset) as connected:
            return await generate_scenarios(
                connected,
                n,
                model=model,
                paraphrase=paraphrase,
                seconds=seconds,
                on_kept=on_kept,
                kept=kept,
                difficulty=difficulty,
                seed=seed,
                instructions=instructions,
                resources=resources,
                allow_destructive=allow_destructive,
                held_out=held_out,
                rounds=rounds,
                budget=budget,
                progress=progress,
            )
    if worlds is not None or reset is not None:
        raise ConfigError("worlds= and reset= are for a server to connect to: give them to `connect`")
    low, high = difficulty
    if (n is not None and n < 1) or not 1 <= low <= high <= 5 or not 0 <= held_out < 1 or seconds <= 0:
        raise ConfigError(
            f"n={n}, difficulty={difficulty}, held_out={held_out}, seconds={seconds}: expected n ≥ 1, "
            "1 ≤ low ≤ high ≤ 5, a share from 0 to 1, seconds > 0"
        )
    generation = _Generation(
        server if isinstance(server, Server) else None,
        server if isinstance(server, Catalog) else await read_catalog(server),
        seconds=seconds,
        seed=seed,
        resources=resources,
        allow_destructive=allow_destructive,
        progress=progress,
    )
    if model is None or not generation.tools:
        filled = ScenarioQuota(n, held_out, on_kept, difficulty, [*kept])
        return await generation.from_grammar(filled, LLM.of(paraphrase) if paraphrase is not None else None, budget)
    await generation.look_around()
    values = generation.values
    writer = Writer(
        LLM.of(model),
        generation.catalog,
        generation.tools,
        difficulty,
        seed,
        instructions,
        values.pool.results,
        generation.tables,
    )
    scenarios = await write_scenarios(
        writer,
        generation.live,
        WRITTEN if n is None else n,
        rounds,
        budget,
        earlier=kept,
        on_kept=on_kept,
        until=generation.end,
        allow_destructive=generation.allow_destructive,
        progress=progress,
    )
    if paraphrase is not None:
        await generation.paraphrase(scenarios.scenarios, 0, LLM.of(paraphrase), scenarios.notes, budget)
    scenarios.notes += generation.notes(scenarios.scenarios)
    return scenarios.split(held_out, seed)


class _Generation:
    """A server, what is known of it, and the time that there is.

    Args:
        live: The server. None: there is a catalog alone.
        catalog: What it offers.
        seconds: The time.
        seed: Seed of the drafts.
        resources: Values of the user.
        allow_destructive: Whether to call tools that may change something where the change would stay.
        progress: Whether to show progress bars on a terminal.
    """

    def __init__(
        self,
        live: Server | None,
        catalog: Catalog,
        *,
        seconds: float,
        seed: int,
        resources: Resources | None,
        allow_destructive: bool,
        progress: bool,
    ) -> None:
        self.live = live
        self.catalog = catalog
        self._seconds = seconds
        self._clock = asyncio.get_running_loop().time
        self._begun = self._clock()
        self.end = self._begun + seconds
        self._seed = seed
        self._rng = random.Random(f"scenarios-{seed}")
        self._progress = progress
        self._world = live.world if live else None
        world, given = self._world, tables_of(resources)
        self.tables = {name: world.aliases.value(values) if world else values for name, values in given.items()}
        self.values = Values(catalog, self.tables, self._rng, seed)
        if world:
            self.values.learn_places(world.places)
        self.allow_destructive = allow_destructive or bool(live and live.disposable)
        self.tools: list[CatalogTool] = [tool for tool in catalog.tools if self.allow_destructive or tool.reads]
        self._useless: dict[str, str] = {}

    async def look_around(self) -> None:
        """Learns values from the server's reading tools."""
        if self.live:
            until = self._begun + LOOKING * self._seconds
            plainly = [tool for tool in self.tools if sql_parameter(tool) is None]
            self._useless = await look_around(self.live, plainly, self.values, until=until, progress=self._progress)

    async def from_grammar(self, quota: ScenarioQuota, paraphrase: LLM | None, budget: float | None) -> ScenarioSet:
        """Makes scenarios from the schemas alone.

        Args:
            quota: Keeps them, and knows how many are wanted.
            paraphrase: Rewrites their texts. None: nothing does.
            budget: USD that this may cost. None sets no limit.
        """
        await self.look_around()
        drafter = Drafter(self.catalog, self.tools, self.values, self._rng)
        sql = Sql(self.tools, self.values.reserve, self._rng)
        if self.live:
            await look_at_tables(self.live, sql)
        self.values.settle()
        composer = Composer(self.catalog, drafter, Phraser(self._rng, self._seed), self._rng, sql.tools)
        producer = Producer(drafter, sql, composer, quota, self._seed)
        scenarios = ScenarioSet(quota.scenarios, producer.dropped_tasks, [tool.name for tool in self.catalog.tools])
        after: Callable[[], Awaitable[None]] | None = None
        if paraphrase is not None:
            quota.hold_back()

            async def after() -> None:
                await self.paraphrase(quota.scenarios, quota.notify_count, paraphrase, scenarios.notes, budget)
                quota.notify()

        if self.live:
            with progress_bar(*COLUMNS, shown=self._progress) as bar:
                task = bar.add_task("making scenarios", total=quota.total)
                trials = Trials(self.live, self.catalog, allow_destructive=self.allow_destructive, until=self.end)

                async def on_wave() -> None:
                    if after is not None:
                        await after()
                    bar.update(task, completed=len(quota.scenarios))

                await producer.produce(trials, lambda: (self.end - self._clock()) / self._seconds, on_wave)
        elif self.tools:
            producer.draft_only()
            if after is not None:
                await after()
            scenarios.notes.append(
                "not executed: a catalog answers nothing, so only calls are checked, and some may fail"
            )
        scenarios.notes += [*producer.notes(), *self.notes(quota.scenarios)]
        return scenarios

    async def paraphrase(
        self, scenarios: list[MCPScenario], since: int, llm: LLM, notes: list[str], budget: float | None
    ) -> None:
        """Rewrites the texts of scenarios where they are. What cannot be rewritten stays, and a note says how many.

        Args:
            scenarios: The scenarios.
            since: The first of them that is rewritten.
            llm: The language model.
            notes: Gets the note.
            budget: USD that the model may cost. None sets no limit.
        """
        spent = llm.usage.cost
        if budget is not None and (spent is None or spent >= budget):
            return
        rewritten, errors = await paraphrase_scenarios(scenarios[since:], llm, self._seed + since)
        known = {scenario.wording for scenario in scenarios}
        for at, scenario in enumerate(rewritten, since):
            if scenario is not None and scenario.wording not in known:
                known.add(scenario.wording)
                scenarios[at] = scenario
        done = sum(scenario.plan.phrasing == llm.model for scenario in scenarios)
        notes[:] = [note for note in notes if not note.startswith("paraphrased by ")]
        failed = f"; {len(errors)} requests failed: {errors[0]}" if errors else ""
        notes.append(f"paraphrased by {llm.model}: {done} of {len(scenarios)}{failed}; {llm.usage}")

    def notes(self, scenarios: Sequence[MCPScenario]) -> list[str]:
        """Remarks on the generation and on the texts."""
        notes = [f"the tool {name} is left out: {reason}" for name, reason in self.catalog.left_out.items()]
        if not self.allow_destructive and (left_out := describe_withheld(self.catalog.tools)):
            notes.append(f"{left_out}. {REMEDY}")
        if self._world:
            notes += [f"each execution had a copy of {self._world}", *self._world.notes]
        if self._useless:
            listed = "; ".join(f"{tool}: {reason}" for tool, reason in self._useless.items())
            notes.append(f"gave nothing usable when they were tried out: {listed}")
        share, words = find_copied_words([scenario.task for scenario in scenarios], _descriptions(self.catalog))
        taken = f", the most of {words!r}" if words else ""
        notes.append(f"tasks with {GRAM} words in a row of a tool's description: at most {share:.0%}{taken}")
        return notes


def _descriptions(catalog: Catalog) -> list[str]:
    """What a server says of its tools and of their parameters."""
    inner: list[Any] = [
        schema for tool in catalog.tools for schema in (tool.input_schema.get("properties") or {}).values()
    ]
    told = [str(schema.get("description", "")) for schema in inner if isinstance(schema, dict)]
    return [tool.description for tool in catalog.tools] + told
