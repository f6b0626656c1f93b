"""Generates scenarios for an MCP server: drafts, removal of duplicates, execution, balance over the tools, split."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from itertools import islice
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from art_langgraph.llm.llm import LLM, Model
from art_langgraph.progress import progress_bar
from art_mcp.client.connect import Server, connect
from art_mcp.client.reset import Reset
from art_mcp.scenarios.catalog import REMEDY, Catalog, read_catalog, withheld
from art_mcp.scenarios.execute import StepFailed, execute, performed_step, rollout_of_its_own
from art_mcp.scenarios.observe import parsed
from art_mcp.scenarios.plan import MCPScenario, Step
from art_mcp.scenarios.scenario_set import Dropped, ScenarioSet, balanced, drop
from art_mcp.scenarios.tables import Resources, tables_of
from art_mcp.scenarios.templates import Templates, signature
from art_mcp.scenarios.values import NoValue, Values
from art_mcp.scenarios.writer import Writer
from art_mcp.worlds.place import Worlds
from trainer_server.wire import ConfigError, LLMError
from trainer_server.wire.jsonl import to_json

log = logging.getLogger("art_mcp")

DRAFTS = 6
"""Drafts for each wanted scenario. Some fail; the others are chosen so that the tools are balanced."""

ROUNDS = 3
"""Exploration rounds: results of one round can be arguments of calls in the next."""

LOOKS = 4
"""Calls of each tool in an exploration round. A tool that took longer than SLOW is not called again."""

SLOW = 2.0
"""Seconds after which a call counts as slow."""

_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())


async def generate_scenarios(
    server: Server | Catalog | str | Sequence[str],
    n: int | None = None,
    *,
    model: Model | None = None,
    paraphrase: Model | None = None,
    seconds: float = 120.0,
    on_kept: Callable[[MCPScenario], None] = lambda scenario: None,
    difficulty: tuple[int, int] = (1, 5),
    seed: int = 0,
    instructions: str | None = None,
    resources: Resources | None = None,
    allow_destructive: bool = False,
    validation: float = 0.25,
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
        difficulty: Least and greatest difficulty, from 1 to 5.
        seed: Seed of the drafts and of the split.
        instructions: Additional instructions for the model. None adds nothing to the catalog.
        resources: Values by the name of a parameter, or files of them (`load_tables`).
        allow_destructive: Whether to call tools that may change something (`CatalogTool.why_changing`) also where the
            change would stay: without worlds and reset.
        validation: Share of the scenarios to hold out from training, from 0 to 1.
        rounds: Maximum number of rounds in which the model is asked.
        budget: USD that the model may cost. None sets no limit.
        progress: Whether to show progress bars on a terminal.
        worlds: What the server works on, as `connect` takes it: each execution gets a copy. A connected server has it.
        reset: Resets the server before each execution, as `connect` takes it. A connected server has it.

    Returns:
        The scenarios, split into training and validation, and the dropped tasks with the reasons.

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
                difficulty=difficulty,
                seed=seed,
                instructions=instructions,
                resources=resources,
                allow_destructive=allow_destructive,
                validation=validation,
                rounds=rounds,
                budget=budget,
                progress=progress,
            )
    if worlds is not None or reset is not None:
        raise ConfigError("worlds= and reset= are for a server to connect to: give them to `connect`")
    low, high = difficulty
    n = 96 if n is None else n
    if n < 1 or not 1 <= low <= high <= 5 or not 0 <= validation < 1:
        raise ConfigError(f"n={n}, difficulty={difficulty}, validation={validation}: n ≥ 1, 1 ≤ low ≤ high ≤ 5, 0 to 1")
    catalog = server if isinstance(server, Catalog) else await read_catalog(server)
    live = server if isinstance(server, Server) else None
    rng = random.Random(f"scenarios-{seed}")
    world = live.world if live else None
    tables = {name: world.aliases.value(given) if world else given for name, given in tables_of(resources).items()}
    values = Values(catalog, tables, rng)
    if world:
        values.learn_places(world.places)
    allowed = allow_destructive or bool(live and live.disposable)
    tools = [tool for tool in catalog.tools if allowed or tool.reads]
    templates = Templates(catalog, tools, values, rng)
    useless = await _look_around(live, catalog, templates, values, progress) if live else {}
    options: dict[str, Any] = {"allow_destructive": allowed, "progress": progress}
    if model is None or not tools:
        drafts = islice(templates.drafts(low, high), DRAFTS * n) if tools else iter(())
        scenarios = await finish(live, catalog, drafts, n, **options)
    else:
        writer = Writer(LLM.of(model), catalog, tools, difficulty, seed, instructions, templates.observed, tables)
        scenarios = await _written(writer, live, n, rounds, budget, **options)
    if not allowed and (left_out := withheld(catalog.tools)):
        scenarios.notes.append(f"{left_out}. {REMEDY}")
    if world:
        scenarios.notes += [f"each execution had a copy of {world}", *world.notes]
    if useless:
        listed = "; ".join(f"{tool}: {reason}" for tool, reason in useless.items())
        scenarios.notes.append(f"gave nothing usable when they were tried out: {listed}")
    scenarios = scenarios.split(validation, seed)
    for scenario in scenarios.scenarios:
        on_kept(scenario)
    return scenarios


async def _written(
    writer: Writer, server: Server | None, n: int, rounds: int, budget: float | None, **options: Any
) -> ScenarioSet:
    """Asks the writer for drafts and executes them, round after round, until `n` scenarios are kept.

    Args:
        writer: Asks the language model.
        server: Executes the drafts. None leaves them unexecuted.
        n: Maximum number of scenarios to keep.
        rounds: Maximum number of rounds.
        budget: USD that the model may cost. None sets no limit.
        **options: Options of `finish`.

    Raises:
        LLMError: The model failed before any scenario was kept.
    """
    scenarios = ScenarioSet(offered=[tool.name for tool in writer.catalog.tools])
    usage, why = writer.llm.usage, ""
    while len(scenarios) < n and not why:
        try:
            drafts, invalid = await writer.drafts(n - len(scenarios), scenarios.scenarios, scenarios.dropped)
        except LLMError as error:
            if not scenarios.scenarios:
                raise
            why = str(error)
            break
        unique, repeated = distinct([*scenarios.scenarios, *drafts])
        more = await finish(server, writer.catalog, unique[len(scenarios) :], n - len(scenarios), **options)
        scenarios.scenarios += more.scenarios
        scenarios.dropped += [*invalid, *repeated, *more.dropped]
        scenarios.notes = [note for note in more.notes if note.startswith("not executed")]
        if budget is not None and (usage.cost is None or usage.cost >= budget):
            price = f"the budget of {budget:g} USD is spent"
            why = (
                price if usage.cost is not None else f"no price of {writer.llm.model} is known, to hold it to a budget"
            )
        elif writer.rounds >= rounds:
            why = f"{rounds} rounds are over"
    if len(scenarios) < n:
        scenarios.notes.append(f"{len(scenarios)} of {n} scenarios: {why}")
    times = "1 round" if writer.rounds == 1 else f"{writer.rounds} rounds"
    scenarios.notes.append(f"written by {writer.llm.model} in {times}: {usage}")
    return scenarios


async def finish(
    server: Server | None,
    catalog: Catalog,
    drafts: Iterable[MCPScenario],
    n: int,
    *,
    allow_destructive: bool = False,
    progress: bool = True,
) -> ScenarioSet:
    """Makes a set of drafts: removes duplicates, and executes drafts until `n` have worked.

    Drafts are executed in an order that uses the tools about equally often.

    Args:
        server: Executes the drafts. None leaves them unexecuted.
        catalog: What the server offers.
        drafts: Scenarios that were not executed yet.
        n: Maximum number of scenarios to keep.
        allow_destructive: Whether to call tools that may change something.
        progress: Whether to show a progress bar on a terminal.

    Returns:
        The set, which is not split yet.
    """
    kept: list[MCPScenario] = []
    failed: list[MCPScenario] = []
    unique, dropped = distinct(drafts)
    waiting = balanced(unique)
    notes = []
    if server is None:
        kept, waiting = waiting[:n], waiting[n:]
        notes.append("not executed: a catalog answers nothing, so only calls are checked, and some may fail")
    with progress_bar(*_COLUMNS, shown=progress) as bar:
        task = bar.add_task("executing scenarios", total=2 * n)
        while server and waiting and len(kept) < n:
            order = balanced(waiting, after=[*kept, *failed])  # failures count, so that other tools come first
            batch, waiting = order[: n - len(kept)], order[n - len(kept) :]
            good, bad = await execute(
                server, batch, catalog, allow_destructive=allow_destructive, on_done=lambda: bar.advance(task)
            )
            kept += good
            dropped += bad
            ids = {scenario.id for scenario in good}
            failed += [scenario for scenario in batch if scenario.id not in ids]
            bar.update(task, completed=2 * len(kept))
    dropped += [drop(scenario, "surplus", f"{n} scenarios are enough") for scenario in waiting]
    if len(kept) < n:
        notes.append(f"{len(kept)} of {n} scenarios: no more could be found; more values (resources) give more")
    return ScenarioSet(kept, dropped, [tool.name for tool in catalog.tools], notes)


def distinct(drafts: Iterable[MCPScenario]) -> tuple[list[MCPScenario], list[Dropped]]:
    """Removes near-duplicates: drafts with the same calls or with the same words as an earlier one.

    Args:
        drafts: The drafts. Of duplicates, the first is kept.

    Returns:
        The drafts that are kept, and the records of the others.
    """
    kept: list[MCPScenario] = []
    dropped: list[Dropped] = []
    seen: dict[str, MCPScenario] = {}
    for draft in drafts:
        text = " ".join("".join(c if c.isalnum() else " " for c in draft.task.casefold()).split())
        for key in (f"calls {signature(draft)}", f"text {text}"):
            if key in seen:
                dropped.append(drop(draft, "duplicate", f"as {seen[key].task!r}"))
                break
        else:
            kept.append(draft)
            seen[f"calls {signature(draft)}"] = seen[f"text {text}"] = draft
    return kept, dropped


async def _look_around(
    server: Server, catalog: Catalog, templates: Templates, values: Values, progress: bool
) -> dict[str, str]:
    """Calls tools with known values as arguments, to learn values for other tools.

    Without a world only tools that only read are called. With one, all are: the calls share a copy until one of them
    changes something there; the next call gets a new copy. The results go to `values` and to `templates.observed`.
    Calls that fail are skipped.

    Returns:
        Why a call failed, by the name of the tool, for tools of which every call failed.
    """
    called: set[str] = set()
    failures: dict[str, str] = {}
    slow: set[str] = set()
    looked = [tool for tool in catalog.tools if tool.reads or server.world]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(rollout_of_its_own())
        with progress_bar(*_COLUMNS, shown=progress) as bar:
            for tool in bar.track(looked * ROUNDS, description="looking around"):
                for _ in range(LOOKS):
                    try:
                        step = Step(tool=tool.name, arguments=values.arguments(tool, guess=False))
                    except NoValue:
                        break
                    if (key := to_json(step)) in called or tool.name in slow:
                        continue
                    called.add(key)
                    started = time.monotonic()
                    try:
                        result = await performed_step(server, step, [])
                    except StepFailed as failed:
                        log.debug("looking around: %s", failed)
                        failures.setdefault(tool.name, str(failed))
                        continue
                    finally:
                        if time.monotonic() - started > SLOW:
                            slow.add(tool.name)
                        if await server.changes():
                            await stack.aclose()
                            await stack.enter_async_context(rollout_of_its_own())
                    value = parsed(result.text, result.structured)
                    values.learn(tool.name, value)
                    templates.observed.setdefault(tool.name, []).append((step.arguments, value))
    return {tool: reason for tool, reason in failures.items() if tool not in templates.observed}
