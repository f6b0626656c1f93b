"""Rollouts have an owner: the token that used one first. Others may use it if they have scope train."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from starlette.types import Scope as ASGIScope

from trainer_server.gateway.errors import APIError
from trainer_server.ledger.base import ErasesCompletions, Ledger
from trainer_server.ledger.rollouts import RolloutRepository
from trainer_server.server.access.scopes import token_of
from trainer_server.server.access.tokens import Scope

MOST = 200
"""Characters of a rollout's id. Longer ones, which the gateway refuses, get no owner."""


class RolloutOwners:
    """Knows whose a rollout is. A rollout that began before there were owners has none, and every token may use it.

    Args:
        book: Where the owners are.
        ledger: Has the completions of rollouts that began before.
    """

    def __init__(self, book: RolloutRepository, ledger: Ledger) -> None:
        self._book, self._ledger = book, ledger

    async def check(self, scope: ASGIScope, rollouts: Iterable[str], *, begins: bool) -> None:
        """Lets a request use rollouts.

        Args:
            scope: Of the request.
            rollouts: Their ids.
            begins: Whether a rollout that nobody has used belongs to the request's token from now on.

        Raises:
            APIError: 403, one of them belongs to another token, and the request's has not the scope train.
            LedgerError: The owner cannot be read or written.
        """
        if refusals := await self.refusals(scope, rollouts, begins=begins):
            raise APIError(403, next(iter(refusals.values())), code="rollout_of_another", param="rollout")

    async def refusals(self, scope: ASGIScope, rollouts: Iterable[str], *, begins: bool) -> dict[str, str]:
        """Why a request may not use rollouts, by the ids of those that belong to another token; see `check`."""
        token = token_of(scope)
        assert token is not None, "the route has a scope"
        is_trainer = token.scope.covers(Scope.train)
        if is_trainer and not begins:
            return {}
        ids = list(dict.fromkeys(rollouts))
        cache_entries = {rollout: self._book.known_owner(rollout) for rollout in ids}
        owners = {rollout: owner for rollout, (is_cached, owner) in cache_entries.items() if is_cached}
        if missing := [rollout for rollout in ids if rollout not in owners]:
            owners |= await asyncio.to_thread(self._owners, missing, token.name if begins else None)
        if is_trainer:
            return {}
        return {
            rollout: f"rollout {rollout!r:.100} belongs to another token than {token.name!r}: use the token that "
            "registered it or sent its first request, one of scope train, or another id"
            for rollout, owner in owners.items()
            if owner not in (None, token.name)
        }

    def _owners(self, rollouts: Sequence[str], token: str | None) -> dict[str, str | None]:
        """token: whose the rollouts are from now on that nobody has used; None: nobody's."""
        owners = self._book.owners(rollouts)
        new = [rollout for rollout in rollouts if rollout not in owners and len(rollout) <= MOST]
        if new and token is not None:
            owners |= self._book.begin(new, token, self._earlier(new))
        return owners

    def _earlier(self, rollouts: Sequence[str]) -> set[str]:
        """Those of which the ledger has completions."""
        if isinstance(self._ledger, ErasesCompletions):
            return {rollout for rollout in self._ledger.matching(rollouts=rollouts).values() if rollout is not None}
        return {rollout for rollout in rollouts if self._ledger.rollout(rollout)}
