"""Brings home what remote graphs did in a rollout: their nodes, tool calls and completions, in their places."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from art_langgraph.capture.handover import RemoteRecord, RemoteRecords
from art_langgraph.capture.scope import RemoteCall, Scope
from art_langgraph.client.proxies import AsyncProxyTransport
from art_langgraph.client.servers import known_servers
from art_langgraph.notices import warn_once
from art_langgraph.trajectory import Place
from trainer_server.common import Connection
from trainer_server.common.jsonl import from_json
from trainer_server.wire.rollouts import rollout_api_path

_PATIENCE = 30.0
"""Seconds for which a record is waited for, where the graph ended normally."""
_AFTER_AN_ERROR = 5.0
"""The same where the graph raised or its time was over: its process may be gone."""
_GRACE = 0.1
"""Share of these seconds in which the trainer server must have the beginning of the run. A process that records says
so when the run begins."""
_ROUND = 10.0
"""Seconds for which a server holds one answer back."""
_AGAIN = 0.2

_CAPTURE = (
    "Record that process by art_langgraph.dev:app or install(), with the ART_BASE_URL and ART_API_KEY of this trainer "
    "server"
)


async def fetch_remote_records(scope: Scope, *, failed: bool) -> None:
    """Adds to the record of a rollout what remote graphs did in it.

    Where a record is missing, a warning says why, once per process and cause; a graph that raised before its run began
    has its error already. The ledger then has what the rollout's models asked the trainer server.

    Args:
        scope: The rollout, whose graph has ended.
        failed: Whether its graph raised.
    """
    results = await asyncio.gather(*(_fetch_records(scope, call, failed=failed) for call in scope.remote))
    for call, records in zip(scope.remote, results, strict=True):
        scope.unrecorded |= not (records.ended and records.records)
        for record in records.records:
            _add(scope, record, call.place)
            scope.records.append(record.trajectory)
    if scope.unrecorded:
        scope.outside = True
        scope.servers.update((server.url, server.api_key) for server in known_servers())
    if any(call.place.path for call in scope.remote):
        for parts in (scope.recorder.completions, scope.recorder.tool_calls, scope.recorder.nodes):
            parts.sort(key=lambda part: part.started)


async def _fetch_records(scope: Scope, call: RemoteCall, *, failed: bool) -> RemoteRecords:
    """The records of a call's runs: what has come when the time is over."""
    servers, patience = known_servers(), _AFTER_AN_ERROR if failed else _PATIENCE
    if not servers:
        warn_once(
            f"the record of remote graph {call.graph} cannot come home: this process knows no trainer server",
            "Set ART_BASE_URL and ART_API_KEY to those of the server that the remote graph asks",
        )
        return RemoteRecords()
    path = f"{rollout_api_path(scope.rollout_id)}/records/{quote(call.id, safe='')}"
    newest: RemoteRecords | None = None
    polls = [asyncio.ensure_future(_poll_server(server, path, patience)) for server in servers]
    try:
        for answer in asyncio.as_completed(polls):
            server, records = await answer
            if records is not None:
                scope.servers.add((server.url, server.api_key))
                newest = records
                if records.ended:
                    return records
    finally:
        for task in polls:
            task.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
    if newest is None and failed:
        return RemoteRecords()
    if newest is None:
        warn_once(
            f"the process of remote graph {call.graph} does not record its runs, or tells another trainer server of "
            f"them than {', '.join(server.url for server in servers)}",
            f"{_CAPTURE}. Or let its model send the header X-ART-Rollout of the run's request: its completions and "
            "tool calls then come from the ledger, without nodes",
            example=scope.rollout_id,
        )
        return RemoteRecords()
    warn_once(
        f"a run of remote graph {call.graph} began, and its record did not come home within {patience:g} s after the "
        "call: the process is gone or has not finished the run, or the trainer server refused the record",
        "Look at the log of the remote process",
        example=scope.rollout_id,
    )
    return newest


async def _poll_server(server: Connection, path: str, patience: float) -> tuple[Connection, RemoteRecords | None]:
    """A server, and what it has of a call after `patience` seconds at most; None when it has no run."""
    newest: RemoteRecords | None = None
    headers = {"Authorization": f"Bearer {server.api_key}"}
    timeout = httpx.Timeout(_ROUND + 5, connect=5.0)
    async with httpx.AsyncClient(headers=headers, timeout=timeout, transport=AsyncProxyTransport()) as http:
        began, rest = time.monotonic(), patience * _GRACE
        while rest > 0:
            try:
                answer = await http.get(f"{server.url}{path}", params={"wait": min(rest, _ROUND)})
            except httpx.TransportError:
                await asyncio.sleep(_AGAIN)
            else:
                if answer.is_success and (newest := _read(answer.text, server)).ended:
                    break
                if not answer.is_success and answer.status_code != 404:
                    await asyncio.sleep(_AGAIN)
            rest = began + patience * (1.0 if newest else _GRACE) - time.monotonic()
    return server, newest


def _read(text: str, server: Connection) -> RemoteRecords:
    try:
        return from_json(RemoteRecords, text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        warn_once(
            f"a record of a remote graph, at the trainer server {server.url}, cannot be read: {where}: {first['msg']}",
            "Let both processes use the same version of art-langgraph",
        )
        return RemoteRecords(ended=True)


def _add(scope: Scope, record: RemoteRecord, place: Place) -> None:
    """Adds a run to the record of a rollout, at the place where the rollout called it."""
    run = record.trajectory
    agents = {part.agent for part in (*run.nodes, *run.completions, *run.tool_calls)}
    for node in run.nodes:
        _move(node, place, agents)
        scope.recorder.add_node(node)
    for completion in run.completions:
        _move(completion, place, agents)
        scope.recorder.add_completion(completion)
    for tool_call in run.tool_calls:
        _move(tool_call, place, agents)
        scope.recorder.tool_calls.append(tool_call)
    scope.mark_count += record.marked


def _move(part: Place, place: Place, agents: Collection[str | None]) -> None:
    """Puts something of a remote run under the node that called the run. Nothing changes where no node did."""
    if not place.path:
        return
    named_twice = part.path[:1] == place.path[-1:] and part.path[0] in agents
    part.path = [*place.path, *part.path[named_twice:]]
    part.namespace = "|".join(filter(None, (place.namespace, part.namespace)))
    part.parent = part.parent or (place.attempt if part.attempt else place.parent)
    part.attempt = part.attempt or place.attempt
    part.node = part.node or place.node
    part.agent = part.agent or place.agent
