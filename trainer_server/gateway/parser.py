"""Stage 1, parse: the bytes of a request become a chat request whose values are checked, once and all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from starlette.requests import Request

from trainer_server.gateway.body import read_object
from trainer_server.gateway.client_api import ClientAPI, Exchange
from trainer_server.gateway.errors import APIError
from trainer_server.gateway.parameters import (
    ChatBody,
    TextBody,
    check_media,
    check_parameters,
)
from trainer_server.ledger.base import Ledger, LedgerError
from trainer_server.wire import Completion, CompletionStatus, Sampling
from trainer_server.wire.completions import effective_temperature
from trainer_server.wire.json_size import off_loop
from trainer_server.wire.rollouts import hinted_messages
from trainer_server.wire.tool_arguments import complete_calls

log = logging.getLogger("trainer_server")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked chat request."""

    body: dict[str, Any]
    """The request as one for chat completions. Its tool calls have an id and arguments each."""
    options: ChatBody
    """The parameters in it, with their defaults."""
    sampling: Sampling
    """Effective sampling parameters, after defaults and overrides."""
    dropped_names: list[str]
    """Parameters that the client sent and that change nothing about the answer."""
    exchange: Exchange
    """The request in the client's API, and the translation of its answer."""

    @property
    def prompt(self) -> str | list[int] | None:
        """The prompt of a text completion, as text or as token ids. None: it is rendered from the messages."""
        return self.exchange.prompt

    @property
    def model(self) -> str:
        """The policy, version or base model that the client named."""
        return self.options.model

    @property
    def stream(self) -> bool:
        """Whether the answer is streamed."""
        return self.options.stream

    @property
    def shrinks(self) -> bool:
        """Whether the limit of tokens holds as far as the context allows: that of the server's default, which applies
        where the client names none, and that of an elastic request."""
        return self.exchange.elastic or (self.options.max_completion_tokens is None and self.options.max_tokens is None)

    def override(self, *, temperature: float | None, hint: str | None) -> Self:
        """The request with what its rollout and its policy decide.

        Args:
            temperature: Of the sampling; None: as requested.
            hint: Text that is put into the messages; None: none.

        Raises:
            APIError: 400, there is a hint, and no message to put it into.
        """
        chat = self
        if hint is not None:
            if self.prompt is not None:
                raise APIError(400, "a text completion has no messages, which the rollout's hint needs", param="prompt")
            messages = complete_calls(hinted_messages(self.exchange.chat["messages"], hint))
            chat = replace(chat, body={**self.body, "messages": messages})
        if temperature is not None:
            effective = {"temperature": effective_temperature(temperature)}
            chat = replace(chat, sampling=self.sampling.model_copy(update=effective))
        return chat


class Parser:
    """Reads requests.

    Args:
        ledger: Has the completions that requests continue by their id.
        check_owner: Called with a request and the rollout of the answer that it continues; raises APIError, 403, if the
            rollout belongs to another token.
        max_tokens: Limit of tokens where a request names none.
        media_domains: Domains from which engines may fetch images and other media; empty: they fetch nothing.
    """

    def __init__(
        self,
        ledger: Ledger,
        check_owner: Callable[[Request, str], Awaitable[None]],
        *,
        max_tokens: int = 1024,
        media_domains: Collection[str] = (),
    ) -> None:
        self._ledger, self._check_owner = ledger, check_owner
        self._max_tokens, self._media_domains = max_tokens, media_domains
        self._logged_names: set[str] = set()
        """Dropped parameters that were logged. Each is logged once."""

    async def parse(self, request: Request, api: ClientAPI) -> ChatRequest:
        """Reads a request, and the completion that it continues.

        Raises:
            APIError: The request is wrong; the error names the field as the client calls it.
        """
        raw = await request.body()
        body = await off_loop(len(raw), partial(read_object, raw, api.most_values))
        earlier = await self._earlier(request, api.continues(body))
        chat = await off_loop(len(raw), partial(self._chat, api, body, earlier))
        for name in sorted(set(chat.dropped_names) - self._logged_names):
            self._logged_names.add(name)
            log.info("clients send `%s`, which changes nothing here: it is dropped and noted in the ledger", name)
        return chat

    async def _earlier(self, request: Request, completion_id: str | None) -> Completion | None:
        """The completion that a request continues."""
        if completion_id is None:
            return None
        try:
            earlier = (await asyncio.to_thread(self._ledger.read, [completion_id])).get(completion_id)
        except LedgerError as error:
            raise APIError(503, str(error), code="ledger_unreadable", retry_after=5) from None
        if earlier is None or earlier.status != CompletionStatus.complete:
            why = "this server has no such answer" if earlier is None else f"that answer is {earlier.status}"
            message = f"{why} ({completion_id}), or no longer: send the whole conversation instead of the answer's id"
            raise APIError(404, message, code="previous_response_not_found", param="previous_response_id")
        if earlier.rollout is not None:
            await self._check_owner(request, earlier.rollout)
        return earlier

    def _chat(self, api: ClientAPI, body: Mapping[str, Any], earlier: Completion | None) -> ChatRequest:
        return chat_request(api.read(body, earlier), max_tokens=self._max_tokens, media_domains=self._media_domains)


def chat_request(exchange: Exchange, *, max_tokens: int, media_domains: Collection[str] = ()) -> ChatRequest:
    """Checks the parameters of a translated request, and fills in the defaults.

    Args:
        exchange: The request. Its numbers are finite and its texts whole.
        max_tokens: Limit of tokens where it names none.
        media_domains: Domains that images and other media may come from.

    Raises:
        APIError: 400; it names the field that is wrong as the client calls it.
    """
    try:
        if not isinstance(model := exchange.chat.get("model"), str) or not model:
            raise APIError(400, "`model` is missing: name a policy (see /v1/models)", param="model")
        dropped_names = check_parameters(exchange.chat)
        options = (ChatBody if exchange.prompt is None else TextBody).of(exchange.chat)
        check_media(exchange.chat.get("messages") or [], media_domains)
        if options.stream and options.n > 1:
            raise APIError(400, "streaming with n > 1 is not offered: use n = 1, or do not stream", param="n")
    except APIError as error:
        if (ours := error.param) is None or (theirs := exchange.names.get(ours)) is None:
            raise
        message = error.message.replace(f"`{ours}", f"`{theirs}", 1)
        raise APIError(error.status, message, code=error.code, param=theirs) from None
    body = exchange.chat
    if body.get("messages"):
        body = {**body, "messages": complete_calls(body["messages"])}
    sampling = Sampling(
        temperature=effective_temperature(options.temperature),
        top_p=options.top_p,
        top_k=max(options.top_k, 0),
        min_p=options.min_p,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        repetition_penalty=options.repetition_penalty,
        max_tokens=options.max_completion_tokens or options.max_tokens or max_tokens,
        n=options.n,
        seed=options.seed,
    )
    return ChatRequest(body, options, sampling, sorted({*dropped_names, *exchange.dropped_names}), exchange)
