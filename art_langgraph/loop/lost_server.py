"""A run that lost its connection to the trainer server in a model call, and whether it can be repeated."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import httpx

from art_langgraph.client.outages import explain, outages, retry_seconds, speaks_no_tls
from art_langgraph.client.servers import known_servers, server_url
from art_langgraph.client.transport import PatientAsyncClient
from trainer_server.common import Connection
from trainer_server.wire import SERVER_STOPPING
from trainer_server.wire.errors import HOW_TO_START

log = logging.getLogger("art_langgraph")

REPEATS = 3
"""How often a run is repeated."""
_CONNECTION_ERRORS = {"NetworkError", "RemoteProtocolError", "ConnectTimeout"}
"""Classes of errors that say that a connection was refused or cut, by name: OpenAI's client is made with httpx or with
httpx2, and an error of the first is none of the second. OpenAI's own APIConnectionError says nothing: it comes from
these errors, and from any other error of a request."""
_TIMEOUT = httpx.Timeout(10.0, connect=5.0)


async def server_is_back(error: Exception, began: float) -> bool:
    """Waits for the trainer server that a run lost.

    Args:
        error: What the run raised. A run whose time was over lost the server if it was gone meanwhile.
        began: When the run began, by `time.monotonic`.

    Returns:
        Whether the run lost its connection to a trainer server, and the server answers again.
    """
    outage = _lost_server(error) or _waited_for(error, began)
    if outage is None:
        return False
    server, cause = outage
    log.warning(
        "a run lost the trainer server at %s (%s): it is repeated when the server is back", server.url, explain(cause)
    )
    async with PatientAsyncClient(retry_seconds(), timeout=_TIMEOUT) as http:
        try:
            await http.get(f"{server.url}/health")
        except httpx.TransportError as gone:
            log.warning("a run is not repeated: the trainer server at %s is gone (%s)", server.url, explain(gone))
            return False
    return True


def run_error(error: Exception) -> str:
    """What a run raised, for its record. OpenAI's clients say "Connection error." alone, so that where a request went
    and why it failed is added, and what helps where no trainer server listens there."""
    text, keys = f"{type(error).__name__}: {error}", {server.api_key for server in known_servers()}
    for cause in _causes(error):
        request = _request(cause)
        if request is None or not _is_connection_error(cause):
            continue
        place = f"{request.url.scheme}://{request.url.netloc.decode()}: {explain(cause)}"
        if _key(request) in keys:
            refused = type(cause).__name__ == "ConnectError"
            return f"{text} ({place}. {HOW_TO_START})" if refused else f"{text} ({place})"
        return (
            f"{text} ({place}. It asked with a key that is of no trainer server here, that of OPENAI_API_KEY perhaps. "
            "A client that is to ask a policy needs address and key of the trainer server: use ChatART, or give it "
            "current_run().base_url and current_run().api_key)"
        )
    return text


def _lost_server(error: Exception) -> tuple[Connection, Exception] | None:
    """The trainer server to which a connection was lost, or which broke an answer off because it stops, and the error
    of that. None: no such error is among the causes."""
    keys = {server.api_key for server in known_servers()}
    for cause in _causes(error):
        request = _request(cause)
        is_stopping = getattr(cause, "code", None) == SERVER_STOPPING
        if request is None or speaks_no_tls(cause) or not (_is_connection_error(cause) or is_stopping):
            continue
        key, url = _key(request), str(request.url)
        if key in keys and "/v1/" in url:
            return Connection(server_url(url.partition("/v1/")[0]), key), cause
    return None


def _is_connection_error(error: Exception) -> bool:
    return not _CONNECTION_ERRORS.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def _key(request: Any) -> str:
    """The key that a request had."""
    header = request.headers.get("Authorization", "") or request.headers.get("X-API-Key", "")
    return str(header).removeprefix("Bearer ")


def _waited_for(error: Exception, began: float) -> tuple[Connection, Exception] | None:
    """The trainer server that the calls of a run waited for until its time was over."""
    if not isinstance(error, TimeoutError):
        return None
    servers = (server for server in known_servers() if outages.gone_since(httpx.URL(server.url), began))
    return next(((server, error) for server in servers), None)


def _causes(error: BaseException) -> Iterator[Exception]:
    """An error, those in its group, and those that it came from."""
    visited_ids: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        cause = queue.pop()
        if cause is None or id(cause) in visited_ids:
            continue
        visited_ids.add(id(cause))
        if isinstance(cause, Exception):
            yield cause
        if isinstance(cause, BaseExceptionGroup):
            queue += cause.exceptions
        queue += [cause.__context__, cause.__cause__]


def _request(error: Exception) -> Any:
    try:
        return getattr(error, "request", None)
    except RuntimeError:  # httpx: the error belongs to no request
        return None
