"""A server in, scenarios out: drafted, executed, without duplicates, balanced over the tools, split."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from art_langgraph.llm.llm import LLM, Model
from art_mcp.client.connect import Server, connect
from art_mcp.scenarios.catalog import Catalog, read_catalog
from art_mcp.scenarios.execute import StepFailed, execute, perform
from art_mcp.scenarios.observe import parsed
from art_mcp.scenarios.plan import MCPScenario, Step
from art_mcp.scenarios.scenario_set import Dropped, ScenarioSet, balanced, drop
from art_mcp.scenarios.tables import Resources, tables_of
from art_mcp.scenarios.templates import Templates, signature
from art_mcp.scenarios.values import NoValue, Values
from art_mcp.scenarios.writer import Writer
from trainer_server.wire import ConfigError, LLMError

log = logging.getLogger("art_mcp")

DRAFTS = 6
"""Drafts for each scenario that is wanted: some fail, and the rest are chosen from for balance."""

ROUNDS = 3
"""Rounds of looking around: what one tool gives, another one may take."""

LOOKS = 4
"""Calls of one tool in a round; one that took longer than SLOW is not called again."""

SLOW = 2.0
"""Seconds."""

_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())


async def generate_scenarios(
    server: Server | Catalog | str | Sequence[str],
    n: int = 24,
    *,
    model: Model | None = None,
    difficulty: tuple[int, int] = (1, 5),
    seed: int = 0,
    instructions: str | None = None,
    resources: Resources | None = None,
    allow_destructive: bool = False,
    validation: float = 0.25,
    rounds: int = 4,
    budget: float | None = None,
    progress: bool = True,
) -> ScenarioSet:
    """Generates tasks for a server, executes a reference solution of each, and keeps those that work.

    The same seed gives the same scenarios, where the server answers the same.

    Args:
        server: A connected server, or what `connect` takes. From a bare catalog nothing can be executed: the set then
            holds drafts, and a note says so.
        n: Scenarios to keep at most.
        model: Language model that writes the scenarios ("provider/name", an LLM, or a LangChain chat model). It is
            asked again until there are enough, `rounds` are over, or `budget` is spent. None drafts them from schemas
            alone.
        difficulty: Least and greatest difficulty, from 1 to 5.
        seed: Of drafts and of the split.
        instructions: What the model should heed besides the catalog.
        resources: Values by the name of a parameter, or files of them (`load_tables`).
        allow_destructive: Whether tools are called that may destroy something (`CatalogTool.destructive`).
        validation: Share of the scenarios that is held out from training.
        rounds: How often the model is asked at most.
        budget: USD that the model may cost. None sets no limit.
        progress: Whether bars are shown on a terminal.

    Returns:
        The scenarios, divided into training and validation, and what was dropped with the reasons.

    Raises:
        ConfigError: Settings that cannot be.
        MCPError: The server cannot be used.
        LLMError: The model failed before anything was kept.
    """
    if isinstance(server, str) or not isinstance(server, Server | Catalog):
        async with connect(server) as connected:
            return await generate_scenarios(
                connected,
                n,
                model=model,
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
    low, high = difficulty
    if n < 1 or not 1 <= low <= high <= 5 or not 0 <= validation < 1:
        raise ConfigError(f"n={n}, difficulty={difficulty}, validation={validation}: n ≥ 1, 1 ≤ low ≤ high ≤ 5, 0 to 1")
    catalog = server if isinstance(server, Catalog) else await read_catalog(server)
    live = server if isinstance(server, Server) else None
    rng = random.Random(f"scenarios-{seed}")
    tables = tables_of(resources)
    values = Values(catalog, tables, rng)
    tools = [tool for tool in catalog.tools if allow_destructive or not tool.destructive]
    templates = Templates(catalog, tools, values, rng)
    if live:
        await _look_around(live, catalog, templates, values, progress)
    options: dict[str, Any] = {"allow_destructive": allow_destructive, "progress": progress}
    if model is None or not tools:
        drafts = islice(templates.drafts(low, high), DRAFTS * n) if tools else iter(())
        found = await finish(live, catalog, drafts, n, **options)
    else:
        writer = Writer(LLM.of(model), catalog, tools, difficulty, seed, instructions, templates.observed, tables)
        found = await _written(writer, live, n, rounds, budget, **options)
    if withheld := [tool.name for tool in catalog.tools if tool not in tools]:
        found.notes.append(f"not called, as they may destroy something: {', '.join(withheld)}")
    return found.split(validation, seed)


async def _written(
    writer: Writer, server: Server | None, n: int, rounds: int, budget: float | None, **options: Any
) -> ScenarioSet:
    """Rounds of drafts, each finished, until `n` are good."""
    found = ScenarioSet(offered=[tool.name for tool in writer.catalog.tools])
    usage, why = writer.llm.usage, ""
    while len(found) < n and not why:
        try:
            drafts, invalid = await writer.drafts(n - len(found), found.scenarios, found.dropped)
        except LLMError as error:
            if not found.scenarios:
                raise
            why = str(error)
            break
        unique, repeated = distinct([*found.scenarios, *drafts])
        more = await finish(server, writer.catalog, unique[len(found) :], n - len(found), **options)
        found.scenarios += more.scenarios
        found.dropped += [*invalid, *repeated, *more.dropped]
        found.notes = [note for note in more.notes if note.startswith("not executed")]
        if budget is not None and (usage.cost is None or usage.cost >= budget):
            price = f"the budget of {budget:g} USD is spent"
            why = (
                price if usage.cost is not None else f"no price of {writer.llm.model} is known, to hold it to a budget"
            )
        elif writer.rounds >= rounds:
            why = f"{rounds} rounds are over"
    if len(found) < n:
        found.notes.append(f"{len(found)} of {n} scenarios: {why}")
    times = "1 round" if writer.rounds == 1 else f"{writer.rounds} rounds"
    found.notes.append(f"written by {writer.llm.model} in {times}: {usage}")
    return found


async def finish(
    server: Server | None,
    catalog: Catalog,
    drafts: Iterable[MCPScenario],
    n: int,
    *,
    allow_destructive: bool = False,
    progress: bool = True,
) -> ScenarioSet:
    """From drafts to a set: duplicates out, executed until `n` are good, tools used about equally often.

    Args:
        server: Executes the drafts. None leaves them unexecuted.
        catalog: What the server offers.
        drafts: Scenarios that were not executed yet.
        n: Scenarios to keep at most.
        allow_destructive: Whether tools are called that may destroy something.
        progress: Whether a bar is shown on a terminal.

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
    with Progress(*_COLUMNS, transient=True, disable=not progress) as bar:
        task = bar.add_task("executing scenarios", total=2 * n)
        while server and waiting and len(kept) < n:
            order = balanced(waiting, after=[*kept, *failed])  # not the tools again and again that fail
            batch, waiting = order[: n - len(kept)], order[n - len(kept) :]
            good, bad = await execute(
                server, batch, catalog, allow_destructive=allow_destructive, on_done=lambda: bar.advance(task)
            )
            kept += good
            dropped += bad
            ids = {one.id for one in good}
            failed += [one for one in batch if one.id not in ids]
            bar.update(task, completed=2 * len(kept))
    dropped += [drop(one, "surplus", f"{n} scenarios are enough") for one in waiting]
    if len(kept) < n:
        notes.append(f"{len(kept)} of {n} scenarios: no more could be found; more values (resources) give more")
    return ScenarioSet(kept, dropped, [tool.name for tool in catalog.tools], notes)


