"""Executes references on a server twice. Those that fail are dropped; values that stay equal become facts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from art_langgraph.capture.scope import Scope, recording
from art_mcp.canonical import canonical
from art_mcp.client.connect import Server
from art_mcp.client.in_world import WORLD_KEY
from art_mcp.client.result import CallResult
from art_mcp.scenarios.catalog import REMEDY, Catalog, properties_of
from art_mcp.scenarios.lines import mentions
from art_mcp.scenarios.observe import changes_with_time, is_local, parse_result, pick_value, problem, stable_facts
from art_mcp.scenarios.phrasing.sense import acts
from art_mcp.scenarios.plan import MCPScenario, Observation, Reading, Step, is_reference
from art_mcp.scenarios.scenario_set import DroppedTask, drop
from art_mcp.worlds.change import Change, merge_changes

APART = 1.2
"""Seconds between the two executions of a reference, so that values that show the time differ."""

AT_ONCE = 2 * (os.cpu_count() or 1)
"""Executions at the same time, if each has a world of its own. Half of them wait for a server to start."""

BATCH = 12
"""Plans that share a copy of the world, at most."""

MAX_ASKED = 64
"""Characters of a value that a written task asks for, at most."""

SAMPLE = 2_000
"""Characters of a result that a scenario keeps if neither a later step nor the answer needs the rest."""


class StepFailed(Exception):
    """A reference cannot be executed.

    Args:
        kind: One of the kinds of `DroppedTask`.
        reason: The reason as a sentence.
        message: What the server said. Empty: it said nothing.
    """

    def __init__(self, kind: str, reason: str, message: str = "") -> None:
        super().__init__(reason)
        self.kind = kind
        self.message = message or reason


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


class Trials:
    """Executes calls on a server, twice each.

    With a world, each execution has a copy of its own, and several run at once. Both must have changed the same.
    Without one they run one after another, and the second may fail because the first has changed the server.

    Args:
        server: The server.
        catalog: What it offers.
        allow_destructive: Whether to call tools that may change something where the change would stay
            (`Server.disposable`).
        until: Time of the event loop after which nothing is executed any more. None: there is no such time.
        on_done: Called after each execution: once for calls that fail, twice for the others.
        changing: Tools that were seen to change the world. Calls of the others are executed one after another in one
            copy, which saves the start of a server for each, and the second time in the reverse order: where the order
            makes a difference, the two executions differ.
    """

    def __init__(
        self,
        server: Server,
        catalog: Catalog,
        *,
        allow_destructive: bool = False,
        until: float | None = None,
        on_done: Callable[[], None] = lambda: None,
        changing: set[str] | None = None,
    ) -> None:
        self._changing = changing
        self._server = server
        self._catalog = catalog
        self._allowed = allow_destructive or server.disposable
        self._until = until
        self._on_done = on_done
        self._turns = asyncio.Semaphore(AT_ONCE if server.world else 1)

    async def run(self, plans: Sequence[Sequence[Step]], *, fail: bool = False) -> list[Trial | StepFailed]:
        """Executes several plans. The second executions begin more than APART seconds after the first ones.

        Args:
            plans: The steps of each plan.
            fail: Whether the last step of each should give an error.

        Returns:
            For each plan its trial, or why it is not usable.
        """
        outcomes: dict[int, Trial | StepFailed] = {}

        async def execute_twice(group: Sequence[int]) -> None:
            firsts = await self._perform_group({at: plans[at] for at in group}, fail)
            good = {at: first.steps for at, first in firsts.items() if isinstance(first, Execution)}
            if good:
                await asyncio.sleep(APART)
            again = await self._perform_group(dict(reversed(good.items())), fail, check=False)
            outcomes.update({at: self._trial(first, again.get(at)) for at, first in firsts.items()})

        await asyncio.gather(*map(execute_twice, self._groups(plans)))
        return [outcomes[at] for at in range(len(plans))]

    def _groups(self, plans: Sequence[Sequence[Step]]) -> list[list[int]]:
        """The plans by their positions, divided into those that are executed together. Without copies all are."""
        if self._server.world is None:
            return [list(range(len(plans)))] if plans else []
        quiet = [at for at, steps in enumerate(plans) if self._is_quiet(steps)]
        batches = [quiet[at : at + BATCH] for at in range(0, len(quiet), BATCH)]
        return [*batches, *([at] for at in range(len(plans)) if at not in set(quiet))]

    async def _perform_group(
        self, plans: Mapping[int, Sequence[Step]], fail: bool, check: bool = True
    ) -> dict[int, Execution | StepFailed]:
        """Executes a group of plans, each once."""
        outcomes = {}
        if self._server.world is not None and len(plans) > 1:
            outcomes = await self._perform_together(plans, fail, check)
        rest = [at for at in plans if at not in outcomes]
        alone = await asyncio.gather(*(self._perform(plans[at], fail, check) for at in rest))
        return outcomes | dict(zip(rest, alone, strict=True))

    def _is_quiet(self, steps: Sequence[Step]) -> bool:
        """Whether no call of a plan seems to change the world, although the names of the tools do not say so."""
        return (
            self._changing is not None
            and self._server.world is not None
            and not any(step.tool in self._changing or acts(step.tool) for step in steps)
        )

    async def _perform_together(
        self, plans: Mapping[int, Sequence[Step]], fail: bool, check: bool
    ) -> dict[int, Execution | StepFailed]:
        """Executes plans one after another in one copy, until one changes something there. Those that were executed
        before it are returned."""
        outcomes: dict[int, Execution | StepFailed] = {}
        async with self._turns, rollout_of_its_own():
            for at, steps in plans.items():
                try:
                    self._check_time()
                    valid_steps = check_steps(steps, self._catalog, self._allowed) if check else list(steps)
                    history, results = await _perform_here(self._server, valid_steps, fail)
                    outcomes[at] = Execution(history, results, [])
                except StepFailed as failed:
                    outcomes[at] = failed
                except OSError as error:
                    outcomes[at] = StepFailed("error", f"what it changed in its world cannot be read: {error}")
                if await self._server.changes():
                    assert self._changing is not None
                    self._changing.update(step.tool for step in steps)
                    del outcomes[at]
                    break
                self._on_done()
        return outcomes

    def _check_time(self) -> None:
        """Raises StepFailed if the time is over."""
        if self._until is not None and asyncio.get_running_loop().time() > self._until:
            raise StepFailed("surplus", "the time was over")

    async def _perform(self, steps: Sequence[Step], fail: bool, check: bool = True) -> Execution | StepFailed:
        async with self._turns:
            try:
                self._check_time()
                valid_steps = check_steps(steps, self._catalog, self._allowed) if check else list(steps)
                return await perform(self._server, valid_steps, fail=fail)
            except StepFailed as failed:
                return failed
            finally:
                self._on_done()

    def _trial(self, first: Execution | StepFailed, again: Execution | StepFailed | None) -> Trial | StepFailed:
        """What two executions make. again: the second one. None: the first one failed."""
        if isinstance(first, StepFailed) or again is None:
            assert isinstance(first, StepFailed)
            return first
        if isinstance(again, StepFailed):
            if again.kind == "surplus":
                return again
            if self._server.disposable:  # nothing of the first execution was left
                return StepFailed("unstable", f"the second time it failed: {again}")
            return Trial(first, None, first.changes)
        changes = first.changes
        if changes is not None:
            changes = merge_changes(changes, again.changes or [])
            if changes is None:
                return StepFailed("unstable", "the two executions changed different things in the world")
        return Trial(first, again, changes)


async def execute(
    server: Server,
    scenarios: Sequence[MCPScenario],
    catalog: Catalog,
    *,
    allow_destructive: bool = False,
    on_done: Callable[[], None] = lambda: None,
    until: float | None = None,
) -> tuple[list[MCPScenario], list[DroppedTask]]:
    """Executes the reference of every scenario twice. Those that work get observations, facts and changes.

    The last call of a task that cannot be done must give an error. Scenarios without calls stay as they are.

    A scenario whose second execution fails because the first has changed the server is kept without facts: only its
    calls are checked.

    Args:
        server: The server.
        scenarios: The scenarios.
        catalog: What the server offers.
        allow_destructive: As for `Trials`.
        on_done: As for `Trials`.
        until: As for `Trials`.

    Returns:
        The scenarios that work, and the records of the others.
    """
    trials = Trials(server, catalog, allow_destructive=allow_destructive, until=until, on_done=on_done)
    plans = [scenario.plan for scenario in scenarios]
    outcomes: dict[int, Trial | StepFailed] = {}  # by position: scenarios with the same messages have the same id
    for fail in (False, True):
        with_calls = [at for at, plan in enumerate(plans) if plan.reference and (plan.reply == "refusal") is fail]
        ran = await trials.run([plans[at].reference for at in with_calls], fail=fail)
        outcomes |= zip(with_calls, ran, strict=True)
    successes, failures = [], []
    for at, scenario in enumerate(scenarios):
        try:
            successes.append(_complete_scenario(scenario, outcomes.get(at)))
        except StepFailed as failed:
            failures.append(drop(scenario, failed.kind, str(failed)))
    return successes, failures


def _complete_scenario(scenario: MCPScenario, outcome: Trial | StepFailed | None) -> MCPScenario:
    """The scenario with what its executions told. outcome: None: it has no calls.

    Raises:
        StepFailed: They failed, or the results have no value that the task asks for.
    """
    if outcome is None:
        return scenario
    if isinstance(outcome, StepFailed):
        raise outcome
    is_refusal = scenario.plan.reply == "refusal"
    if is_refusal and outcome.changes:
        raise StepFailed("unstable", "it gave an error, and changed something")
    facts, readings = ([], []) if is_refusal else _expected_values(scenario, outcome)
    return scenario.with_plan(
        reference=outcome.steps,
        observations=outcome.observations(facts, [] if is_refusal else scenario.plan.readings),
        facts=facts,
        readings=readings,
        changes=outcome.changes,
    )


def _expected_values(scenario: MCPScenario, trial: Trial) -> tuple[list[str], list[Reading]]:
    """What the answer must mention. A value that a scenario reads off the results is a fact if both executions gave it.

    Raises:
        StepFailed: A result has no such value, or it is too long.
    """
    if not scenario.plan.readings:
        return (_facts(trial.first, trial.second.results) if trial.second else []), []
    facts, readings = [], []
    for reading in scenario.plan.readings:
        values = []
        for execution in (trial.first, trial.second or trial.first):
            result = execution.results[reading.step]
            try:
                value = pick_value(result.text, result.structured, reading.path)
            except (LookupError, TypeError):
                raise StepFailed("invalid", f"call {reading.step + 1} gave nothing at {reading.path}") from None
            values.append(value if isinstance(value, str) else canonical(value))
        if len(values[0]) > MAX_ASKED or "\n" in values[0]:
            raise StepFailed("invalid", f"the task asks for {len(values[0])} characters: {values[0][:60]!r}…")
        if values[0] == values[1] and not changes_with_time(values[0]) and not is_local(values[0]):
            facts.append(values[0])
        else:
            readings.append(reading)
    return facts, readings


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
            history, results = await _perform_here(server, steps, fail)
    except OSError as error:
        raise StepFailed("error", f"what it changed in its world cannot be read: {error}") from error
    world = scope.metadata.get(WORLD_KEY)
    changes = None if world is None else [Change.model_validate(change) for change in world["changes"]]
    return Execution(history, results, changes)


async def _perform_here(server: Server, steps: Sequence[Step], fail: bool) -> tuple[list[Step], list[CallResult]]:
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
        raise StepFailed("error", f"call {index + 1}, {step.tool}: {result.reason}", result.text)
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


def _facts(execution: Execution, again: Sequence[CallResult]) -> list[str]:
    """Facts of the results that no later step takes. These results are what the task asks for. What a call says that
    changed the world is not: the change is checked.

    Args:
        execution: The first execution.
        again: Results of the second execution.
    """
    needs = {need for step in execution.steps for need in step.needs}
    argument_values = [
        value
        for at, step in enumerate(execution.steps)
        for value in _values(resolve_arguments(step, execution.results[:at]))
    ]
    facts: list[str] = []
    for index, (step, first, second) in enumerate(zip(execution.steps, execution.results, again, strict=True)):
        is_change = execution.changes is not None and not step.reads
        if index in needs or is_change or (first.content and first.structured is None):  # nobody repeats a picture
            continue
        stable = stable_facts(
            parse_result(first.text, first.structured), parse_result(second.text, second.structured), argument_values
        )
        facts += [fact for fact in stable if fact not in facts]
    return facts


def _values(arguments: dict[str, Any]) -> list[Any]:
    """The values of arguments, with lists flattened."""
    return [item for value in arguments.values() for item in (value if isinstance(value, list) else [value])]


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
