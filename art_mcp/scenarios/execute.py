"""Executes references on a server twice. Those that fail are dropped; values that stay equal become facts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from art_langgraph.capture.scope import Scope, recording
from art_mcp.client.connect import Server
from art_mcp.client.in_world import WORLD_KEY
from art_mcp.client.result import CallResult
from art_mcp.scenarios.catalog import REMEDY, Catalog
from art_mcp.scenarios.observe import parsed, picked, problem, stable_facts
from art_mcp.scenarios.plan import MCPScenario, Observation, Step, is_reference
from art_mcp.scenarios.scenario_set import Dropped, drop
from art_mcp.worlds.change import Change, agreed

APART = 1.2
"""Seconds between the two executions of a reference, so that values that show the time differ."""

AT_ONCE = 2 * (os.cpu_count() or 1)
"""Executions at the same time, if each has a world of its own. Half of them wait for a server to start."""

SAMPLE = 2_000
"""Characters of a result that a scenario keeps if no later step takes a value from it."""


class StepFailed(Exception):
    """A reference cannot be executed.

    Args:
        kind: One of the kinds of `Dropped`.
        reason: The reason as a sentence.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Execution:
    """An execution of a reference.

    Args:
        steps: The steps. In a world, `reads` says of each whether it changed nothing there.
        results: The result of each step.
        changes: What was changed in the world. None: there is no world.
    """

    steps: list[Step]
    results: list[CallResult]
    changes: list[Change] | None


async def execute(
    server: Server,
    scenarios: Sequence[MCPScenario],
    catalog: Catalog,
    *,
    allow_destructive: bool = False,
    on_done: Callable[[], None] = lambda: None,
) -> tuple[list[MCPScenario], list[Dropped]]:
    """Executes every reference twice. Those that work get observations, facts and changes.

    With a world, each execution has a copy of its own, and several run at once. Both must have changed the same.
    Without one they run one after another, and the second may fail because the first has changed the server. Such a
    scenario is kept without facts: only its calls are checked.

    Args:
        server: The server.
        scenarios: The scenarios.
        catalog: What the server offers.
        allow_destructive: Whether to call tools that may change something where the change would stay
            (`Server.disposable`).
        on_done: Called after each execution: once for a scenario that fails, twice for the others.

    Returns:
        The scenarios that work, and the records of the others.
    """
    turns = asyncio.Semaphore(AT_ONCE if server.world else 1)
    allowed = allow_destructive or server.disposable

    async def first(scenario: MCPScenario) -> tuple[Execution, float] | Dropped:
        async with turns:
            try:
                steps = checked(scenario.plan.reference, catalog, allowed)
                return await perform(server, steps), time.monotonic()
            except StepFailed as failed:
                return drop(scenario, failed.kind, str(failed))
            finally:
                on_done()

    async def second(scenario: MCPScenario, done: Execution, ended: float) -> MCPScenario | Dropped:
        await asyncio.sleep(max(0.0, ended + APART - time.monotonic()))
        async with turns:
            try:
                again = await perform(server, done.steps)
            except StepFailed as failed:
                if server.disposable:  # nothing of the first execution was left
                    return drop(scenario, "unstable", f"the second time it failed: {failed}")
                again = None
            finally:
                on_done()
        return _executed(scenario, done, again)

    firsts = await asyncio.gather(*map(first, scenarios))
    worked = [(scenario, *done) for scenario, done in zip(scenarios, firsts, strict=True) if isinstance(done, tuple)]
    outcomes = [
        *(done for done in firsts if isinstance(done, Dropped)),
        *await asyncio.gather(*(second(*each) for each in worked)),
    ]
    kept = [outcome for outcome in outcomes if isinstance(outcome, MCPScenario)]
    return kept, [outcome for outcome in outcomes if isinstance(outcome, Dropped)]


def _executed(scenario: MCPScenario, done: Execution, again: Execution | None) -> MCPScenario | Dropped:
    """The scenario with what both executions tell. again: None if the second one failed."""
    changes = done.changes
    if changes is not None and again is not None:
        changes = agreed(changes, again.changes or [])
        if changes is None:
            return drop(scenario, "unstable", "the two executions changed different things in the world")
    needed = {need for step in done.steps for need in step.needs}
    observations = [_observation(result, index in needed) for index, result in enumerate(done.results)]
    facts = _facts(done, again.results) if again else []
    return scenario.with_plan(reference=done.steps, observations=observations, facts=facts, changes=changes)


