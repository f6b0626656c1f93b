"""What the parent does for its gateway processes: it decides, counts and writes, as it does for its own requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.types import ASGIApp, Message, Scope

from trainer_server.engines.base import Engine, Reachable
from trainer_server.engines.slots import Key
from trainer_server.gateway.resolver import Source
from trainer_server.gateway.splice.turns import Match, Turn
from trainer_server.ledger.base import LedgerRow, TakesRows
from trainer_server.process import logs
from trainer_server.server.access.scopes import set_token
from trainer_server.server.access.tokens import Token
from trainer_server.server.gateways.channel import Call, Channel, ChannelLost, Handler, Note
from trainer_server.server.server import Server

_MOST_MATCHES = 3
"""Turns of a conversation that a process gets, the longest ones. Each has all of its tokens, and a shorter one is
needed only where no longer one can be spliced."""


class GatewayCalls:
    """Answers the calls of gateway processes.

    Args:
        server: The server.
        app: Its application, which answers all that is no completion.
    """

    def __init__(self, server: Server, app: ASGIApp) -> None:
        self._server, self._app = server, app
        self._rows = server.ledger if isinstance(server.ledger, TakesRows) else None
        self._numbers: dict[Engine, int] = {engine: number for number, engine in enumerate(server.engines)}
        self._forwards: set[asyncio.Task[None]] = set()

    def channel(self) -> Channel:
        """A channel to one more process."""

        async def forward(call: Call, scope: Scope, number: int) -> None:
            await self._forward(channel, scope, number)

        handlers: dict[str, Handler] = {
            "forward": forward,
            "enter": self._enter,
            "check_owner": self._check_owner,
            "resolve": self._resolve,
            "find_turns": self._find_turns,
            "add_turn": self._add_turn,
            "admit": self._admit,
            "place": self._place,
            "record": self._record,
        }
        notes: dict[str, Note] = {
            "mark_lost": self._mark_lost,
            "charge": self._server.quotas.charge,
            "count_request": self._server.counters.count_request,
            "log": logs.take,
        }
        channel = Channel(handlers, notes)
        return channel

    async def _forward(self, channel: Channel, scope: Scope, number: int) -> None:
        """Answers a request that a process has passed on. A process that ends is a client that disconnects."""

        async def receive() -> Message:
            try:
                message: Message = await channel.call("receive", number)
                return message
            except ChannelLost:
                return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            try:
                await channel.call("send", number, message)
            except ChannelLost:
                pass

        task = asyncio.ensure_future(self._app(scope, receive, send))
        self._forwards.add(task)
        task.add_done_callback(self._forwards.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if channel.is_open:  # the process has waited for long enough, as it stops
                task.cancel()
            raise

    async def _enter(self, call: Call, token: Token, rollout: str | None) -> None:
        with self._server.quotas.admit(token):
            if rollout:
                await self._server.owners.check(_scope_of(token), [rollout], begins=True)
            await call.hold(None)

    async def _check_owner(self, _call: Call, token: Token, rollout: str) -> None:
        await self._server.owners.check(_scope_of(token), [rollout], begins=False)

    async def _resolve(self, _call: Call, model: str, headers: Mapping[str, str]) -> Source:
        return await self._server.gateway.resolver.resolve(model, headers)

    async def _find_turns(self, _call: Call, beginnings: Sequence[tuple[int, bytes]]) -> list[Match]:
        return self._server.turns.find(beginnings, _MOST_MATCHES)

    async def _add_turn(self, _call: Call, key: bytes, rollout: str | None, turn: Turn) -> None:
        self._server.turns.put(key, rollout, turn)

    async def _admit(self, call: Call, policy: str | None) -> None:
        async with self._server.gateway.sampler.admit(policy):
            self._server.gateway.requests += 1
            await call.hold(None)

    async def _place(self, call: Call, source: Source, conversation: str, prompt: str | None) -> None:
        async with self._server.gateway.sampler.place(source, lambda: conversation, lambda: prompt) as (engine, name):
            facts = engine.max_model_len, engine.no_tools, engine.constrains_calls
            lost = await call.hold((self._numbers[engine], name, facts))
            if lost is not None and isinstance(engine, Reachable):
                engine.note_request(lost=lost)

    async def _record(self, _call: Call, rows: Sequence[Any], counts: Sequence[tuple[Any, ...]]) -> None:
        if self._rows is not None:
            records: Sequence[LedgerRow] = rows
            await self._rows.add_rows(records)
        else:
            await self._server.ledger.add(*rows)
        for count in counts:
            self._server.counters.count_completion(*count)

    def _mark_lost(self, key: Key) -> None:
        self._server.slots.mark_lost(key)


def _scope_of(token: Token) -> Scope:
    """As much of a request as `RolloutOwners` reads."""
    scope: Scope = {}
    set_token(scope, token)
    return scope
