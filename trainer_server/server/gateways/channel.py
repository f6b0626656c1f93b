"""Calls between two processes of one server, in both directions, over a pair of sockets that nobody else can open.

A frame is its length in four bytes, and a pickle: both ends run the same program for the same user. Frames of a
direction arrive in their order. A call that is replied to may be held open: its caller says when it leaves, and with
which outcome. When the other process ends, what is under way for it is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from trainer_server.gateway.errors import APIError
from trainer_server.wire import ARTError

log = logging.getLogger("trainer_server")

_HEAD = 4
"""Bytes of a frame's length."""
_CALL, _REPLY, _FAILURE, _LEAVE, _NOTE = range(5)

Handler = Callable[..., Awaitable[Any]]
"""Answers a call: gets its `Call` and the arguments. What it returns is the reply, if it has not held the call."""
Note = Callable[..., None]
"""Takes a message that has no reply."""


class ChannelLost(Exception):
    """The other process has ended."""


class Hold:
    """A call that is held open by its caller.

    Args:
        value: The reply.

    Attributes:
        outcome: What the other process is told when the caller leaves.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.outcome: Any = None


class Call:
    """A call of the other process.

    Args:
        channel: Where it came from.
        number: Its number.
    """

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel, self._number = channel, number
        self.task: asyncio.Task[None] | None = None
        self.departure: asyncio.Future[Any] | None = None

    async def hold(self, value: Any) -> Any:
        """Replies, and waits until the caller leaves.

        Returns:
            The outcome that the caller had.
        """
        self.departure = asyncio.get_running_loop().create_future()
        self._channel.send(_REPLY, self._number, value)
        return await self.departure


class Channel(asyncio.Protocol):
    """One end.

    Args:
        handlers: By name: what the other process may call.
        notes: By name: what it may say without a reply.
        on_loss: Called when the other process has ended.
    """

    def __init__(
        self, handlers: Mapping[str, Handler], notes: Mapping[str, Note], on_loss: Callable[[], None] = lambda: None
    ) -> None:
        self._handlers, self._notes, self._on_loss = handlers, notes, on_loss
        self._transport: asyncio.Transport | None = None
        self._numbers = count()
        self._replies: dict[int, asyncio.Future[Any]] = {}
        """By number: calls of this process that wait."""
        self._calls: dict[int, Call] = {}
        """By number: calls of the other process that are under way."""
        self._bytes = bytearray()

    async def open(self, end: socket.socket) -> None:
        """Begins on one of two connected sockets, which the channel closes."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=end)

    @property
    def is_open(self) -> bool:
        """Whether the other process is there."""
        return self._transport is not None and not self._transport.is_closing()

    async def call(self, name: str, *args: Any) -> Any:
        """Calls the other process.

        Returns:
            Its reply.

        Raises:
            ChannelLost: It has ended.
            Exception: What its handler raised.
        """
        number = self._call(name, args)
        try:
            return await self._replies[number]
        except asyncio.CancelledError:
            self.send(_LEAVE, number)
            raise
        finally:
            del self._replies[number]

    @asynccontextmanager
    async def hold(self, name: str, *args: Any) -> AsyncIterator[Hold]:
        """A call that is held open for as long as the context is. Raises as `call`."""
        number = self._call(name, args)
        hold = Hold(None)
        try:
            hold.value = await self._replies[number]
            yield hold
        finally:
            del self._replies[number]
            self.send(_LEAVE, number, hold.outcome)

    def note(self, name: str, *args: Any) -> None:
        """Sends a message that has no reply. Does nothing if the other process has ended."""
        self.send(_NOTE, 0, name, args)

    def send(self, *frame: Any) -> None:
        """Sends a frame, if the other process is there."""
        if self._transport is not None and not self._transport.is_closing():
            content = pickle.dumps(frame, 5)
            self._transport.write(len(content).to_bytes(_HEAD, "big") + content)

    def close(self) -> None:
        """Ends the channel; the other process is told."""
        if self._transport is not None:
            self._transport.close()

    def _call(self, name: str, args: tuple[Any, ...]) -> int:
        if not self.is_open:
            raise ChannelLost(name)
        number = next(self._numbers)
        self._replies[number] = asyncio.get_running_loop().create_future()
        self.send(_CALL, number, name, args)
        return number

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        start = 0
        while (rest := len(self._bytes) - start - _HEAD) >= 0:
            size = int.from_bytes(self._bytes[start : start + _HEAD], "big")
            if rest < size:
                break
            start += _HEAD
            with memoryview(self._bytes)[start : start + size] as content:
                frame = pickle.loads(content)
            start += size
            self._take(*frame)
        del self._bytes[:start]

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(ChannelLost("the other process of the server has ended"))
                reply.exception()  # nobody may wait for it any more
        for call in self._calls.values():
            if call.task is not None:
                call.task.cancel()
        self._on_loss()

    def _take(self, kind: int, number: int, *content: Any) -> None:
        if kind == _CALL:
            name, args = content
            call = self._calls[number] = Call(self, number)
            call.task = asyncio.create_task(self._answer(call, number, name, args))
        elif kind == _NOTE:
            name, args = content
            self._notes[name](*args)
        elif kind == _LEAVE:
            self._leave(number, *content)
        elif (reply := self._replies.get(number)) is not None and not reply.done():
            if kind == _REPLY:
                reply.set_result(content[0])
            else:
                reply.set_exception(_error(*content))

    def _leave(self, number: int, outcome: Any = None) -> None:
        call = self._calls.get(number)
        if call is None or call.task is None:
            return
        if call.departure is None:
            call.task.cancel()
        elif not call.departure.done():
            call.departure.set_result(outcome)

    async def _answer(self, call: Call, number: int, name: str, args: tuple[Any, ...]) -> None:
        try:
            reply = await self._handlers[name](call, *args)
            if call.departure is None:
                self.send(_REPLY, number, reply)
        except Exception as error:
            if not isinstance(error, ARTError | APIError | ChannelLost):
                log.exception("a call of another process of this server failed: %s", name)
            try:
                self.send(_FAILURE, number, type(error), error.args, dict(vars(error)))
            except Exception:  # it has what cannot be sent
                self.send(_FAILURE, number, RuntimeError, (f"{type(error).__name__}: {error}",), {})
        finally:
            del self._calls[number]


def first_note(end: socket.socket) -> tuple[Any, ...]:
    """The arguments of the note that comes first. Waits for it, before the channel is open.

    Raises:
        ChannelLost: The other process has ended.
    """
    size = int.from_bytes(_read(end, _HEAD), "big")
    *_, args = pickle.loads(_read(end, size))
    return tuple(args)


def _read(end: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        if not (part := end.recv(size - len(content))):
            raise ChannelLost("the other process of the server has ended")
        content += part
    return content


def _error(kind: type[Exception], args: tuple[Any, ...], attributes: dict[str, Any]) -> Exception:
    """An exception as it was raised in the other process, whatever its constructor takes."""
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(attributes)
    return error
