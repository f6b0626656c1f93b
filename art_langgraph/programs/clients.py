"""Requests of any client that is made with httpx carry the rollout that they are made in.

`openai`, `anthropic` and `litellm` send their requests by httpx or httpx2, whoever made the client and when.
`tie_clients` wraps the method that sends. A request from inside a rollout to the API of a trainer server under `/v1`,
with the server's key, then has the rollout's id, its temperature and its version. No other request is changed. A client
may send the rollout's id itself; one that sends another id is left alone.

It also keeps the connections of an async client until the client is gone (`_hold_connections`), and gives each event
loop that shares a client of `openai` connections of its own.
"""

from __future__ import annotations

import functools
import json
import re
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from art_langgraph.capture.requests import REPORTED_HEADER
from art_langgraph.capture.scope import Scope, current, enclosing_place
from art_langgraph.client.proxies import http_libraries
from art_langgraph.client.servers import known_servers
from art_langgraph.client.transport import keep_loops_apart
from art_langgraph.trajectory import CompletionCall
from trainer_server.common import Connection
from trainer_server.common.home import origin
from trainer_server.wire import rollout_path
from trainer_server.wire.headers import COMPLETION, ROLLOUT

_END = re.compile(rb'"(?:finish|stop)_reason": ?"|"type": ?"response\.(?:completed|incomplete|failed)"')
"""What the last part of an answer has, in the API of OpenAI's chat, of Anthropic, and of OpenAI's responses. Quotes in
the answer's text are escaped."""
_LONGEST_END = 40

_lock = threading.Lock()
_in_clients = False
_connections: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
"""What is held of async clients."""
_WORDS = 2000
"""Characters of a refusal that are recorded."""
_REFUSALS = 100
"""Refused requests of a rollout that are remembered, in case that they are sent again."""


def tie_clients() -> None:
    """Has the requests of httpx's clients carry their rollout. Once per process."""
    global _in_clients
    with _lock:
        if _in_clients:
            return
        for library in http_libraries():
            _tie(library.Client)
            _tie_async(library.AsyncClient)
        _in_clients = True


def _tie(kind: Any) -> None:
    plain = kind.send

    @functools.wraps(plain)
    def send(self: Any, request: Any, *args: Any, **options: Any) -> Any:
        is_reported = request.headers.pop(REPORTED_HEADER, None) is not None
        scope = current() if is_reported else _mark(request)
        answer = plain(self, request, *args, **options)
        if scope is not None and not is_reported and answer.is_client_error:
            answer.read()
            _note_refusal(scope, request, answer)
        _count(scope, request, answer, is_reported=is_reported)
        return answer

    kind.send = send


def _tie_async(kind: Any) -> None:
    plain = kind.send

    @functools.wraps(plain)
    async def send(self: Any, request: Any, *args: Any, **options: Any) -> Any:
        is_reported = request.headers.pop(REPORTED_HEADER, None) is not None
        scope = current() if is_reported else _mark(request)
        if scope is not None and type(self).__name__ == "AsyncHttpxClientWrapper":  # `openai` made it, not the user
            keep_loops_apart(self)
        _hold_connections(self)
        answer = await plain(self, request, *args, **options)
        if scope is not None and not is_reported and answer.is_client_error:
            await answer.aread()
            _note_refusal(scope, request, answer)
        _count(scope, request, answer, is_reported=is_reported)
        return answer

    kind.send = send


def _hold_connections(client: Any) -> None:
    """Keeps the garbage collector from closing the sockets of an async client that nobody closed.

    Clients of `openai` close themselves when they are collected, by a task. In the same collection asyncio's transports
    close their sockets. When the task then closes the transports, asyncio stops reading from the numbers of sockets
    that may be another connection's by then, and whoever waits for an answer there waits for ever. Agents that make a
    client in each run do not close it as a rule. The finalizer holds the connections, so that they are not collected
    together with their client; it has nothing else to do. A client of `openai` has others from its first rollout on.
    """
    if client not in _connections:
        _connections[client] = []
        weakref.finalize(client, _forget, _connections[client]).atexit = False
    held = _connections[client]
    connections = [getattr(client, "_transport", None), *getattr(client, "_mounts", {}).values()]
    held += [each for each in connections if each not in held]


