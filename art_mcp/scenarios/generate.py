"""Generates scenarios for an MCP server: drafts, removal of duplicates, execution, balance over the tools, split."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from art_langgraph.llm.llm import LLM, Model
from art_langgraph.llm.trainer_model import TrainerModel, find_model
from art_langgraph.loop.options import keywords_of
from art_langgraph.progress import progress_bar
from art_mcp.client.connect import Server, WorldOptions, connection_of
from art_mcp.scenarios.catalog import REMEDY, Catalog, describe_withheld, parameter_forms, read_catalog
from art_mcp.scenarios.coverage import OUT_OF_TIME, change_risk, unreadable_tool
from art_mcp.scenarios.drafting.drafter import Drafter
from art_mcp.scenarios.drafting.explore import COLUMNS, Explorer, look_at_tables
from art_mcp.scenarios.drafting.sql import TABLELESS, Sql
from art_mcp.scenarios.drafting.tables import Resources, tables_of
from art_mcp.scenarios.drafting.values import Values
from art_mcp.scenarios.phrasing.phraser import Phraser
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.production.composer import Composer
from art_mcp.scenarios.production.producer import SPARE, Producer
from art_mcp.scenarios.production.quotas import ScenarioQuota
from art_mcp.scenarios.scenario_set import ScenarioSet
from art_mcp.scenarios.summary import GRAM, find_copied_words
from art_mcp.scenarios.trials import Trials
from art_mcp.scenarios.writing.generation import WritingOptions, write_scenarios
from art_mcp.scenarios.writing.paraphrase import paraphrase_scenarios
from art_mcp.scenarios.writing.wordings import Wordings
from art_mcp.scenarios.writing.writer import Writer
from trainer_server.wire import ConfigError

SECONDS = 60.0
"""Time of a generation for a server of FEW_TOOLS or fewer, if none is given."""

FEW_TOOLS = 25
SECONDS_PER_TOOL = 2.5
"""More time for each further tool."""

USUAL_START = 1.0
"""Seconds in which a server starts in a copy of its world. Where that takes longer, all does, as on a busy machine."""

MOST_TIMES = 4.0
"""How many times the usual time a generation gets then, at most."""

EXPLORATION_SHARE = 0.4
"""Share of the time that is spent on exploring the server, at most."""

GRAMMAR_SHARE = 0.5
"""Share of the time in which the grammar makes scenarios, if the base model then writes their requests."""

DEFAULT_COUNT = 96
"""Scenarios that a language model writes if no number is given: each costs money."""


@dataclass(frozen=True, kw_only=True)
class ScenarioOptions(WritingOptions, WorldOptions):
    """Arguments of `generate_scenarios`.

    Args:
        server: A connected server, or what `connect` takes. From a bare catalog nothing can be executed: the set then
            holds drafts, and a note says so.
        n: Scenarios to keep at most. None: as many as there are good ones within `seconds`.
        model: Language model that writes the scenarios ("provider/name", an LLM, or a LangChain chat model). It is
            asked again until there are enough, `rounds` are over, or `budget` is spent. None drafts them from schemas
            alone. "policy" does so too, and then the base model of the trainer server writes the requests for the
            calls that worked.
        paraphrase: Language model that rewrites the texts of scenarios; "policy" is the base model of the trainer
            server. None leaves them as they are.
        seed: Seed of the drafts and of the split.
        resources: Values by the name of a parameter, or files of them (`load_tables`).
    """

    server: Server | Catalog | str | Sequence[str] = field(kw_only=False)
    n: int | None = field(default=None, kw_only=False)
    model: Model | None = None
    paraphrase: Model | None = None
    seed: int = 0
    resources: Resources | None = None

    def check(self) -> None:
        """Raises ConfigError if one of them is out of its range."""
        low, high = self.difficulty
        if self.n is not None and self.n < 1:
            raise ConfigError(f"n={self.n}: at least one scenario must be asked for")
        if self.seconds is not None and not self.seconds > 0:
            raise ConfigError(f"seconds={self.seconds}: the time must be above 0")
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"held_out={self.held_out}: the share of held-out scenarios is from 0 to less than 1")
        if not 1 <= low <= high <= 5:
            raise ConfigError(f"difficulty={low}, {high}: give the least and the greatest, from 1 to 5, as in 2 4")


async def default_seconds(server: Server) -> float:
    """The time of a generation if none is given: more of it for more tools, and for a server that is slow to start.

    Raises:
        MCPError: The server does not answer.
    """
    tools, slower = len(await server.listing("tools/list")), 1.0
    if server.world is not None:  # that of the connection: another start here changes what the exploration finds
        slower = min(max(server.world.fastest_start / USUAL_START, 1.0), MOST_TIMES)
    return slower * (SECONDS + SECONDS_PER_TOOL * max(0, tools - FEW_TOOLS))


@keywords_of(ScenarioOptions)
async def generate_scenarios(options: ScenarioOptions) -> ScenarioSet:
    """Generates tasks for a server, executes a reference solution of each, and keeps those that work.

    The same seed gives the same scenarios if the server gives the same answers.

    Returns:
        The scenarios, split into training and held-out sets, and the dropped tasks with the reasons.

    Raises:
        ConfigError: A setting is invalid, or a model is "policy" and no trainer server answers.
        MCPError: The server cannot be used.
        LLMError: The model failed before any scenario was kept.
    """
    options.check()
    if isinstance(options.server, Catalog):
        options.check_unused()
        return await _Generation(None, options.server, options, SECONDS).generate()
    async with connection_of(options.server, options) as live:
        catalog = await read_catalog(live)
        seconds = await default_seconds(live) if options.seconds is None else options.seconds
        return await _Generation(live, catalog, options, seconds).generate()


class _Generation:
    """A server, what is known of it, and the time that there is.

    Args:
        live: The server. None: there is a catalog alone.
        catalog: What it offers.
        options: The options of the generation.
        seconds: Its time.
    """

    def __init__(self, live: Server | None, catalog: Catalog, options: ScenarioOptions, seconds: float) -> None:
        self._live = live
        self._catalog = catalog
        self._options = options
        self._clock = asyncio.get_running_loop().time
        self._start = self._clock()
        self._seconds = seconds
        self._end = self._start + self._seconds
        self._rng = random.Random(f"scenarios-{options.seed}")
        self._world = world = live.world if live else None
        tables = tables_of(options.resources)
        self._tables = {name: world.aliases.value(values) if world else values for name, values in tables.items()}
        self._values = Values(catalog, self._tables, self._rng, options.seed)
        if world:
            self._values.learn_places(world.places)
        self._allow_destructive = options.allow_destructive or bool(live and live.disposable)
        self._tools = [tool for tool in catalog.tools if self._allow_destructive or tool.reads]
        self._sql = Sql(self._tools, self._values.reserve, self._rng, TABLELESS)
        self._useless: dict[str, str] = {}

    async def generate(self) -> ScenarioSet:
        """Makes scenarios with the language model if there is one, else from the schemas alone."""
        options = self._options
        paraphrase = None if options.paraphrase is None else await find_model(options.paraphrase)
        model = None if options.model is None else await find_model(options.model)
        await self._explore()
        if model is None or isinstance(model, TrainerModel) or not self._tools:
            quota = ScenarioQuota(options.n, options.held_out, options.on_kept, options.difficulty, [*options.kept])
            return await self._from_grammar(quota, paraphrase, model)
        writer = Writer(
            model,
            self._catalog,
            self._tools,
            options.difficulty,
            options.seed,
            options.instructions,
            self._values.graph.results,
            self._tables,
        )
        scenarios = await write_scenarios(
            writer,
            self._live,
            DEFAULT_COUNT if options.n is None else options.n,
            replace(options, allow_destructive=self._allow_destructive),
            until=self._end,
        )
        if paraphrase is not None:
            await self._paraphrase(scenarios.scenarios, 0, paraphrase, scenarios.notes)
        scenarios.notes += self._notes(scenarios.scenarios)
        self._explain(scenarios)
        return scenarios.split(options.held_out, options.seed)

    async def _explore(self) -> None:
        """Learns by trying which values the server's tools take."""
        if self._live:
            await look_at_tables(self._live, self._sql, self._values)
            until = self._start + EXPLORATION_SHARE * self._seconds
            others = [tool for tool in self._tools if tool.name not in self._sql.tools]
            explorer = Explorer(self._live, others, self._values, seed=self._options.seed, until=until)
            await explorer.explore(self._options.progress)
            self._useless = explorer.failures()
            if not self._sql.tables:  # now values are known for what a tool needs beside the SQL
                await look_at_tables(self._live, self._sql, self._values)

    async def _from_grammar(self, quota: ScenarioQuota, paraphrase: LLM | None, model: LLM | None) -> ScenarioSet:
        """Makes scenarios from the schemas alone.

        Args:
            quota: Keeps them, and knows how many are wanted.
            paraphrase: Rewrites their texts. None: nothing does.
            model: Writes their texts anew, if it is a TrainerModel.
        """
        writer = model if isinstance(model, TrainerModel) and self._live else None
        end = self._end if writer is None else self._start + GRAMMAR_SHARE * self._seconds
        drafter = Drafter(self._catalog, self._tools, self._values, self._rng)
        sql = self._sql
        self._values.settle()
        composer = Composer(self._catalog, drafter, Phraser(self._rng, self._options.seed), self._rng, sql.tools)
        producer = Producer(drafter, sql, composer, quota, self._options.seed)
        scenarios = ScenarioSet(quota.scenarios, producer.dropped_tasks, [tool.name for tool in self._catalog.tools])
        if paraphrase is not None or writer is not None:
            quota.hold_back()

        async def paraphrase_new() -> None:
            if paraphrase is not None:
                await self._paraphrase(quota.scenarios, quota.notify_count, paraphrase, scenarios.notes)
                quota.notify()

        if self._live:
            with progress_bar(*COLUMNS, shown=self._options.progress) as bar:
                task = bar.add_task("making scenarios", total=quota.total)
                trials = Trials(
                    self._live,
                    self._catalog,
                    allow_destructive=self._allow_destructive,
                    until=end - SPARE * self._seconds,
                    changing=self._values.graph.changing,
                )

                async def on_wave() -> None:
                    if writer is None:
                        await paraphrase_new()
                    bar.update(task, completed=len(quota.scenarios))

                await producer.produce(trials, lambda: (end - self._clock()) / self._seconds, on_wave)
                if writer is not None:
                    wordings = Wordings(writer, self._live, self._tools, self._options.seed, self._end, sql.tools)
                    note = await wordings.write(quota.scenarios, quota.notify_count, quota.notify)
                    scenarios.notes.append(note)
                    await paraphrase_new()
                    quota.notify()
        elif self._tools:
            producer.draft_only()
            await paraphrase_new()
            scenarios.notes.append(
                "not executed: a catalog answers nothing, so only calls are checked, and some may fail"
            )
        scenarios.notes += [*producer.notes(), *self._notes(quota.scenarios)]
        self._explain(scenarios)
        return scenarios

    def _explain(self, scenarios: ScenarioSet) -> None:
        """Notes why no call of a tool worked, as far as that is known, and which parameters can vary."""
        scenarios.parameters = {tool.name: parameter_forms(tool) for tool in self._catalog.tools}
        plans = (scenario.plan.reference for scenario in scenarios.scenarios)
        tried = {tool for dropped in scenarios.dropped for tool in dropped.tools}
        tried |= {step.tool for reference in plans for step in reference}
        late = f"{OUT_OF_TIME} before its calls were executed"
        if self._live:
            scenarios.reasons |= {  # what was dropped tells more
                tool.name: self._useless.get(tool.name, late) for tool in self._tools if tool.name not in tried
            }
        scenarios.reasons |= {name: unreadable_tool(why) for name, why in self._catalog.left_out.items()}
        if not self._allow_destructive:
            scenarios.reasons |= {
                tool.name: change_risk(tool.why_changing) for tool in self._catalog.tools if tool.why_changing
            }

    async def _paraphrase(self, scenarios: list[MCPScenario], since: int, llm: LLM, notes: list[str]) -> None:
        """Rewrites the texts of scenarios where they are. What cannot be rewritten stays, and a note says how many.

        Args:
            scenarios: The scenarios.
            since: The first of them that is rewritten.
            llm: The language model.
            notes: Gets the note.
        """
        cost, budget = llm.usage.cost, self._options.budget
        if budget is not None and (cost is None or cost >= budget):
            return
        rewritten, errors = await paraphrase_scenarios(scenarios[since:], llm, self._options.seed + since)
        wordings = {scenario.wording for scenario in scenarios}
        for at, scenario in enumerate(rewritten, since):
            if scenario is not None and scenario.wording not in wordings:
                wordings.add(scenario.wording)
                scenarios[at] = scenario
        count = sum(scenario.plan.phrasing == llm.model for scenario in scenarios)
        notes[:] = [note for note in notes if not note.startswith("paraphrased by ")]
        failures = f"; {len(errors)} requests failed: {errors[0]}" if errors else ""
        notes.append(f"paraphrased by {llm.model}: {count} of {len(scenarios)}{failures}; {llm.usage}")

    def _notes(self, scenarios: Sequence[MCPScenario]) -> list[str]:
        """Remarks on the generation and on the texts."""
        notes = [f"the tool {name} is left out: {reason}" for name, reason in self._catalog.left_out.items()]
        if not self._allow_destructive and (left_out := describe_withheld(self._catalog.tools)):
            notes.append(f"{left_out}. {REMEDY}")
        if self._world:
            best = self._world.fastest_start
            start = f", in which the server started within {best:.1f} s at best" if best < math.inf else ""
            notes += [f"each execution had a copy of {self._world}{start}", *self._world.notes]
        if self._useless:
            reasons = "; ".join(f"{tool}: {reason}" for tool, reason in self._useless.items())
            notes.append(f"gave nothing usable when they were tried out: {reasons}")
        share, words = find_copied_words([scenario.task for scenario in scenarios], _descriptions(self._catalog))
        most = f", the most of {words!r}" if words else ""
        notes.append(f"tasks with {GRAM} words in a row of a tool's description: at most {share:.0%}{most}")
        return notes


def _descriptions(catalog: Catalog) -> list[str]:
    """What a server says of its tools and of their parameters."""
    inner: list[Any] = [
        schema for tool in catalog.tools for schema in (tool.input_schema.get("properties") or {}).values()
    ]
    descriptions = [str(schema.get("description", "")) for schema in inner if isinstance(schema, dict)]
    return [tool.description for tool in catalog.tools] + descriptions
