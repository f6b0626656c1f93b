"""Scenarios that a language model writes: rounds of drafts, which are executed until there are enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from art_langgraph.progress import progress_bar
from art_mcp.canonical import canonical
from art_mcp.client.connect import Server
from art_mcp.options import SetOptions
from art_mcp.scenarios.catalog import Catalog
from art_mcp.scenarios.drafting.explore import COLUMNS
from art_mcp.scenarios.lines import mentions
from art_mcp.scenarios.phrasing.answers import answer_of
from art_mcp.scenarios.plan import MCPScenario
from art_mcp.scenarios.scenario_set import DroppedTask, ScenarioSet, balance_scenarios, drop
from art_mcp.scenarios.trials import execute
from art_mcp.scenarios.writing.writer import NO_ANSWER, Writer
from trainer_server.wire import LLMError


@dataclass(frozen=True, kw_only=True)
class WritingOptions(SetOptions):
    """How long scenarios are generated, and what becomes of each.

    Args:
        on_kept: Called for each scenario when it is kept, so that an interrupted generation loses nothing.
        kept: Scenarios of an interrupted generation, of the same server and seed. They count, and stay in their sets.
        rounds: Maximum number of rounds in which the model is asked.
        budget: USD that each model may cost. None sets no limit.
        progress: Whether to show progress bars on a terminal.
    """

    on_kept: Callable[[MCPScenario], None] = lambda scenario: None
    kept: Sequence[MCPScenario] = ()
    rounds: int = 4
    budget: float | None = None
    progress: bool = True


async def write_scenarios(
    writer: Writer, server: Server | None, n: int, options: WritingOptions, *, until: float | None = None
) -> ScenarioSet:
    """Asks the writer for drafts and executes them, round after round, until `n` scenarios are kept.

    Args:
        writer: Asks the language model.
        server: Executes the drafts. None leaves them unexecuted.
        n: Maximum number of scenarios to keep.
        options: The options of the generation.
        until: Time of the event loop after which the model is not asked again. None: there is no such time.

    Returns:
        The set, which is not split yet.

    Raises:
        LLMError: The model failed before any scenario was kept.
    """
    scenarios = ScenarioSet(list(options.kept), offered=[tool.name for tool in writer.catalog.tools])
    usage, why = writer.llm.usage, ""
    while len(scenarios) < n and not why:
        try:
            drafts, invalid = await writer.drafts(n - len(scenarios), scenarios.scenarios, scenarios.dropped)
        except LLMError as error:
            if not scenarios.scenarios:
                raise
            why = str(error)
            break
        unique, duplicates = distinct([*scenarios.scenarios, *drafts], calls=True)
        more = await finish(
            server,
            writer.catalog,
            unique[len(scenarios) :],
            n - len(scenarios),
            until=until,
            allow_destructive=options.allow_destructive,
            progress=options.progress,
        )
        good, rejects = fill_answers(more.scenarios, [*scenarios.scenarios, *more.scenarios])
        scenarios.scenarios += good
        for scenario in good:
            options.on_kept(scenario)
        scenarios.dropped += [*invalid, *duplicates, *more.dropped, *rejects]
        scenarios.notes = [note for note in more.notes if note.startswith("not executed")]
        budget = options.budget
        if budget is not None and (usage.cost is None or usage.cost >= budget):
            price = f"the budget of {budget:g} USD is spent"
            why = (
                price if usage.cost is not None else f"no price of {writer.llm.model} is known, to hold it to a budget"
            )
        elif writer.rounds >= options.rounds:
            why = f"{options.rounds} rounds are over"
        elif until is not None and asyncio.get_running_loop().time() > until:
            why = "the time is over"
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
    until: float | None = None,
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
        until: Time of the event loop after which nothing is executed. None: there is no such time.
        allow_destructive: Whether to call tools that may change something.
        progress: Whether to show a progress bar on a terminal.

    Returns:
        The set, which is not split yet.
    """
    successes: list[MCPScenario] = []
    failures: list[MCPScenario] = []
    unique, rejects = distinct(drafts, calls=True)
    waiting = balance_scenarios(unique)
    notes = []
    if server is None:
        successes, waiting = waiting[:n], waiting[n:]
        notes.append("not executed: a catalog answers nothing, so only calls are checked, and some may fail")
    with progress_bar(*COLUMNS, shown=progress) as bar:
        task = bar.add_task("executing scenarios", total=2 * n)
        while server and waiting and len(successes) < n:
            order = balance_scenarios(
                waiting, after=[*successes, *failures]
            )  # failures count, so that other tools come first
            batch, waiting = order[: n - len(successes)], order[n - len(successes) :]
            good, bad = await execute(
                server,
                batch,
                catalog,
                allow_destructive=allow_destructive,
                on_done=lambda: bar.advance(task),
                until=until,
            )
            successes += good
            rejects += bad
            ids = {scenario.id for scenario in good}
            failures += [scenario for scenario in batch if scenario.id not in ids]
            bar.update(task, completed=2 * len(successes))
    rejects += [drop(scenario, "surplus", f"{n} scenarios are enough") for scenario in waiting]
    if len(successes) < n:
        notes.append(f"{len(successes)} of {n} scenarios: no more could be found; more values (resources) give more")
    return ScenarioSet(successes, rejects, [tool.name for tool in catalog.tools], notes)