def distinct(drafts: Iterable[MCPScenario]) -> tuple[list[MCPScenario], list[Dropped]]:
    """Without near-duplicates: those that ask for the same calls, and those with the same words."""
    kept: list[MCPScenario] = []
    dropped: list[Dropped] = []
    seen: dict[str, MCPScenario] = {}
    for one in drafts:
        said = " ".join("".join(c if c.isalnum() else " " for c in one.task.casefold()).split())
        for key in (f"calls {signature(one)}", f"text {said}"):
            if key in seen:
                dropped.append(drop(one, "duplicate", f"as {seen[key].task!r}"))
                break
        else:
            kept.append(one)
            seen[f"calls {signature(one)}"] = seen[f"text {said}"] = one
    return kept, dropped


async def _look_around(server: Server, catalog: Catalog, templates: Templates, values: Values, progress: bool) -> None:
    """Calls tools that only read, with arguments that are known to be right, to learn values for the others."""
    looked: set[str] = set()
    slow: set[str] = set()
    reading = [
        tool for tool in catalog.tools if not (tool.destructive or tool.annotations.get("readOnlyHint") is False)
    ]
    with Progress(*_COLUMNS, transient=True, disable=not progress) as bar:
        for tool in bar.track(reading * ROUNDS, description="looking around"):
            for _ in range(LOOKS):
                try:
                    step = Step(tool=tool.name, arguments=values.arguments(tool, guess=False))
                except NoValue:
                    break
                if (key := step.model_dump_json()) in looked or tool.name in slow:
                    continue
                looked.add(key)
                started = time.monotonic()
                try:
                    [result] = await perform(server, [step])
                except StepFailed as failed:
                    log.debug("looking around: %s", failed)
                    continue
                finally:
                    if time.monotonic() - started > SLOW:
                        slow.add(tool.name)
                value = parsed(result.text, result.structured)
                values.learn(tool.name, value)
                templates.observed.setdefault(tool.name, []).append((step.arguments, value))
