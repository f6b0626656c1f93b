"""Tries plans on a server, twice each. Those that fail are dropped; values that stay equal become facts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from art_mcp.canonical import canonical
from art_mcp.client.connect import Server
from art_mcp.client.in_world import WORLD_KEY
from art_mcp.client.result import CallResult
from art_mcp.scenarios.catalog import Catalog
from art_mcp.scenarios.coverage import UNSTABLE_CHANGES
from art_mcp.scenarios.execute import (
    Execution,
    StepFailed,
    Trial,
    check_steps,
    is_act,
    perform,
    perform_here,
    resolve_arguments,
    rollout_of_its_own,
)
from art_mcp.scenarios.observe import changes_with_time, is_local, parse_result, pick_value, stable_facts
from art_mcp.scenarios.plan import MCPScenario, Reading, Step
from art_mcp.scenarios.scenario_set import DroppedTask, drop
from art_mcp.worlds.change import merge_changes
from trainer_server.common.processors import processor_count

log = logging.getLogger("art_mcp")

APART = 1.2
"""Seconds between the two executions of a plan, so that values that show the time differ."""

AT_ONCE = 2 * processor_count()
"""Executions at the same time, if each has a world of its own. Half of them wait for a server to start."""

BATCH = 12
"""Plans that share a copy of the world, at most."""

MAX_ASKED = 64
"""Characters of a value that a written task asks for, at most."""

RESULT = "its result"
"""Stands for what a tool gave, where two executions differ."""

Outcomes = dict[int, Execution | StepFailed]
"""By the positions of plans, what an execution gave."""


class Trials:
    """Executes calls on a server, twice each.

    Without a world they run one after another, and the second may fail because the first has changed the server.

    With a world, both executions must have changed the same. A start of a server takes longer than many calls, so
    plans share a copy and its server: one after another, and the copy is put back after each. What a server remembers
    is not put back, so a shared execution counts only where others agree with it:

    - Plans that read are shared both times, the second time in the reverse order: where the order makes a difference,
      the two executions differ.
    - So are plans that act, once each of their tools did the same in a copy and a server of its own. Until then their
      second execution has these. What fails or differs is executed there again, twice, and only that counts.
    - Where that shows that sharing made the difference, and where a copy could not be put back, or its server wrote
      there later or at its end, plans that act share nothing any more.

    Args:
        server: The server.
        catalog: What it offers.
        allow_destructive: Whether to call tools that may change something where the change would stay
            (`Server.disposable`).
        until: Time of the event loop after which nothing is executed any more. None: there is no such time.
        on_done: Called after each execution: once for calls that fail, twice for the others.
        changing: Tools that were seen to change the world. None: nobody has looked, and no plan shares a copy.
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
        self._server = server
        self._catalog = catalog
        self._allowed = allow_destructive or server.disposable
        self._until = until
        self._on_done = on_done
        self._changing = set() if changing is None else changing
        self._reads_share = self._acts_share = changing is not None and server.world is not None
        self._same: set[str] = set()
        """Tools that act and did the same in a shared copy as in one of their own."""
        self._varying: set[tuple[str, str]] = set()
        """Where two executions differed that shared nothing: a time is written there, say."""
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

        async def try_group(group: Sequence[int]) -> None:
            outcomes.update(await self._try({at: plans[at] for at in group}, fail))

        await asyncio.gather(*map(try_group, self._groups(plans, fail)))
        return [outcomes[at] for at in range(len(plans))]

    def _groups(self, plans: Sequence[Sequence[Step]], fail: bool) -> list[list[int]]:
        """The plans by their positions, divided into those that are executed together. Without copies all are."""
        if self._server.world is None:
            return [list(range(len(plans)))] if plans else []
        quiet = [at for at, steps in enumerate(plans) if self._is_quiet(steps)]
        others = [at for at, steps in enumerate(plans) if not self._is_quiet(steps)]
        # A refusal leaves the copy as it was, and the next one gets it: these need no sharing.
        size = BATCH if self._acts_share and not fail else 1
        batches = [quiet[at : at + BATCH] for at in range(0, len(quiet), BATCH)]
        return batches + [others[at : at + size] for at in range(0, len(others), size)]

    async def _try(self, plans: Mapping[int, Sequence[Step]], fail: bool) -> dict[int, Trial | StepFailed]:
        """Executes a group of plans, each twice."""
        firsts = await self._perform_group(plans, fail)
        good = {at: first.steps for at, first in firsts.items() if isinstance(first, Execution)}
        if good:
            await asyncio.sleep(APART)
        trials: dict[int, Trial | StepFailed] = {
            at: first for at, first in firsts.items() if isinstance(first, StepFailed)
        }
        for part in self._by_proof(good):
            again = await self._perform_group(dict(reversed(part.items())), fail, again=True)
            for at in part:  # one after another: what one shows is known of the next
                trials[at] = await self._settle(plans[at], fail, firsts[at], again[at])
                if not fail and self._is_idle(trials[at]):
                    trials[at] = StepFailed("empty", "it changed nothing in the world")
        return trials

    def _is_idle(self, trial: Trial | StepFailed) -> bool:
        """Whether a call changed nothing whose tool should, and did at other times."""
        if isinstance(trial, StepFailed) or trial.changes is None or trial.changes:
            return False
        return any(not step.reads and step.tool in self._changing for step in trial.steps)

    def _by_proof(self, plans: Mapping[int, Sequence[Step]]) -> list[dict[int, Sequence[Step]]]:
        """Plans divided into those that have a new tool, and the others, which may share a copy once these are done."""
        known = set(self._same)
        new: dict[int, Sequence[Step]] = {}
        for at, steps in plans.items():
            if (tools := {step.tool for step in steps}) - known and not self._is_quiet(steps):
                known |= tools
                new[at] = steps
        return [new, {at: steps for at, steps in plans.items() if at not in new}]

    async def _perform_group(self, plans: Mapping[int, Sequence[Step]], fail: bool, again: bool = False) -> Outcomes:
        """Executes a group of plans, each once. again: for the second time, so that they need no check."""
        together = {at: steps for at, steps in plans.items() if self._may_share(steps, fail, again)}
        outcomes = await self._perform_together(together, fail, not again) if len(together) > 1 else {}
        rest = [at for at in plans if at not in outcomes]
        alone = await asyncio.gather(*(self._perform(plans[at], fail, not again) for at in rest))
        return outcomes | dict(zip(rest, alone, strict=True))

    def _is_quiet(self, steps: Sequence[Step]) -> bool:
        """Whether no call of a plan seems to change the world, although the names of the tools do not say so."""
        return self._reads_share and not any(is_act(self._catalog.tool(step.tool), self._changing) for step in steps)

    def _may_share(self, steps: Sequence[Step], fail: bool, again: bool) -> bool:
        """Whether a plan is executed in a copy that others have too. A refusal that changes nothing needs none: the
        next plan gets its copy."""
        known = not again or {step.tool for step in steps} <= self._same
        return self._is_quiet(steps) or (self._acts_share and known and not fail)

    async def _perform_together(self, plans: Mapping[int, Sequence[Step]], fail: bool, check: bool) -> Outcomes:
        """Executes plans one after another in one copy: those that read, until one changes something there, and those
        that act, after each of which it is put back. Returns what counts: nothing of a plan that acts and failed."""
        outcomes: Outcomes = {}
        quiet = all(self._is_quiet(steps) for steps in plans.values())
        async with self._turns:
            async with rollout_of_its_own() as scope:
                for used, (at, steps) in enumerate(plans.items()):
                    if not (quiet or await self._server.rewind()):
                        break
                    outcome = await self._perform_shared(steps, fail, check, shared=used > 0)
                    if quiet and await self._server.changes():
                        self._changing.update(step.tool for step in steps)
                        break
                    if quiet or isinstance(outcome, Execution):
                        outcomes[at] = outcome
                        self._on_done()
                if not quiet:
                    await self._server.rewind()
            if not quiet and scope.metadata.get(WORLD_KEY, {}).get("changes"):  # it was not put back, or written later
                log.debug("acts share no copy any more: %s", scope.metadata[WORLD_KEY]["changes"][0])
                self._acts_share, outcomes = False, {}
        return outcomes

    async def _perform_shared(
        self, steps: Sequence[Step], fail: bool, check: bool, shared: bool
    ) -> Execution | StepFailed:
        """Executes a plan in the current rollout."""
        try:
            self._check_time()
            valid_steps = check_steps(steps, self._catalog, self._allowed) if check else list(steps)
            history, results = await perform_here(self._server, valid_steps, fail)
            return Execution(history, results, await self._server.changes(), shared)
        except StepFailed as failed:
            return failed
        except OSError as error:
            return StepFailed("error", f"what it changed in its world cannot be read: {error}")

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

    async def _settle(
        self, steps: Sequence[Step], fail: bool, first: Execution | StepFailed, second: Execution | StepFailed
    ) -> Trial | StepFailed:
        """What two executions make. Where sharing a copy may have made a difference, others in copies of their own."""
        if _is_shared(first) and isinstance(second, Execution) and not second.shared:
            first, second = second, first  # what a scenario shows is of a server that did nothing else
        trial = self._trial(first, second)
        tools = {step.tool for step in steps}
        late = isinstance(trial, StepFailed) and trial.kind == "surplus"
        if late or self._is_quiet(steps) or not (_is_shared(first) or _is_shared(second)):
            return trial
        differences = _differences(trial)
        new = {place for place in differences - self._varying if place[1] == RESULT or not tools <= self._same}
        if isinstance(trial, Trial) and not new:
            self._same |= tools
            return trial
        alone = next((each for each in (second, first) if not _is_shared(each)), None)
        own = alone or await self._perform(steps, fail)
        await asyncio.sleep(APART)
        others = self._trial(own, await self._perform(steps, fail) if isinstance(own, Execution) else None)
        if _differences(others) == differences:
            self._same |= tools
            self._varying |= differences
        else:
            log.debug("acts share no copy any more: %s gave something else in a copy of its own", tools)
            self._acts_share = False
        return others

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
                return StepFailed("unstable", UNSTABLE_CHANGES)
        return Trial(first, again, changes)


def _is_shared(outcome: Execution | StepFailed) -> bool:
    """Whether others were executed before in the same copy and the same server."""
    return isinstance(outcome, Execution) and outcome.shared


def _differences(trial: Trial | StepFailed) -> set[tuple[str, str]]:
    """Where two executions differ: results of steps, and what was changed. Empty: nowhere."""
    if isinstance(trial, StepFailed):
        return {("", trial.kind)}
    again = trial.second.results if trial.second else trial.first.results
    results = zip(trial.steps, trial.first.results, again, strict=True)
    return {
        *((step.tool, RESULT) for step, first, second in results if first.text != second.text),
        *(change.place for change in trial.changes or () if change.varies or change.digits_vary),
    }


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