def fill_answers(
    scenarios: Iterable[MCPScenario], all_scenarios: Iterable[MCPScenario]
) -> tuple[list[MCPScenario], list[DroppedTask]]:
    """Fills in what was answered to the first request of a task that follows up on one.

    Args:
        scenarios: Scenarios that were executed.
        all_scenarios: Scenarios among which the first requests are.

    Returns:
        The scenarios, and records of those whose first request is not known, or whose answer it gives away.
    """
    by_task = {
        scenario.task: scenario for scenario in all_scenarios if len(scenario.messages) == 1 and scenario.plan.executed
    }
    whole: list[MCPScenario] = []
    rejects: list[DroppedTask] = []
    for scenario in scenarios:
        if scenario.plan.kind != "follow_up" or scenario.messages[1]["content"] != NO_ANSWER:
            whole.append(scenario)
            continue
        request = scenario.messages[0]["content"]
        first = by_task.get(request)
        answer = answer_of(first) if first else ""
        if first is None:
            rejects.append(drop(scenario, "invalid", f"what was asked before could not be done: {request!r}"))
        elif any(mentions(answer, fact) for fact in scenario.plan.facts):
            rejects.append(drop(scenario, "invalid", "the answer was given before"))
        else:
            whole.append(MCPScenario.make(scenario.task, scenario.plan, [(request, answer)]))
    return whole, rejects


def distinct(drafts: Iterable[MCPScenario], calls: bool = False) -> tuple[list[MCPScenario], list[DroppedTask]]:
    """Removes near-duplicates: drafts with the same words as an earlier one.

    Args:
        drafts: The drafts. Of duplicates, the first is kept.
        calls: Whether drafts with the same calls are duplicates too.

    Returns:
        The drafts that are kept, and the records of the others.
    """
    unique: list[MCPScenario] = []
    rejects: list[DroppedTask] = []
    first_by_key: dict[str, MCPScenario] = {}
    for draft in drafts:
        keys = [f"text {draft.wording}", *([f"calls {signature(draft)}"] if calls and draft.tools else [])]
        for key in keys:
            if key in first_by_key:
                rejects.append(drop(draft, "duplicate", f"as {first_by_key[key].task!r}"))
                break
        else:
            unique.append(draft)
            first_by_key |= dict.fromkeys(keys, draft)
    return unique, rejects


def signature(scenario: MCPScenario) -> str:
    """A key that is the same for scenarios with the same calls. Case and spaces of texts are ignored."""
    steps = [[step["tool"], step["arguments"]] for step in scenario.metadata["mcp"]["reference"]]
    return " ".join(canonical(steps).casefold().split())