def _forget(connections: list[Any]) -> None:
    """The client is collected. Its own task closes the connections, if it has one."""


def _mark(request: Any) -> Scope | None:
    """Adds the headers of the rollout to a request.

    Returns:
        The rollout; None for a request that was not changed.
    """
    scope = current()
    if scope is None or request.method != "POST":
        return None
    path = request.url.path
    own = path.startswith(f"{rollout_path(scope.rollout_id)}/v1/")  # a client with the rollout's own base URL
    if not own and (not path.startswith("/v1/") or request.headers.get(ROLLOUT, scope.rollout_id) != scope.rollout_id):
        return None
    server = _server_of(request)
    if server is None:
        return None
    for name, value in scope.headers.items():
        request.headers.setdefault(name, value)
    scope.servers.add((server.url, server.api_key))
    return scope


def _count(scope: Scope | None, request: Any, answer: Any, *, is_reported: bool) -> None:
    """Notes an answer in its rollout. is_reported: LangChain's callbacks report the request."""
    if scope is None or not answer.is_success:
        return
    completion = answer.headers.get(COMPLETION)
    if is_reported:
        scope.reported_ids |= {completion} if completion else set()
        return
    scope.mark_count += 1
    scope.outside = True
    if earlier := scope.refusals.pop(_content(request), None):
        earlier.superseded = "retry"
    if completion:
        scope.places[completion] = enclosing_place()
    if completion and not answer.is_closed:  # a whole answer has been read by now
        scope.streamed_answers[completion] = False
        _watch(answer, functools.partial(scope.streamed_answers.__setitem__, completion, True))


def _note_refusal(scope: Scope, request: Any, answer: Any) -> None:
    """Records that a request got an error in place of an answer. LangChain reports those of its own models.

    The ledger has the requests that an engine refused, but not those that the server itself did, such as one with a
    parameter that it does not know. What a client sends again counts once.
    """
    if COMPLETION in answer.headers:
        scope.outside = True  # so that the ledger is read
        return
    content = _content(request)
    body, refusal = _object(content), _object(answer.content).get("error")
    text = refusal.get("message") if isinstance(refusal, dict) else None
    prompt = body.get("messages") or body.get("input") or body.get("prompt")
    messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    call = CompletionCall(
        id=None,
        model=str(body.get("model")),
        messages=[message for message in messages if isinstance(message, dict)],
        error=f"refused: {text or answer.text}"[:_WORDS],
        started=time.time(),
        **dict(enclosing_place()),
    )
    if earlier := scope.refusals.pop(content, None):
        earlier.superseded = "retry"
    if len(scope.refusals) < _REFUSALS:
        scope.refusals[content] = call
    scope.recorder.add_completion(call)


def _content(request: Any) -> bytes:
    """The body of a request; nothing where it was a stream."""
    try:
        return bytes(request.content)
    except RuntimeError:  # RequestNotRead of httpx
        return b""


def _object(raw: bytes) -> dict[str, Any]:
    """A JSON object; an empty one where it is something else."""
    try:
        read = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _watch(answer: Any, on_end: Callable[[], None]) -> None:
    """Calls `on_end` when a client has read the end of a streamed answer. The bytes behind it, it may leave."""
    plain, plain_async, tail = answer.iter_raw, answer.aiter_raw, b""

    def search_end(part: bytes) -> None:
        nonlocal tail
        if _END.search(tail + part):
            on_end()
        tail = (tail + part)[-_LONGEST_END:]

    def iter_raw(*args: Any, **options: Any) -> Iterator[bytes]:
        for part in plain(*args, **options):
            search_end(part)
            yield part
        on_end()

    async def aiter_raw(*args: Any, **options: Any) -> AsyncIterator[bytes]:
        async for part in plain_async(*args, **options):
            search_end(part)
            yield part
        on_end()

    answer.iter_raw, answer.aiter_raw = iter_raw, aiter_raw


def _server_of(request: Any) -> Connection | None:
    """The trainer server of this process that a request goes to, with its key."""
    address = origin(str(request.url))
    keys = request.headers.get("Authorization", "").removeprefix("Bearer ").strip(), request.headers.get("X-API-Key")
    servers = (server for server in known_servers() if server.api_key in keys and origin(server.url) == address)
    return next(servers, None)
