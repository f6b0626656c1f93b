"""Executes references on a server twice. Those that fail are dropped; values that stay equal become facts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from art_langgraph.capture.scope import Scope, recording
from art_mcp.client.connect import Server
from art_mcp.client.result import CallResult
from art_mcp.scenarios.catalog import Catalog
from art_mcp.scenarios.observe import parsed, picked, problem, stable_facts
from art_mcp.scenarios.plan import MCPScenario, Observation, Step, is_reference
from art_mcp.scenarios.scenario_set import Dropped, drop

APART = 1.2
"""Seconds between the two executions of a reference, so that values that show the time differ."""

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


async def execute(
    server: Server,
    scenarios: Sequence[MCPScenario],
    catalog: Catalog,
    *,
    allow_destructive: bool = False,
    on_done: Callable[[], None] = lambda: None,
) -> tuple[list[MCPScenario], list[Dropped]]:
    """Executes every reference twice, one scenario after another. Those that work get observations and facts.

    The second execution may fail because the first one has changed the server. Such a scenario is kept without facts:
    only its calls are checked.

    Args:
        server: The server.
        scenarios: The scenarios.
        catalog: What the server offers.
        allow_destructive: Whether to call destructive tools (`CatalogTool.destructive`).
        on_done: Called after each execution: once for a scenario that fails, twice for the others.

    Returns:
        The scenarios that work, and the records of the others.
    """
    executed: list[tuple[MCPScenario, list[CallResult], float]] = []
    dropped: list[Dropped] = []
    for scenario in scenarios:
        try:
            steps = checked(scenario.plan.reference, catalog, allow_destructive)
            executed.append((scenario.with_plan(reference=steps), await perform(server, steps), time.monotonic()))
        except StepFailed as failed:
            dropped.append(drop(scenario, failed.kind, str(failed)))
        on_done()
    kept = []
    for scenario, results, ended in executed:
        await asyncio.sleep(max(0.0, ended + APART - time.monotonic()))
        reference = scenario.plan.reference
        again: list[CallResult] | None
        try:
            again = await perform(server, reference)
        except StepFailed:
            again = None
        needed = {need for step in reference for need in step.needs}
        observations = [_observation(result, index in needed) for index, result in enumerate(results)]
        kept.append(scenario.with_plan(observations=observations, facts=_facts(reference, results, again)))
        on_done()
    return kept, dropped


def checked(steps: Sequence[Step], catalog: Catalog, allow_destructive: bool) -> list[Step]:
    """Checks steps against the catalog, and fills in the defaults of arguments and whether each tool only reads.

    Args:
        steps: The steps of a reference.
        catalog: What the server offers.
        allow_destructive: Whether destructive tools may be called.

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
        if tool.destructive and not allow_destructive:
            reason = f"{tool.name} may destroy something: {tool.why_destructive}. allow_destructive=True calls it"
            raise StepFailed("destructive", reason)
        if any(not 0 <= need < index for need in step.needs):
            raise StepFailed("invalid", f"step {index + 1} takes a result of a step that does not come before it")
        properties = tool.input_schema.get("properties", {})
        defaults = {name: schema["default"] for name, schema in properties.items() if "default" in schema}
        filled.append(step.model_copy(update={"defaults": defaults, "reads": tool.reads}))
    return filled


async def perform(server: Server, steps: Sequence[Step]) -> list[CallResult]:
    """Executes steps in a rollout of their own, with its own session and its own position in a cassette.

    Returns:
        The result of each step.

    Raises:
        StepFailed: A call failed or gave nothing usable.
    """
    results: list[CallResult] = []
    async with AsyncExitStack() as stack:
        with recording(Scope(exits=stack), BaseCallbackHandler()):
            for index, step in enumerate(steps):
                result = await server.call(step.tool, resolved(step, results))
                if result.is_error:
                    raise StepFailed("error", f"call {index + 1}, {step.tool}: {result.text[:200]}")
                wrong = problem(result.text, parsed(result.text, result.structured))
                if wrong and not result.content:
                    raise StepFailed(wrong[0], f"call {index + 1}, {step.tool}: {wrong[1]}")
                results.append(result)
    return results


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


def _facts(steps: Sequence[Step], results: Sequence[CallResult], again: Sequence[CallResult] | None) -> list[str]:
    """Facts of the results that no later step takes. These results are what the task asks for.

    Args:
        steps: The steps of the reference.
        results: Results of the first execution.
        again: Results of the second execution. None: it failed, so that there are no facts.
    """
    if again is None:
        return []
    taken = {need for step in steps for need in step.needs}
    known = [value for index, step in enumerate(steps) for value in _values(resolved(step, results[:index]))]
    facts: list[str] = []
    for index, (first, second) in enumerate(zip(results, again, strict=True)):
        if index not in taken and not (first.content and first.structured is None):  # an answer cannot repeat a picture
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
