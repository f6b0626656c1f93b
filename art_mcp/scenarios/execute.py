"""Executes the steps of a plan on a server, and keeps what the server gave."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from art_langgraph.capture.scope import Scope, recording
from art_mcp.canonical import canonical
from art_mcp.client.connect import Server
from art_mcp.client.in_world import WORLD_KEY
from art_mcp.client.result import CallResult
from art_mcp.scenarios.catalog import REMEDY, Catalog, CatalogTool, properties_of
from art_mcp.scenarios.lines import mentions
from art_mcp.scenarios.observe import parse_result, pick_value, problem
from art_mcp.scenarios.phrasing.sense import acts
from art_mcp.scenarios.plan import Observation, Reading, Step, is_reference
from art_mcp.worlds.change import Change

SAMPLE = 2_000
"""Characters of a result that a scenario keeps if neither a later step nor the answer needs the rest."""


class StepFailed(Exception):
    """A reference cannot be executed.

    Args:
        kind: One of the kinds of `DroppedTask`.
        reason: The reason as a sentence.
        message: What the server said. Empty: it said nothing.
        log: What the server wrote meanwhile, if the message says nothing of its own. No agent sees it.
    """

    def __init__(self, kind: str, reason: str, message: str = "", log: str = "") -> None:
        super().__init__(reason)
        self.kind = kind
        self.message = message or reason
        self.log = log


@dataclass(frozen=True, slots=True)
class Execution:
    """An execution of a reference.

    Args:
        steps: The steps. In a world, `reads` says of each whether it changed nothing there.
        results: The result of each step.
        changes: What was changed in the world. None: there is no world.
        shared: Whether other calls were made before in the same copy and the same server.
    """

    steps: list[Step]
    results: list[CallResult]
    changes: list[Change] | None
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """Two executions of the same calls.

    Args:
        first: The first execution.
        second: The second one. None: it failed, because the first has changed the server.
        changes: What both changed in the world. None: there is no world.
    """

    first: Execution
    second: Execution | None
    changes: list[Change] | None

    @property
    def steps(self) -> list[Step]:
        """The steps with what the execution told of them."""
        return self.first.steps

    def observations(self, facts: Iterable[str] = (), readings: Iterable[Reading] = ()) -> list[Observation]:
        """The results of the first execution. Those that a later step or the answer needs are whole, others are cut: a
        demonstration must show what its answer tells.

        Args:
            facts: Values that the answer mentions.
            readings: Values that it reads off the results. An empty path stands for the whole text.
        """
        results = self.first.results
        whole = {need for step in self.steps for need in step.needs}
        cut = [_cut(result) for result in results]
        for reading in readings:
            value = _pick_or_none(results[reading.step], reading)
            if value is None or canonical(value) != canonical(_pick_or_none(cut[reading.step], reading)):
                whole.add(reading.step)
        for fact in facts:
            if not any(mentions(result.text, fact) for result in cut):
                with_fact = {index for index, result in enumerate(results) if mentions(result.text, fact)}
                whole |= with_fact or set(range(len(results)))
        return [_whole(result) if index in whole else cut[index] for index, result in enumerate(results)]


def check_steps(steps: Sequence[Step], catalog: Catalog, allow_destructive: bool) -> list[Step]:
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
    complete = []
    for index, step in enumerate(steps):
        tool = next((tool for tool in catalog.tools if tool.name == step.tool), None)
        if tool is None:
            raise StepFailed("invalid", f"the server has no tool {step.tool!r}")
        if not (tool.reads or allow_destructive):
            raise StepFailed("destructive", f"{tool.name} may change something: {tool.why_changing}. {REMEDY}")
        if any(not 0 <= need < index for need in step.needs):
            raise StepFailed("invalid", f"step {index + 1} takes a result of a step that does not come before it")
        properties = properties_of(tool)
        defaults = {name: schema["default"] for name, schema in properties.items() if "default" in schema}
        complete.append(step.model_copy(update={"defaults": defaults, "reads": tool.reads}))
    return complete


async def perform(server: Server, steps: Sequence[Step], *, fail: bool = False) -> Execution:
    """Executes steps in a rollout of their own: with its own session, world, and position in a cassette.

    Args:
        server: The server.
        steps: The steps.
        fail: Whether the last step should give an error.

    Returns:
        The results and the changes.

    Raises:
        StepFailed: A call failed or gave nothing usable, or its world cannot be read.
    """
    try:
        async with rollout_of_its_own() as scope:
            history, results = await perform_here(server, steps, fail)
    except OSError as error:
        raise StepFailed("error", f"what it changed in its world cannot be read: {error}") from error
    world = scope.metadata.get(WORLD_KEY)
    changes = None if world is None else [Change.model_validate(change) for change in world["changes"]]
    return Execution(history, results, changes)


async def perform_here(server: Server, steps: Sequence[Step], fail: bool) -> tuple[list[Step], list[CallResult]]:
    """Executes steps in the current rollout. Returns them with what the execution told of each, and the results."""
    history: list[Step] = []
    results: list[CallResult] = []
    before = await server.changes()
    for index, step in enumerate(steps):
        wrong = fail and index == len(steps) - 1
        results.append(await performed_step(server, step, results, index, fail=wrong))
        after = await server.changes()
        history.append(step if after is None else step.model_copy(update={"reads": _only_read(step, after, before)}))
        before = after
    return history, results


@asynccontextmanager
async def rollout_of_its_own() -> AsyncIterator[Scope]:
    """A rollout that nobody records, for calls of ours. Yields its scope, whose metadata is complete at its end."""
    scope = Scope()
    async with AsyncExitStack() as stack:
        scope.exits = stack
        with recording(scope, BaseCallbackHandler()):
            yield scope


def is_act(tool: CatalogTool, changing: Container[str]) -> bool:
    """Whether a tool changes something: it was seen to, or its verb says so and nothing else that it only reads.

    Args:
        tool: The tool.
        changing: Names of the tools that were seen to change the world.
    """
    return tool.name in changing or (not tool.reads and acts(tool.name))


def _only_read(step: Step, after: list[Change], before: list[Change] | None) -> bool:
    """Whether a step changed nothing. A tool whose verb says that it acts may have changed what no world shows."""
    return after == before and (step.reads or not acts(step.tool))


async def performed_step(
    server: Server, step: Step, results: Sequence[CallResult], index: int = 0, *, fail: bool = False
) -> CallResult:
    """Executes a step in the current rollout.

    Args:
        server: The server.
        step: The step.
        results: Results of the earlier steps.
        index: Number of the step, for messages.
        fail: Whether the call should give an error.

    Raises:
        StepFailed: The call failed or gave nothing usable; or it did not, and `fail` was set.
    """
    result = await server.call(step.tool, resolve_arguments(step, results))
    if fail:
        wrong = problem(result.text, parse_result(result.text, result.structured))
        if result.failure or not (result.is_error or (wrong and wrong[0] == "error")):
            raise StepFailed("invalid", f"call {index + 1}, {step.tool}: it gave no error")
        return result
    if result.is_error:
        raise StepFailed("error", f"call {index + 1}, {step.tool}: {result.reason}", result.text, result.server_log)
    wrong = problem(result.text, parse_result(result.text, result.structured))
    if wrong and not result.content:
        raise StepFailed(wrong[0], f"call {index + 1}, {step.tool}: {wrong[1]}", result.text)
    return result


def resolve_arguments(step: Step, results: Sequence[CallResult | Observation]) -> dict[str, Any]:
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
                value = pick_value(result.text, result.structured, value["path"])
            except (LookupError, TypeError):
                reason = f"{step.tool} takes {value['path']} of call {value['$step'] + 1}, which has no such value"
                raise StepFailed("error", reason) from None
        arguments[name] = value
    return arguments


def _whole(result: CallResult) -> Observation:
    """A result as a scenario keeps it."""
    return Observation(text=result.text, structured=result.structured, is_error=result.is_error)


def _cut(result: CallResult) -> Observation:
    """The beginning of a result."""
    keep = result.structured if len(str(result.structured)) <= SAMPLE else None
    return Observation(text=result.text[:SAMPLE], structured=keep, is_error=result.is_error)


def _pick_or_none(result: CallResult | Observation, reading: Reading) -> Any:
    """What a result has where a value is read off. None: it has nothing there."""
    try:
        return pick_value(result.text, result.structured, reading.path)
    except (LookupError, TypeError):
        return None