def checked(steps: Sequence[Step], catalog: Catalog, allow_destructive: bool) -> list[Step]:
    """Checks steps against the catalog, and fills in the defaults of arguments and whether each tool only reads.

    Args:
        steps: The steps of a reference.
        catalog: What the server offers.
        allow_destructive: Whether tools that may change something may be called.

    Returns:
        The steps with `defaults` and `reads` filled in.

    Raises:
        StepFailed: A tool is missing or may not be called, or a step takes a result of a step that is not earlier.
    """
    filled = []
    for index, step in enumerate(steps):
        tool = next((tool for tool in catalog.tools if tool.name == step.tool), None)
        if tool is None:
            raise StepFailed("invalid", f"the server has no tool {step.tool!r}")
        if not (tool.reads or allow_destructive):
            raise StepFailed("destructive", f"{tool.name} may change something: {tool.why_changing}. {REMEDY}")
        if any(not 0 <= need < index for need in step.needs):
            raise StepFailed("invalid", f"step {index + 1} takes a result of a step that does not come before it")
        properties = tool.input_schema.get("properties", {})
        defaults = {name: schema["default"] for name, schema in properties.items() if "default" in schema}
        filled.append(step.model_copy(update={"defaults": defaults, "reads": tool.reads}))
    return filled


async def perform(server: Server, steps: Sequence[Step]) -> Execution:
    """Executes steps in a rollout of their own: with its own session, world, and position in a cassette.

    Returns:
        The results and the changes.

    Raises:
        StepFailed: A call failed or gave nothing usable, or its world cannot be read.
    """
    performed: list[Step] = []
    results: list[CallResult] = []
    before: list[Change] | None = []
    try:
        async with rollout_of_its_own() as scope:
            for index, step in enumerate(steps):
                results.append(await performed_step(server, step, results, index))
                after = await server.changes()
                performed.append(step if after is None else step.model_copy(update={"reads": after == before}))
                before = after
    except OSError as error:
        raise StepFailed("error", f"what it changed in its world cannot be read: {error}") from error
    found = scope.metadata.get(WORLD_KEY)
    changes = None if found is None else [Change.model_validate(change) for change in found["changes"]]
    return Execution(performed, results, changes)


@asynccontextmanager
async def rollout_of_its_own() -> AsyncIterator[Scope]:
    """A rollout that nobody records, for calls of ours. Yields its scope, whose metadata is complete at its end."""
    scope = Scope()
    async with AsyncExitStack() as stack:
        scope.exits = stack
        with recording(scope, BaseCallbackHandler()):
            yield scope


async def performed_step(server: Server, step: Step, results: Sequence[CallResult], index: int = 0) -> CallResult:
    """Executes a step in the current rollout.

    Args:
        server: The server.
        step: The step.
        results: Results of the earlier steps.
        index: Number of the step, for messages.

    Raises:
        StepFailed: The call failed or gave nothing usable.
    """
    result = await server.call(step.tool, resolved(step, results))
    if result.is_error:
        raise StepFailed("error", f"call {index + 1}, {step.tool}: {result.text[:200]}")
    wrong = problem(result.text, parsed(result.text, result.structured))
    if wrong and not result.content:
        raise StepFailed(wrong[0], f"call {index + 1}, {step.tool}: {wrong[1]}")
    return result


def resolved(step: Step, results: Sequence[CallResult | Observation]) -> dict[str, Any]:
    """The arguments of a step with references replaced by values of earlier results.

    Args:
        step: The step.
        results: Results of the earlier steps.

    Raises:
        StepFailed: A result has no such value.
    """
    arguments = {}
    for name, value in step.arguments.items():
        if is_reference(value):
            result = results[value["$step"]]
            try:
                value = picked(result.text, result.structured, value["path"])
            except (LookupError, TypeError):
                reason = f"{step.tool} takes {value['path']} of call {value['$step'] + 1}, which has no such value"
                raise StepFailed("error", reason) from None
        arguments[name] = value
    return arguments


def _facts(done: Execution, again: Sequence[CallResult]) -> list[str]:
    """Facts of the results that no later step takes. These results are what the task asks for. What a call says that
    changed the world is not: the change is checked.

    Args:
        done: The first execution.
        again: Results of the second execution.
    """
    taken = {need for step in done.steps for need in step.needs}
    known = [value for at, step in enumerate(done.steps) for value in _values(resolved(step, done.results[:at]))]
    facts: list[str] = []
    for index, (step, first, second) in enumerate(zip(done.steps, done.results, again, strict=True)):
        acted = done.changes is not None and not step.reads
        if index in taken or acted or (first.content and first.structured is None):  # nobody repeats a picture
            continue
        stable = stable_facts(parsed(first.text, first.structured), parsed(second.text, second.structured), known)
        facts += [fact for fact in stable if fact not in facts]
    return facts


def _values(arguments: dict[str, Any]) -> list[Any]:
    """The values of arguments, with lists flattened."""
    return [item for value in arguments.values() for item in (value if isinstance(value, list) else [value])]


def _observation(result: CallResult, whole: bool) -> Observation:
    """The part of a result that a scenario keeps. whole: later steps take a value from it, so that it is not cut."""
    if whole:
        return Observation(text=result.text, structured=result.structured)
    keep = result.structured if len(str(result.structured)) <= SAMPLE else None
    return Observation(text=result.text[:SAMPLE], structured=keep)
