"""Looks around on a server: calls its tools with known values, to learn values for other tools."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from art_langgraph.progress import progress_bar
from art_mcp.client.connect import Server
from art_mcp.scenarios.catalog import CatalogTool
from art_mcp.scenarios.drafting.sql import Sql
from art_mcp.scenarios.drafting.values import NoValue, Values
from art_mcp.scenarios.execute import StepFailed, performed_step, rollout_of_its_own
from art_mcp.scenarios.observe import parse_result
from art_mcp.scenarios.phrasing.sense import acts
from art_mcp.scenarios.plan import Step
from trainer_server.common.jsonl import to_json

log = logging.getLogger("art_mcp")

ROUNDS = 4
"""Exploration rounds: results of one round can be arguments of calls in the next."""

LOOKS = 4
"""Calls of each tool in a round. A tool that took longer than SLOW is not called again."""

SLOW = 2.0
"""Seconds after which a call counts as slow."""

COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())


async def look_around(
    server: Server, tools: Sequence[CatalogTool], values: Values, *, until: float, progress: bool = True
) -> dict[str, str]:
    """Calls tools with known values as arguments. What they give goes to `values`, and calls that fail are skipped.

    Only tools that only read are called, and in a world those of which nothing says that they act. The calls share a
    copy until one of them changes something there; the next call gets a new copy.

    Args:
        server: The server.
        tools: The tools that may be called.
        values: Draws arguments.
        until: Time of the event loop after which nothing is called any more.
        progress: Whether to show a progress bar on a terminal.

    Returns:
        Why a call failed, by the name of the tool, for tools of which every call failed.
    """
    calls: set[str] = set()
    failures: dict[str, str] = {}
    clock = asyncio.get_running_loop().time
    candidates = [tool for tool in tools if tool.reads or (server.world and not acts(tool.name))]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(rollout_of_its_own())
        with progress_bar(*COLUMNS, shown=progress) as bar:
            for tool in bar.track(candidates * ROUNDS, description="looking around"):
                for _ in range(LOOKS):
                    try:
                        step = Step(tool=tool.name, arguments=values.arguments(tool, guess=False, optional=0.2))
                    except NoValue:
                        break
                    if (key := to_json(step)) in calls or tool.name in values.pool.slow or clock() > until:
                        continue
                    calls.add(key)
                    start = clock()
                    try:
                        result = await performed_step(server, step, [])
                    except StepFailed as failed:
                        log.debug("looking around: %s", failed)
                        failures.setdefault(tool.name, str(failed))
                        values.pool.note(tool.name, step.arguments, worked=False)
                        continue
                    finally:
                        if clock() - start > SLOW:
                            values.pool.slow.add(tool.name)
                        if await server.changes():
                            await stack.aclose()
                            await stack.enter_async_context(rollout_of_its_own())
                    values.pool.note(tool.name, step.arguments, worked=True)
                    values.learn(tool.name, step.arguments, parse_result(result.text, result.structured))
    return {tool: reason for tool, reason in failures.items() if tool not in values.pool.results}


async def look_at_tables(server: Server, sql: Sql) -> None:
    """Looks at the tables that tools with SQL queries reach."""

    async def run(tool: CatalogTool, arguments: dict[str, Any]) -> Any:
        try:
            result = await performed_step(server, Step(tool=tool.name, arguments=arguments), [])
        except StepFailed:
            return None
        return parse_result(result.text, result.structured)

    if sql.tools:
        async with rollout_of_its_own():
            await sql.look(run)
