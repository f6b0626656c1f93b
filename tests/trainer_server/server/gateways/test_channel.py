"""Calls between two processes of a server; here both ends are in one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.patience import PATIENCE
from trainer_server.gateway.errors import APIError
from trainer_server.ledger.base import DiskFull
from trainer_server.server.gateways.channel import Call, Channel, ChannelLost, Handler, first_note


@asynccontextmanager
async def ends(
    notes: dict[str, Callable[..., None]] | None = None, **handlers: Handler
) -> AsyncIterator[list[Channel]]:
    """Both ends of a channel: the first one calls the second one's handlers."""
    channels = [Channel({}, {}), Channel(handlers, {})]
    for channel, end in zip(channels, socket.socketpair(), strict=True):
        await channel.open(end)
    async with asyncio.timeout(PATIENCE):
        yield channels
    for channel in channels:
        channel.close()
    await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


async def test_calls_of_both_directions_are_answered_whatever_their_size() -> None:
    async def echo(_call: Call, value: Any) -> Any:
        return value

    async with ends(echo=echo) as (near, far):
        large = bytes(3_000_000)
        assert await asyncio.gather(*(near.call("echo", value) for value in (1, large, None))) == [1, large, None]
        near._handlers = {"echo": echo}
        assert await far.call("echo", "back") == "back"


@pytest.mark.parametrize(
    "error", [APIError(429, "too many", code="full", param="p", retry_after=7), DiskFull("the disk is full")]
)
async def test_an_error_is_raised_at_the_caller_as_it_was(error: Any) -> None:
    async def fail(_call: Call) -> None:
        raise error

    async with ends(fail=fail) as (near, _):
        with pytest.raises(type(error)) as raised:
            await near.call("fail")
        assert (str(raised.value), vars(raised.value)) == (str(error), vars(error))


async def test_a_reply_that_cannot_be_sent_is_an_error() -> None:
    async def unsendable(_call: Call) -> Any:
        return lambda: None

    async with ends(unsendable=unsendable) as (near, _):
        with pytest.raises(Exception, match="pickle"):
            await near.call("unsendable")


async def test_a_call_is_held_until_its_caller_leaves_with_an_outcome() -> None:
    outcomes: list[Any] = []

    async def place(call: Call, name: str) -> None:
        outcomes.append(await call.hold(f"a place for {name}"))

    async with ends(place=place) as (near, _):
        async with near.hold("place", "a") as hold:
            assert hold.value == "a place for a"
            await asyncio.sleep(0.01)
            assert not outcomes
            hold.outcome = "done"
        with pytest.raises(KeyError):
            async with near.hold("place", "b"):
                raise KeyError
        await until(lambda: outcomes == ["done", None])


async def wait(call: Call) -> None:
    await asyncio.sleep(600)


async def hold(call: Call) -> None:
    await call.hold(None)


@pytest.mark.parametrize("work", [wait, hold])
async def test_what_nobody_waits_for_is_cancelled(work: Callable[[Call], Awaitable[None]]) -> None:
    """Its caller was cancelled, or the caller's process has ended."""
    ended: list[str] = []

    async def handler(call: Call, name: str) -> None:
        try:
            await work(call)
        finally:
            ended.append(name)

    async with ends(handler=handler) as (near, far):

        async def use(name: str) -> None:
            async with near.hold("handler", name):
                await asyncio.sleep(600)

        uses = [asyncio.create_task(use(name)) for name in ("cancelled", "cut off")]
        await until(lambda: len(far._calls) == 2)
        uses[0].cancel()
        await until(lambda: ended == ["cancelled"])
        near.close()
        await until(lambda: ended == ["cancelled", "cut off"])
        uses[1].cancel()
        await asyncio.gather(*uses, return_exceptions=True)


async def test_calls_fail_when_the_other_process_has_ended() -> None:
    async with ends(wait=wait) as (near, far):
        call = asyncio.create_task(near.call("wait"))
        await until(lambda: far._calls)
        far.close()
        with pytest.raises(ChannelLost):
            await call
        with pytest.raises(ChannelLost):
            await near.call("wait")
        near.note("anything")  # nobody hears it


async def test_the_first_note_is_read_before_the_channel_is_open_and_no_byte_more() -> None:
    seen: list[int] = []
    near, end = Channel({}, {}), socket.socketpair()
    await near.open(end[0])
    near.note("setup", "values", 1)
    near.note("count", 2)
    assert await asyncio.to_thread(first_note, end[1]) == ("values", 1)
    far = Channel({}, {"count": seen.append})
    await far.open(end[1])
    await until(lambda: seen == [2])
    near.close()
    far.close()
    nothing = socket.socketpair()
    nothing[0].close()
    with nothing[1], pytest.raises(ChannelLost):
        first_note(nothing[1])
