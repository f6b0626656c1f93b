"""What a gateway process leaves to its parent, stage by stage. There, `GatewayCalls` answers what is called here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from trainer_server.engines.base import EngineClient, EngineLost, Reply
from trainer_server.engines.slots import Key
from trainer_server.gateway.resolver import Source
from trainer_server.gateway.sampler import EngineSender
from trainer_server.gateway.splice.splicer import SpliceMode, Splicer
from trainer_server.gateway.splice.turns import Conversation, Match, Turn
from trainer_server.ledger.base import Ledger, LedgerError, TakesRows
from trainer_server.server.gateways.channel import Channel
from trainer_server.wire import Completion
from trainer_server.wire.headers import ROLLOUT, TEMPERATURE, VERSION

_HEADERS = (ROLLOUT, TEMPERATURE, VERSION)
"""What `Resolver.resolve` reads."""


class RemoteSources:
    """The parent's `Resolver`.

    Args:
        channel: To the parent.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def resolve(self, model: str, headers: Mapping[str, str]) -> Source:
        parts = {name: headers[name] for name in _HEADERS if name in headers}
        source: Source = await self._channel.call("resolve", model, parts)
        return source


class RemoteSplicer(Splicer):
    """Splices prompts with the turns that the parent remembers of all its processes.

    Args:
        mode: Which prompts are spliced.
        channel: To the parent.
    """

    def __init__(self, mode: SpliceMode, channel: Channel) -> None:
        super().__init__(mode)
        self._channel = channel

    async def find_turns(self, conversation: Conversation) -> Sequence[Match]:
        if not (beginnings := conversation.beginnings()):
            return ()
        matches: Sequence[Match] = await self._channel.call("find_turns", beginnings)
        return matches

    async def add_turn(self, conversation: Conversation, turn: Turn) -> None:
        await self._channel.call("add_turn", conversation.answer_key(turn.message), conversation.rollout, turn)


class RemoteLedger:
    """The parent's ledger: it writes, and this process makes the rows. Otherwise an answer's row would be most of what
    it costs the parent.

    Args:
        ledger: The same ledger, which this process reads.
        channel: To the parent.
    """

    def __init__(self, ledger: Ledger, channel: Channel) -> None:
        self._rows = ledger if isinstance(ledger, TakesRows) else None
        self._channel = channel

    async def add(self, *completions: Completion) -> None:
        try:
            rows = completions if self._rows is None else [self._rows.row_of(completion) for completion in completions]
        except Exception as error:
            raise LedgerError(f"{completions[0].id} cannot be written to the ledger: {error}") from error
        counts = [(row.policy, row.status, len(row.prompt_token_ids), len(row.token_ids)) for row in completions]
        await self._channel.call("record", rows, counts)


@dataclass(frozen=True, slots=True)
class EngineLink:
    """An engine of the parent, which this process sends requests to by a client of its own: an `EngineClient`."""

    client: EngineClient
    max_model_len: int | None
    no_tools: str | None
    constrains_calls: bool

    @property
    def url(self) -> str:
        return self.client.url

    def chat(self, request: Mapping[str, Any]) -> AbstractAsyncContextManager[Reply]:
        return self.client.chat(request)

    def complete(self, request: Mapping[str, Any]) -> AbstractAsyncContextManager[Reply]:
        return self.client.complete(request)

    async def render(self, chat: Mapping[str, Any], *, generation: bool) -> list[int]:
        return await self.client.render(chat, generation=generation)

    async def tokenize(self, text: str) -> list[int]:
        return await self.client.tokenize(text)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return await self.client.detokenize(tokens)


class RemoteSender(EngineSender):
    """Sends requests to the engines that the parent chooses. The parent counts them there, and knows how they ended.

    Args:
        channel: To the parent.
        clients: Of the engines, in the parent's order.
    """

    def __init__(self, channel: Channel, clients: Sequence[EngineClient]) -> None:
        self._channel, self._clients = channel, clients
        self.engine_count = len(clients)

    @asynccontextmanager
    async def admit(self, policy: str | None) -> AsyncIterator[None]:
        async with self._channel.hold("admit", policy):
            yield

    @asynccontextmanager
    async def place(
        self, source: Source, conversation: Callable[[], str], prompt: Callable[[], str | None]
    ) -> AsyncIterator[tuple[EngineClient, str]]:
        key = first_prompt = None
        if self.engine_count > 1:
            key, first_prompt = (conversation(), None) if source.rollout is None else (None, prompt())
        async with self._channel.hold("place", source, key or "", first_prompt) as hold:
            number, name, facts = hold.value
            try:
                yield EngineLink(self._clients[number], *facts), name
                hold.outcome = False
            except EngineLost:
                hold.outcome = True
                raise

    def mark_lost(self, key: Key) -> None:
        self._channel.note("mark_lost", key)
