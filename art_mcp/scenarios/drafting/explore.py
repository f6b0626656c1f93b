"""Explores a server: tries its tools with values that seem to fit, and learns from the answers what they take."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from art_langgraph.progress import progress_bar
from art_mcp.canonical import canonical
from art_mcp.client.connect import Server
from art_mcp.client.effects import words
from art_mcp.scenarios.catalog import CatalogTool, properties_of
from art_mcp.scenarios.coverage import OUT_OF_TIME, unknown_value
from art_mcp.scenarios.drafting.errors import MAX_MESSAGE, blame, message_of, numbers_in, offers, parameters_in
from art_mcp.scenarios.drafting.pools import Pool, Source, slot_values
from art_mcp.scenarios.drafting.sequences import note_sequences
from art_mcp.scenarios.drafting.sql import Sql
from art_mcp.scenarios.drafting.value_graph import ValueGraph
from art_mcp.scenarios.drafting.values import NoValue, Values
from art_mcp.scenarios.execute import StepFailed, is_act, performed_step, rollout_of_its_own
from art_mcp.scenarios.observe import findings, is_nothing, leaves, parse_result
from art_mcp.scenarios.phrasing.language import VERBS
from art_mcp.scenarios.plan import Step
from trainer_server.common.jsonl import to_json
from trainer_server.common.processors import processor_count

log = logging.getLogger("art_mcp")

ROUNDS = 6
"""Rounds of the exploration: results of one round can be arguments of calls in the next."""

LOOKS = 4
"""Calls of a tool in a round that only reads."""

TRIES = 6
"""Calls of a tool that changes something in a round, until one works."""

ENOUGH = 8
"""Calls of a tool that worked, after which it is not explored any more; of one that changes something, ENOUGH_ACTS."""

ENOUGH_ACTS = 1

IDLE = 12
"""Calls of a tool that should change something and did nothing, after which it is not explored any more."""

LUCK = 0.5
"""What a call counts that worked with what another one has made in that copy of the world."""

SLOW = 2.0
"""Seconds after which a call counts as slow. Such a tool is called SLOW_TRIES times, at most."""

SLOW_TRIES = 3

LANES = processor_count()
"""Copies of the world in which tools that change something are tried at the same time."""

DRAWS = 4
"""Draws of a call, until it is one that was not made yet."""

MENDS = 3
"""Calls in a row that differ from one that failed by what its error offers."""

REFUSAL_TRIES = 8
"""Calls of a tool that worked, to find REFUSALS that are refused, in a round."""

REFUSALS = 3

MAX_REFUSALS = 24
"""The last calls of a tool that failed that are kept: some are tasks that cannot be done."""

EMPTY = 0.15
"""What a call counts that gave nothing."""

COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())


class Explorer:
    """Tries the tools of a server.

    Tools that read are called one after another in one copy of the world, until one of them changes something there.
    Tools that change something are tried in a few other copies, one after another: a start of a server takes longer
    than many calls. A tool for which an earlier one left nothing is tried again in the next round, in another order.
    Without copies and without a reset what they change stays: then the tools are those that the user allows.

    Args:
        server: The server.
        tools: The tools that may be called.
        values: Draws arguments, and learns.
        seed: Seed of the calls.
        until: Time of the event loop after which nothing is called any more.
    """

    def __init__(
        self, server: Server, tools: Sequence[CatalogTool], values: Values, *, seed: int, until: float
    ) -> None:
        self._server = server
        # Those that need nothing tell first what others may take.
        self._tools = sorted(tools, key=lambda tool: bool(tool.input_schema.get("required")))
        self._values = values
        self._graph = values.graph
        self._seed = seed
        self._until = until
        self._clock = asyncio.get_running_loop().time
        self._reads_open = False
        self._calls: set[str] = set()
        self._worked: defaultdict[str, float] = defaultdict(float)
        self._tries: Counter[str] = Counter()
        self._idle: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._errors: dict[str, Counter[str]] = {}
        self._unknown: dict[str, str] = {}
        self._mended: dict[str, dict[str, Any]] = {}
        self._mends: Counter[str] = Counter()

    async def explore(self, progress: bool = True) -> None:
        """Tries the tools in rounds, until each has worked or nothing new can be tried.

        Args:
            progress: Whether to show a progress bar on a terminal.
        """
        async with AsyncExitStack() as stack:
            with progress_bar(*COLUMNS, shown=progress) as bar:
                for number in bar.track(range(ROUNDS), description="exploring the server"):
                    before = len(self._calls)
                    await self._read(stack)
                    self._retract_stock_answers()
                    if self._server.world is None:  # one rollout has the server at a time
                        await self._close(stack)
                    await self._act(number)
                    done = number and all(
                        self._worked[tool.name] or self._idle[tool.name] >= IDLE for tool in self._tools
                    )
                    if done or len(self._calls) == before or self._clock() > self._until:
                        break

    def failures(self) -> dict[str, str]:
        """Why no call of a tool worked, by its name."""
        reasons = {}
        for tool in self._tools:
            if self._worked[tool.name] or self._idle[tool.name]:
                continue
            if errors := self._errors.get(tool.name):
                error, times = errors.most_common(1)[0]
                reasons[tool.name] = f"no call worked, {times} of {errors.total()} with: {error}"
            elif tool.name in self._unknown:
                reasons[tool.name] = self._unknown[tool.name]
            else:
                reasons[tool.name] = f"{OUT_OF_TIME} before it was tried"
        return reasons

    def _acts(self, tool: CatalogTool) -> bool:
        return is_act(tool, self._graph.changing)

    async def _read(self, stack: AsyncExitStack) -> None:
        """A round of the tools that read. stack: holds the copy in which they are called, for the next round too."""
        if not self._reads_open:
            await self._open(stack)
        for tool in self._tools:
            if self._acts(tool) or self._worked[tool.name] >= ENOUGH:
                continue
            rng = random.Random(f"read-{self._seed}-{tool.name}-{len(self._calls)}")
            for _ in range(LOOKS):
                step = self._draw(tool, rng)
                if step is not None and await self._try(step) is not None and await self._has_changed():
                    self._graph.changing.add(tool.name)
                    await self._close(stack)
                    await self._open(stack)
                    break

    def _retract_stock_answers(self) -> None:
        """Learns that calls failed that gave only what the tool says of whatever is not there."""
        for tool, calls in self._graph.results.items():
            stock = [call for call in calls if self._graph.is_stock(tool, *call)]
            for arguments, result in stock:
                self._graph.retract(tool, arguments, result)
                self._worked[tool] -= 1
                text = result if isinstance(result, str) else canonical(result)
                self._learn_failure(Step(tool=tool, arguments=arguments), StepFailed("error", text), None)

    async def _open(self, stack: AsyncExitStack) -> None:
        """Takes a new copy for calls that read."""
        await stack.enter_async_context(rollout_of_its_own())
        self._reads_open = True

    async def _close(self, stack: AsyncExitStack) -> None:
        """Gives the copy for calls that read back."""
        self._reads_open = False
        await stack.aclose()

    async def _act(self, number: int) -> None:
        """A round of the tools that change something. Those that remove something come last in every other round."""
        acting = {
            tool.name
            for tool in self._tools
            if self._acts(tool) and self._worked[tool.name] < ENOUGH_ACTS and self._idle[tool.name] < IDLE
        }
        # What reads and has never worked may need something that is not there before an act.
        tools = [tool for tool in self._tools if tool.name in acting or (acting and not self._worked[tool.name])]
        removing = [tool for tool in tools if any(VERBS[word].removes for word in tool.words if word in VERBS)]
        others = [tool for tool in tools if tool not in removing]
        random.Random(f"order-{self._seed}-{number}").shuffle(others)
        order = [*others, *removing] if number % 2 == 0 else [*removing, *others]
        lanes = LANES if self._server.world else 1
        await asyncio.gather(*(self._act_in_turn(order[lane::lanes], number) for lane in range(lanes)))

    async def _act_in_turn(self, tools: Sequence[CatalogTool], number: int) -> None:
        """Tries tools one after another in one copy of the world. What a call made there can be an argument of the next
        ones, and both are noted as a sequence."""
        if not tools:
            return
        async with rollout_of_its_own():
            changes: Any = []
            pools: dict[Source, Pool] = {}
            calls: list[tuple[Step, Any]] = []
            for tool in tools:
                rng = random.Random(f"act-{self._seed}-{tool.name}-{number}")
                for _ in range(TRIES):
                    step = self._draw(tool, rng, pools)
                    if step is None or (result := await self._try(step, pools)) is None:
                        continue
                    note_sequences(self._graph, step, calls)
                    calls.append((step, result))
                    before, changes = changes, await self._server.changes()
                    if self._acts(tool) and not pools and (changes is None or changes == before):
                        self._values.learn(tool.name, step.arguments, result)
                    if changes is None or changes != before:
                        self._graph.changing.add(tool.name)
                        self._graph.note(tool.name, step.arguments, 1.0, new=_keys(pools))
                        for value in (result, step.arguments):
                            self._graph.add(tool.name, findings(tool.name, value), pools)
                        break
                    if not self._acts(tool):
                        break
                    self._worked[tool.name] = 0  # it did nothing that shows
                    self._idle[tool.name] += 1
                    if tool.name in self._graph.changing:
                        self._graph.note(tool.name, step.arguments, EMPTY, new=_keys(pools))
            await self._look_for_refusals(tools, pools, number)

    async def _look_for_refusals(self, tools: Sequence[CatalogTool], pools: Mapping[Source, Pool], number: int) -> None:
        """Tries other values of tools that worked until some are refused: acts that must fail are tasks too. This comes
        last in a copy of the world, because what works changes it."""
        for tool in tools:
            rng = random.Random(f"refusal-{self._seed}-{tool.name}-{number}")
            for _ in range(REFUSAL_TRIES):
                if len(self._graph.refused_calls(tool.name)) >= REFUSALS or not self._worked[tool.name]:
                    break
                step = self._draw(tool, rng)
                if step is not None:
                    await self._try(step, pools)

    async def _has_changed(self) -> bool:
        """Whether the world has changed, as far as it shows."""
        return bool(await self._server.changes())

    def _draw(self, tool: CatalogTool, rng: random.Random, pools: Mapping[Source, Pool] | None = None) -> Step | None:
        """A call that was not made yet. None: none could be drawn, or the time is over. pools: values that are in this
        copy of the world alone."""
        if tool.name in self._graph.slow or self._clock() > self._until:
            return None
        for _ in range(DRAWS):
            arguments = self._mended.pop(tool.name, None)
            self._mends[tool.name] = self._mends[tool.name] + 1 if arguments is not None else 0
            if arguments is None:
                try:
                    arguments = self._values.arguments(tool, explore=True, optional=0.25, rng=rng, pools=pools)
                except NoValue as error:
                    self._unknown[tool.name] = unknown_value(error.parameter) if error.parameter else str(error)
                    return None
            step = Step(tool=tool.name, arguments=arguments)
            if (key := to_json(step)) not in self._calls:
                self._calls.add(key)
                self._tries[tool.name] += 1
                return step
        return None

    async def _try(self, step: Step, pools: Mapping[Source, Pool] | None = None) -> Any:
        """Makes a call, and learns from what it gives.

        Args:
            step: The call.
            pools: Values that are in this copy of the world alone. None: nothing was changed there, and what the call
                gives is in all others too.

        Returns:
            The result. None: the call failed, or gave nothing.
        """
        start = self._clock()
        try:
            answer = await performed_step(self._server, step, [])
        except StepFailed as failed:
            log.debug("exploring: %s", failed)
            self._learn_failure(step, failed, pools)
            return None
        finally:
            self._seconds[step.tool] = max(self._seconds.get(step.tool, 0.0), self._clock() - start)
            if self._seconds[step.tool] > SLOW and self._tries[step.tool] >= SLOW_TRIES:
                self._graph.slow.add(step.tool)
        result, new = parse_result(answer.text, answer.structured), _keys(pools)
        says_more = _says_more(result, step)
        if says_more or self._acts(self._values.tool(step.tool)):
            made = any(canonical(value) in new for _, value in slot_values(step.tool, step.arguments))
            self._worked[step.tool] += LUCK if made else 1
        else:
            self._errors.setdefault(step.tool, Counter())["it gave nothing"] += 1
        self._graph.usable.add(step.tool)
        self._graph.note(step.tool, step.arguments, 1.0 if says_more else EMPTY, new=new)
        if self._acts(self._values.tool(step.tool)):
            return result  # what it changes is not there in other copies
        if not pools:
            self._values.learn(step.tool, step.arguments, result)
        else:
            self._calls.discard(to_json(step))  # what it gives where nothing was changed is not known
        return result

    def _learn_failure(self, step: Step, failure: StepFailed, pools: Mapping[Source, Pool] | None) -> None:
        """Notes that a call failed, whose fault that is, and what the error offers."""
        message = failure.message
        self._errors.setdefault(step.tool, Counter())[message[:200]] += 1
        success = EMPTY if failure.kind == "empty" else 0.0
        offered = learn_failure(self._values, step, message, success, _keys(pools), failure.log)
        # Where one argument is to blame, what the server offers for it is tried at once, with the others as they were.
        if len(offered) == 1 and self._mends[step.tool] < MENDS:
            ((name, values),) = offered.items()
            value = random.Random(f"mend-{self._seed}-{len(self._calls)}").choice(values)
            self._mended[step.tool] = {**step.arguments, name: value}


def _keys(pools: Mapping[Source, Pool] | None) -> set[str]:
    """The values of some pools in their canonical form."""
    return {key for pool in (pools or {}).values() for key in pool.values}


def _says_more(result: Any, step: Step) -> bool:
    """Whether a result has a value that the call had not, and that is not nothing."""
    inputs = {canonical(value) for _, value in slot_values(step.tool, step.arguments)}
    values = [result] if isinstance(result, str) else [leaf for _, leaf in leaves(result) if not isinstance(leaf, bool)]
    return any(canonical(value) not in inputs and not is_nothing(str(value)) for value in values)


def learn_failure(
    values: Values,
    step: Step,
    message: str,
    success: float = 0.0,
    new: Container[str] = frozenset(),
    log_text: str = "",
) -> dict[str, list[str | int]]:
    """Notes that a call failed, which arguments its error blames, and what it offers for them.

    Args:
        values: Learns.
        step: The call.
        message: The error.
        success: As in `ValueGraph.note`.
        new: Values that are in this copy of the world alone, in their canonical form.
        log_text: What the server wrote meanwhile: what is learnt from it, no answer repeats.

    Returns:
        What it offers, by the names of the arguments that it blames. Without those that are parts of a list or object.
    """
    graph, slots = values.graph, dict(slot_values(step.tool, step.arguments))
    if success:
        graph.note(step.tool, step.arguments, success)
        return {}
    message = message_of(message)
    graph.refusals[step.tool].append((dict(step.arguments), message[:MAX_MESSAGE]))
    del graph.refusals[step.tool][:-MAX_REFUSALS]  # the first ones tried what is no value at all
    message = log_text or message
    shares = blame(message, slots)
    offer, endings = offers(message, step.arguments)
    offer = [value for value in offer if canonical(value) not in new]
    graph.note(step.tool, step.arguments, 0.0, shares or None, offer)
    _learn_parameters(graph, values.tool(step.tool), step, message)
    length = _learn_length(graph, step, message)
    kinds = {slot: graph.kinds(value) for slot, value in slots.items()}
    alike = {
        value: [slot for slot in slots if not kinds[slot].isdisjoint(own)]
        for value, own in zip(offer, map(graph.kinds, offer), strict=True)
    }
    offered: dict[str, list[str | int]] = {}
    for slot in shares:
        others = [value for other, value in slots.items() if other != slot]
        values_of_slot: list[str | int]
        if isinstance(slots[slot], str):
            # "Not in this column, which has …" offers titles for the title, and none for the column.
            values_of_slot = [value for value in offer if slot in (alike[value] or shares)]
            graph.offer(slot, values_of_slot, endings, others)
            graph.messages[slot] = message[:1000]
        else:
            values_of_slot = [number for number in numbers_in(message, slots.values()) if number != length]
            graph.offer(slot, values_of_slot, (), others)
        if slot[1] in step.arguments and values_of_slot:
            offered[slot[1]] = values_of_slot
    return offered


def _learn_parameters(graph: ValueGraph, tool: CatalogTool, step: Step, message: str) -> None:
    """Notes which parameters an error misses or blames."""
    names = parameters_in(message, properties_of(tool))
    absent = [name for name in names if name not in step.arguments]
    optional = [name for name in names if name in step.arguments and name not in tool.input_schema.get("required", ())]
    if absent:  # what the call had already belongs to it: "both start and end"
        graph.necessary[step.tool] = ([*optional, *absent], bool(optional))
    elif optional:
        graph.exclusions[step.tool].update(optional)


def _learn_length(graph: ValueGraph, step: Step, message: str) -> int | None:
    """Notes how many items an error wants a list to have, at least. None: it does not say."""
    lists = [name for name, value in step.arguments.items() if isinstance(value, list)]
    match = re.search(r"\bat least (\d{1,2})\b", message[:MAX_MESSAGE])
    if not lists or match is None:
        return None
    text_words = set(words(message))
    about = [name for name in lists if set(words(name)) <= text_words] or lists[:1]
    graph.least.update({(step.tool, name): int(match[1]) for name in about})
    return int(match[1])


async def look_at_tables(server: Server, sql: Sql, values: Values) -> None:
    """Looks at the tables that tools with SQL queries reach.

    Args:
        server: The server.
        sql: Drafts the queries.
        values: Draws the arguments that a tool needs beside the SQL.
    """

    async def run(tool: CatalogTool, arguments: dict[str, Any]) -> Any:
        try:
            result = await performed_step(server, Step(tool=tool.name, arguments=arguments), [])
        except StepFailed:
            return None
        return parse_result(result.text, result.structured)

    def others(tool: CatalogTool, parameter: str) -> dict[str, Any]:
        return values.arguments(tool, base_arguments={parameter: ""}, optional=0.0, explore=True)

    if sql.tools:
        async with rollout_of_its_own():
            await sql.look(run, others)
        sql.settle()
