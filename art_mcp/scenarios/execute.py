"""Runs references against a server, twice: what errors or gives nothing is dropped, what stays equal is checkable."""

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
"""Seconds between the two executions of a reference: clocks that show seconds have moved on."""

SAMPLE = 2_000
"""Characters of a result that a scenario keeps, where no later step takes a value from it."""


class StepFailed(Exception):
    """A reference cannot be done. kind: as in Dropped."""

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
    """Runs every reference twice, one scenario after another; those that work get observations and facts.

    Destructive tools (`CatalogTool.destructive`) are not called unless `allow_destructive` is set. A second run that
    fails, because the first has changed the server, leaves a scenario whose calls alone are checked.
    """
    first: list[tuple[MCPScenario, list[CallResult], float]] = []
    dropped: list[Dropped] = []
    for one in scenarios:
        try:
            steps = checked(one.plan.reference, catalog, allow_destructive)
            first.append((one.with_plan(reference=steps), await perform(server, steps), time.monotonic()))
        except StepFailed as failed:
            dropped.append(drop(one, failed.kind, str(failed)))
        on_done()
    kept = []
    for one, results, ended in first:
        await asyncio.sleep(max(0.0, ended + APART - time.monotonic()))
        again: list[CallResult] | None
        try:
            again = await perform(server, one.plan.reference)
        except StepFailed:
            again = None
        needed = {need for step in one.plan.reference for need in step.needs}
        observations = [_observation(result, index in needed) for index, result in enumerate(results)]
        kept.append(one.with_plan(observations=observations, facts=_facts(one.plan.reference, results, again)))
        on_done()
    return kept, dropped


def checked(steps: Sequence[Step], catalog: Catalog, allow_destructive: bool) -> list[Step]:
    """The steps with what the catalog knows of their tools. Raises StepFailed for tools that are not there or may not
    be called, and for references to steps that do not come before."""
    found = []
    for index, step in enumerate(steps):
        tool = next((one for one in catalog.tools if one.name == step.tool), None)
        if tool is None:
            raise StepFailed("invalid", f"the server has no tool {step.tool!r}")
        if tool.destructive and not allow_destructive:
            raise StepFailed("destructive", f"{tool.name} may destroy something: allow it with allow_destructive=True")
        if any(not 0 <= need < index for need in step.needs):
            raise StepFailed("invalid", f"step {index + 1} takes a result of a step that does not come before it")
        properties = tool.input_schema.get("properties", {})
        defaults = {name: schema["default"] for name, schema in properties.items() if "default" in schema}
        found.append(step.model_copy(update={"defaults": defaults, "reads": tool.reads}))
    return found


async def perform(server: Server, steps: Sequence[Step]) -> list[CallResult]:
    """The results of a reference, in a rollout of its own: its session, its place on a tape. Raises StepFailed."""
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
    """The arguments of a step, with values of earlier results in place. Raises StepFailed."""
    found = {}
    for name, value in step.arguments.items():
        if is_reference(value):
            result = results[value["$step"]]
            try:
                value = picked(result.text, result.structured, value["path"])
            except (LookupError, TypeError):
                reason = f"{step.tool} takes {value['path']} of call {value['$step'] + 1}, which has no such value"
                raise StepFailed("error", reason) from None
        found[name] = value
    return found


def _facts(steps: Sequence[Step], results: Sequence[CallResult], again: Sequence[CallResult] | None) -> list[str]:
    """Facts of the results that no later step takes: those are what the task asks for."""
    if again is None:
        return []
    taken = {need for step in steps for need in step.needs}
    known = [value for index, step in enumerate(steps) for value in _values(resolved(step, results[:index]))]
    facts: list[str] = []
    for index, (one, other) in enumerate(zip(results, again, strict=True)):
        if index not in taken and not (one.content and one.structured is None):  # nobody repeats a picture
            found = stable_facts(parsed(one.text, one.structured), parsed(other.text, other.structured), known)
            facts += [fact for fact in found if fact not in facts]
    return facts


def _values(arguments: dict[str, Any]) -> list[Any]:
    return [one for value in arguments.values() for one in (value if isinstance(value, list) else [value])]


def _observation(result: CallResult, whole: bool) -> Observation:
    """whole: later steps take something from it, so that it must not be cut."""
    if whole:
        return Observation(text=result.text, structured=result.structured)
    keep = result.structured if len(str(result.structured)) <= SAMPLE else None
    return Observation(text=result.text[:SAMPLE], structured=keep)
