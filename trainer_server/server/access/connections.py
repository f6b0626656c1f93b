"""Connections of clients: how many there may be, how large heads may be, how long they may take, and what ends them."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import math
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from trainer_server.gateway.errors import APIError

log = logging.getLogger("trainer_server")

HEADER_TIMEOUT = 10.0
"""Seconds within which a client must have sent the headers of a request: after it has connected, and after it has begun
another one."""
MOST_HEAD = 64 * 2**10
"""Bytes of a request's head (its first line and its headers), and as many again of the trailers after a body in
chunks."""
MOST_FIELDS = 256
"""Headers of a request, and as many trailers."""
_MOST_AHEAD = 100
"""Requests that a client may send on a connection before an earlier one is answered."""
KEEP_ALIVE = 75.0
"""Seconds for which a connection is kept after an answer. Clients keep theirs for 5 s (httpx) to 60 s (proxies): the
server must keep it for longer, or it closes a connection in the moment in which a client sends its next request."""
_YOUNG = 1.0
"""Seconds for which a new connection is not closed in favour of a newer one: its request may be on its way."""
_MOST_FILES = 2**16
"""Open files that are planned with, however many the process may have."""
_OWN_FILES = 128
"""Files for everything but connections: ledger, logs, pipes, the connections of threads to the ledger."""
_SPARE = 16
"""Connections beyond those of admitted chat requests: for other requests, and for answers 429."""
_MOST_REFUSED = 16
"""Connections that have been refused, and whose clients have not closed them yet."""
_REFUSED_CLOSE_TIMEOUT = 2.0
"""Seconds that the client of a refused connection has to take the answer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server may have at once. Each connection is an open file."""

    connections: int
    """Connections of clients."""
    running: int
    """Chat requests that engines answer; each has one more connection, to its engine."""
    waiting: int
    """Chat requests that stand in line; see Admission."""

    @classmethod
    def of(cls, files: int) -> Limits:
        """The limits of a process.

        Args:
            files: Files that it may have open; resource.RLIM_INFINITY: any number.
        """
        files = _MOST_FILES if files == resource.RLIM_INFINITY else max(min(files, _MOST_FILES), 256)
        running = files // 16
        connections = files - _OWN_FILES - _MOST_REFUSED - running
        return cls(connections=connections, running=running, waiting=connections - _SPARE - running)

    @classmethod
    def here(cls) -> Limits:
        """The limits of this process."""
        return cls.of(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def raise_file_limit() -> None:
    """Raises the soft limit of open files to the hard one, and logs if that is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            log.warning("the limit of open files stays at %d: %s", soft, error)
    limits = Limits.here()
    if limits.running < Limits.of(4096).running:
        log.warning(
            "few files may be open (ulimit -n): %d chat requests are answered at once, %d wait, more are refused",
            limits.running,
            limits.waiting,
        )


def _last_answer(error: APIError) -> bytes:
    """The answer to a connection that is then closed, of which no application has seen a request."""
    body = json.dumps(error.body()).encode()
    retry = f"Retry-After: {error.retry_after}\r\n" if error.retry_after else ""
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n{retry}Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


_ONE_TOO_MANY = _last_answer(
    APIError(
        503,
        "the server has as many connections as it can have: ask again later, or from fewer clients at once",
        code="too_many_connections",
        retry_after=5,
    )
)
_HEAD_TOO_LARGE = _last_answer(
    APIError(
        431,
        f"the head of a request, and its trailers, may each have {MOST_HEAD // 2**10} KiB and {MOST_FIELDS} fields: "
        "send fewer or shorter headers",
        code="headers_too_large",
    )
)


class _TooLarge(Exception):
    """Ends the parser's work on a head or on trailers."""


