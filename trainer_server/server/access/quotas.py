"""Limits of an access token: requests in flight, and tokens of prompts and answers in a minute."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from starlette.types import ASGIApp, Receive, Scope, Send

from trainer_server.gateway.errors import APIError
from trainer_server.server.access.layers import Layer
from trainer_server.server.access.scopes import token_of
from trainer_server.server.access.tokens import Token
from trainer_server.wire import Completion
from trainer_server.wire.text import quantity

_token: ContextVar[Token | None] = ContextVar("quota_token", default=None)
"""The token of the request that is answered here. Tasks that the answer begins inherit it."""


class Quotas:
    """Counts requests, and tokens of prompts and answers, of access tokens with limits. Limits of access tokens that
    were created anew count from zero.

    The requests of all access tokens of one owner are counted together, and each token is held to its own limits. So a
    person gets no more by having several tokens.

    The tokens of an answer are known when it ends. So a request is let through while the last minute has tokens left,
    and what its answer takes beyond them is waited for by later requests.

    Args:
        clock: Gives the time, seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._in_flight: Counter[str] = Counter()
        """By whom is counted."""
        self._rests: defaultdict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
        """By whom is counted, and by limit: tokens that remain, and when that was so."""

    @contextmanager
    def admit(self, token: Token) -> Iterator[None]:
        """Counts one request while the context is open.

        Raises:
            APIError: 429, the token has no requests, or no tokens, left.
        """
        who, most = _account_of(token), token.requests_in_flight
        together = f", those of {token.owner!r} counted together" if token.owner else ""
        if most is not None and self._in_flight[who] >= most:
            message = (
                f"the token {token.name!r} has {quantity(most, 'request')} in flight, as many as it may have"
                f"{together}: ask again when one of them has ended"
            )
            raise APIError(429, message, code="quota_requests", retry_after=1)
        if token.tokens_per_minute is not None and (rest := self._rest(who, token.tokens_per_minute)) <= 0:
            wait = math.ceil((1 - rest) * 60 / token.tokens_per_minute)
            message = (
                f"the token {token.name!r} has used its {token.tokens_per_minute:,} tokens of the last minute (prompts "
                f"and answers{together}): ask again in {wait} s"
            )
            raise APIError(429, message, code="quota_tokens", retry_after=wait)
        self._in_flight[who] += 1
        reset_token = _token.set(token)
        try:
            yield
        finally:
            _token.reset(reset_token)
            self._in_flight[who] -= 1
            if not self._in_flight[who]:
                del self._in_flight[who]

    def count_tokens(self, completions: Sequence[Completion]) -> None:
        """Counts the tokens of an answer: those of its prompt once, and those of all choices.

        Args:
            completions: The choices of one answer.
        """
        token = _token.get()
        if token is None or not completions:
            return
        self.charge(token, tokens_of(completions))

    def charge(self, token: Token, count: int) -> None:
        """Counts tokens of prompts and answers.

        Args:
            token: The access token of the request.
            count: How many.
        """
        who = _account_of(token)
        limits = {*self._rests[who], *([token.tokens_per_minute] if token.tokens_per_minute else [])}
        for most in limits:
            self._rests[who][most] = self._rest(who, most) - count, self._clock()
        if not limits:
            del self._rests[who]

    def _rest(self, who: str, most: int) -> float:
        """The tokens that remain of a limit now, negative where an answer took more."""
        rest, then = self._rests[who].setdefault(most, (float(most), self._clock()))
        return min(float(most), rest + (self._clock() - then) * most / 60)


def tokens_of(completions: Sequence[Completion]) -> int:
    """The tokens of an answer's prompt, once, and of all its choices."""
    return len(completions[0].prompt_token_ids) + sum(len(completion.token_ids) for completion in completions)


def is_counted(token: Token) -> bool:
    """Whether the requests and tokens of an access token are counted: it has a limit, or another one of its owner may
    have one."""
    return (token.owner, token.requests_in_flight, token.tokens_per_minute) != (None, None, None)


def _account_of(token: Token) -> str:
    """By whom a token's requests are counted: its owner, or the token itself."""
    return token.digest if token.owner is None else f"owner {token.owner}"


class QuotaLayer(Layer):
    """Answers 429 to model requests, those below `/v1/` that are posted, beyond the limits of their token.

    Args:
        app: The application behind it.
        quotas: The limits, and what was used of them.
    """

    def __init__(self, app: ASGIApp, quotas: Quotas) -> None:
        super().__init__(app)
        self._quotas = quotas

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = token_of(scope)
        if token is None or scope["method"] != "POST" or not scope["path"].startswith("/v1/"):
            await self.app(scope, receive, send)
            return
        with self._quotas.admit(token):
            await self.app(scope, receive, send)
