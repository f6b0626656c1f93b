"""Registers a rollout at the trainer server before it runs, and adds the ledger's record of it afterwards."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import httpx

from art_langgraph.attempts import Attempts, remark
from art_langgraph.capture.scope import Scope
from art_langgraph.client.api import read_error
from art_langgraph.client.outages import explain, retry_seconds
from art_langgraph.client.transport import LoopTransport, PatientAsyncClient, PatientClient
from art_langgraph.messages import plain
from art_langgraph.programs.run import Run
from art_langgraph.redaction import redact
from art_langgraph.trajectory import Trajectory
from trainer_server.common import Connection
from trainer_server.common.jsonl import from_json, to_json
from trainer_server.wire import ARTError, Registration, RolloutScenario, RolloutSpec, ServerError, ServerUnreachable

log = logging.getLogger("art_langgraph")

_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
_STREAM_CLOSED = "left: the client closed the stream before the end of the answer"
_BRIEFLY = 0.3
"""Seconds for which a request is repeated to a server that a run may not need: an idle connection may have been cut."""


@lru_cache
def _clients(patience: float) -> tuple[PatientClient, PatientAsyncClient]:
    """HTTP clients for all rollouts of the process; addresses and keys come with each request."""
    return (
        PatientClient(patience, timeout=_TIMEOUT),
        PatientAsyncClient(patience, transport=LoopTransport(), timeout=_TIMEOUT),
    )


class LedgerClient:
    """Asks a trainer server about rollouts: with an event loop (`send`), or without one (`send_now`).

    Both raise ServerError when the server refuses, and ServerUnreachable when it stays away for `patience` seconds.

    Args:
        server: The trainer server.
        patience: Seconds for which a request is repeated while no server answers.
    """

    def __init__(self, server: Connection, patience: float) -> None:
        self._server = server
        self._sync, self._async = _clients(patience)

    async def send(self, method: str, path: str, body: str | None = None) -> bytes:
        """Sends a request, and returns the body of the answer.

        Args:
            method: Of HTTP.
            path: Behind `/api/rollouts/`.
            body: JSON; None: the request has none.

        Raises:
            ServerError: The server refuses.
            ServerUnreachable: The server stays away.
        """
        try:
            return _read_content(await self._async.request(method, **self._request(path, body)))
        except httpx.TransportError as error:
            raise self._outage_error(error) from error

    def send_now(self, method: str, path: str, body: str | None = None) -> bytes:
        """The same, without an event loop.

        Args:
            method: HTTP method.
            path: Path of the request, behind `/api/rollouts/`.
            body: Body of the request, as JSON; None: the request has none.
        """
        try:
            return _read_content(self._sync.request(method, **self._request(path, body)))
        except httpx.TransportError as error:
            raise self._outage_error(error) from error

    def _request(self, path: str, body: str | None) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._server.api_key}", "Content-Type": "application/json"}
        return {"url": f"{self._server.url}/api/rollouts/{path}", "content": body, "headers": headers}

    def _outage_error(self, error: httpx.TransportError) -> ServerUnreachable:
        return ServerUnreachable(
            f"no trainer server answers at {self._server.url} ({explain(error)}), "
            "and its ledger has what the rollout did"
        )


def _read_content(answer: httpx.Response) -> bytes:
    if not answer.is_success:
        raise read_error(answer)
    return answer.content


async def register(run: Run, *, evaluation: bool, metadata: Mapping[str, Any], certain: bool = True) -> None:
    """Registers at the trainer server what holds for the requests of a run: its version, temperature, hints, scenario.

    A server that is away, or none at all, ends no run: the run may need none. When the run has ended, its answers are
    compared with its version and temperature.

    Args:
        run: The run, before it begins.
        evaluation: Whether the run evaluates a version. Such a run is never trained on.
        metadata: The user's data, kept in the trajectory.
        certain: Whether the run is known to be a program. Otherwise a server that is away is not waited for.

    Raises:
        ServerError: The server refuses.
    """
    if run.server is None:
        return
    ledger = LedgerClient(run.server, retry_seconds() if certain and run.scope.pinned else _BRIEFLY)
    body = _registration(run, evaluation=evaluation, metadata=metadata)
    try:
        _note_registration(run, await ledger.send("PUT", run.rollout_id, body))
    except (ServerUnreachable, ServerError) as error:
        _not_registered(error, certain=certain)


def register_now(run: Run, *, evaluation: bool, metadata: Mapping[str, Any]) -> None:
    """The same as `register`, without an event loop, for a run that is known to be a program.

    Args:
        run: The run, before it begins.
        evaluation: Whether the run evaluates a version. Such a run is never trained on.
        metadata: The user's data, kept in the trajectory.
    """
    if run.server is None:
        return
    ledger = LedgerClient(run.server, retry_seconds() if run.scope.pinned else _BRIEFLY)
    try:
        body = _registration(run, evaluation=evaluation, metadata=metadata)
        _note_registration(run, ledger.send_now("PUT", run.rollout_id, body))
    except (ServerUnreachable, ServerError) as error:
        _not_registered(error, certain=True)


async def add_ledger(run: Run, trajectory: Trajectory) -> None:
    """Adds to a trajectory what the ledger has of its run, and LangChain's callbacks did not report.

    Raises:
        ServerUnreachable: The server stays away.
        ServerError: The server refuses.
    """
    for server in _find_servers(run):
        try:
            answer = await LedgerClient(server, retry_seconds()).send("GET", run.rollout_id)
        except ServerError as error:
            _raise_unless_unknown(error)
        else:
            _add(trajectory, from_json(Trajectory, answer.decode()), run.scope)


def add_ledger_now(run: Run, trajectory: Trajectory) -> None:
    """The same, without an event loop."""
    for server in _find_servers(run):
        try:
            answer = LedgerClient(server, retry_seconds()).send_now("GET", run.rollout_id)
        except ServerError as error:
            _raise_unless_unknown(error)
        else:
            _add(trajectory, from_json(Trajectory, answer.decode()), run.scope)


def _registration(run: Run, *, evaluation: bool, metadata: Mapping[str, Any]) -> str:
    scenario, version = run.scenario, run.scope.version
    task = RolloutScenario(id=scenario.id[:200], input=plain(scenario.input), metadata=plain(scenario.metadata))
    spec = RolloutSpec(
        scenario=task,
        version=dict(version) if isinstance(version, Mapping) else version,
        temperature=run.scope.temperature,
        hints=dict(run.scope.hints),
        evaluation=evaluation,
        metadata=plain(dict(metadata)),
    )
    return to_json(redact(spec))


def _note_registration(run: Run, answer: bytes) -> None:
    run.policies, run.registered = Registration.model_validate_json(answer).policies, True


def _not_registered(error: ARTError, *, certain: bool) -> None:
    """Raises the error of a server that refuses a run which is known to be a program."""
    if certain and isinstance(error, ServerError):
        raise error
    log.log(
        logging.WARNING if certain else logging.DEBUG,
        "a run begins without the trainer server, so that requests by its base URL are not held to a version and a "
        "temperature: %s",
        error,
    )


def _find_servers(run: Run) -> list[Connection]:
    """The trainer servers whose ledgers may have completions of a run."""
    servers = dict.fromkeys([run.server] if run.server is not None and run.registered else [])
    for url, key in run.scope.servers:
        if isinstance(key, str):
            servers[Connection(url, key)] = None
    return list(servers)


def _raise_unless_unknown(error: ServerError) -> None:
    if error.status != 404:  # a server that does not know the run has nothing of it
        raise error


def _add(trajectory: Trajectory, record: Trajectory, scope: Scope) -> None:
    """Adds what the ledger has and LangChain's callbacks did not report.

    An answer that they report without an id is there already: the agent left its stream, or stopped waiting. What
    another client left of a stream counts as little, although the ledger may have all of it.
    """
    reported_ids = {call.id for call in trajectory.completions}
    missing = []
    for call in record.completions:
        answer = str(call.id).partition(".")[0]  # choices of one answer: `<id>`, `<id>.1`, …
        if call.id in reported_ids or answer in scope.reported_ids:
            continue
        if not scope.streamed_answers.get(answer, True):
            call.error = call.error or _STREAM_CLOSED
        missing.append(call.model_copy(update=dict(scope.places.get(answer, ()))))
    remark(missing, {}, Attempts(trajectory.nodes).supersessions)
    trajectory.completions = sorted([*trajectory.completions, *missing], key=lambda call: call.started)
    reported_tools = Counter(call.tool_call_id for call in trajectory.tool_calls if call.tool_call_id is not None)
    tools = list(trajectory.tool_calls)
    for tool in record.tool_calls:
        if tool.tool_call_id is not None and reported_tools[tool.tool_call_id]:
            reported_tools[tool.tool_call_id] -= 1
        else:
            tools.append(tool)
    trajectory.tool_calls = sorted(tools, key=lambda call: call.started)