class _Pool:
    """The connections of a server.

    Args:
        most: Connections at once.

    Attributes:
        idle: Connections without a request under way, and those whose client does not take its answer: since when. The
            longest one is first.
        closing: Connections that have their last answer and are not closed yet, the first one first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.idle: dict[_PatientProtocol, float] = {}
        self.closing: dict[_PatientProtocol, None] = {}
        self._last_warning = -math.inf

    def make_room(self, newest: _PatientProtocol) -> None:
        """Refuses a connection where there are too many: the one that has been idle for longest, or else the newest."""
        if len(newest.connections) - len(self.closing) <= self._most:
            return
        if time.monotonic() - self._last_warning >= 60:
            self._last_warning = time.monotonic()
            log.warning("there are more than %d connections: those that ask or take nothing are closed", self._most)
        first = next(iter(self.idle), newest)
        is_young = time.monotonic() - self.idle.get(first, math.inf) <= _YOUNG
        (newest if is_young else first).refuse(_ONE_TOO_MANY)

    def add_closing(self, connection: _PatientProtocol) -> None:
        """Adds a connection that gets its last answer, and aborts the first one where too many wait for their
        clients."""
        waiting = [other for other in self.closing if not other.is_aborted]
        if len(waiting) >= _MOST_REFUSED:
            waiting[0].abort()
        self.closing[connection] = None


class _PatientProtocol(HttpToolsProtocol):
    """A connection of uvicorn's with bounds; `patient_protocol` says which."""

    pool: _Pool
    is_aborted = False
    _size = _fields = 0
    """Bytes and fields of the head, or of the trailers, that the parser has reported."""
    _backlog = 0
    """Bytes that came since the parser ended a head or reported a part of a body. It may hold them all."""
    _is_trailing = False
    """Whether the head is complete, so that further fields are trailers."""
    _is_after_answer = False
    """Whether nothing has come since the last answer, to a request that was whole."""
    _timer: asyncio.TimerHandle | None = None
    _unsent = math.inf
    """Bytes of answers that were not sent when the timer ran out last."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.pool.make_room(self)
        self._update()

    def data_received(self, data: bytes) -> None:
        if self in self.pool.closing:  # a socket that is closed while something is unread takes the answer back
            return
        if self._is_after_answer:  # the next request has begun
            self._is_after_answer = False
            self._stop_timer()
        self._backlog += len(data)
        super().data_received(data)
        if self._backlog > MOST_HEAD and self not in self.pool.closing:  # in one field, or in the size of a chunk
            self._refuse_head()
        self._update()

    def on_message_begin(self) -> None:
        self._size = self._fields = 0
        self._is_trailing = False
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._add_size(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        self._add_size(len(name) + len(value))
        if not self._is_trailing:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._backlog = self._size = self._fields = 0
        self._is_trailing = True
        if len(self.pipeline) >= _MOST_AHEAD:
            raise _TooLarge
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._backlog = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._backlog = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answers what the parser refuses, and what ends its work here."""
        if self._is_too_large or len(self.pipeline) >= _MOST_AHEAD:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        self._is_after_answer = not self.cycle.more_body  # the rest of a body spoils the connection for other requests
        super().on_response_complete()
        self._update()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._update()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update()

    def connection_lost(self, error: Exception | None) -> None:
        self._set_busy()
        self.pool.closing.pop(self, None)
        super().connection_lost(error)

    def refuse(self, answer: bytes) -> None:
        """Sends a last answer, and closes the connection when its client has, or soon. What comes is dropped."""
        self._set_busy()
        if not self._has_no_request or self.transport.get_write_buffer_size():
            self.transport.abort()
            return
        self.pool.add_closing(self)
        self.transport.write(answer)
        self._timer = self.loop.call_later(_REFUSED_CLOSE_TIMEOUT, self.abort)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:  # TLS
            self.transport.close()

    def abort(self) -> None:
        """Closes the connection at once."""
        self.is_aborted = True
        self.transport.abort()

    @property
    def _has_no_request(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    @property
    def _is_too_large(self) -> bool:
        return self._size > MOST_HEAD or self._fields > MOST_FIELDS

    def _update(self) -> None:
        """Brings the pool and the timer up to date with what the connection does."""
        if self in self.pool.closing:
            return
        if self.transport.is_closing() or not (self._has_no_request or self.flow.write_paused):
            self._set_busy()
            return
        self.pool.idle.setdefault(self, time.monotonic())
        if not self._has_no_request:
            self._stop_timer()
        elif self._timer is None:
            self._unsent = math.inf
            seconds = KEEP_ALIVE if self._is_after_answer else HEADER_TIMEOUT
            self._timer = self.loop.call_later(seconds, self._on_timeout)

    def _on_timeout(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if not 0 < unsent < self._unsent:
            self.transport.abort()
        else:  # an answer on its way to a slow client
            self._unsent = unsent
            self._timer = self.loop.call_later(HEADER_TIMEOUT, self._on_timeout)

    def _add_size(self, size: int) -> None:
        self._size += size
        if self._is_too_large:
            raise _TooLarge

    def _refuse_head(self) -> None:
        """Answers 431. The connection is only closed where an answer to an earlier request, or to the one whose
        trailers are too large, is under way."""
        if self._is_trailing and not (self.pipeline or self._has_no_request or self.cycle.response_started):
            # Its application reads and writes no more.
            self.cycle.disconnected = self.cycle.response_complete = True
            self.cycle.message_event.set()
        self.refuse(_HEAD_TOO_LARGE)

    def _set_busy(self) -> None:
        self.pool.idle.pop(self, None)
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def patient_protocol(most: int) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol with bounds for clients that connect and say nothing, or send headers without end.

    uvicorn by itself waits for ever for the headers of a request, keeps any number of them, and adds the trailers after
    a body to the headers, when these have been checked. Its `limit_concurrency` refuses requests, and closes no idle
    connection, so that a few clients could lock out all others.

    The protocol answers 431 to a head, and to trailers, beyond MOST_HEAD bytes or MOST_FIELDS fields, and drops
    trailers. It closes a connection that has no request under way for HEADER_TIMEOUT seconds, or for KEEP_ALIVE after
    the answer to a whole request, if its client takes nothing of an earlier answer meanwhile. When there are too many
    connections, it closes the one that has been without a request, or has taken nothing of its answer, for longest; if
    there is none, the new one. It answers 503 to that one, whatever it asks, unless an answer is on its way.

    Args:
        most: Connections at once.
    """

    class PatientProtocol(_PatientProtocol):
        pool = _Pool(most)

    return PatientProtocol


class DrainingServer(uvicorn.Server):
    """uvicorn, which at its end waits for requests that are under way, and then calls back before it cancels them.

    Args:
        config: uvicorn's. Its `timeout_graceful_shutdown` must be longer than `grace`.
        grace: Seconds for which requests are waited for.
        end: Is called after that: ends streams that have begun, which cannot be answered any more.
        begin: Is called before that: ends streams that nobody needs to the end, such as those of open pages.
    """

    def __init__(
        self, config: uvicorn.Config, *, grace: float, end: Callable[[], None], begin: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(config)
        self._grace, self._end, self._begin = grace, end, begin

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        # What lives now lives to the end: the garbage collector need not look at it again, 0.1 s each time. And at all
        # that is remembered of conversations it looks ten times more rarely.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*gc.get_threshold()[:2], 100)

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        self._begin()
        timer = asyncio.get_running_loop().call_later(self._grace, self._end)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
