"""Ids of rollouts in paths. Each has a base URL: `/rollouts/{id}/v1/…` is `/v1/…` with the id in the header."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from trainer_server.gateway.errors import APIError
from trainer_server.server.access.layer import Layer
from trainer_server.wire import ROLLOUT_PATTERN
from trainer_server.wire.headers import ROLLOUT

_PATH = re.compile(r"/rollouts/([^/]*)(/v1(?:/.*)?)", re.DOTALL)
_HEADER = ROLLOUT.lower().encode()
_SLASH = re.compile("%2f", re.IGNORECASE)


class RolloutRoute(APIRoute):
    """A route whose path names a rollout. The id came in a header perhaps, and may have slashes: they are `%2F` in the
    path. Servers decode paths before routes see them, so that such an id would be several parts."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """See Starlette's `Route.matches`."""
        raw = (scope.get("raw_path") or b"").decode("latin-1")
        if not _SLASH.search(raw):
            return super().matches(scope)
        path = "%2F".join(unquote(part).replace("%", "%25") for part in _SLASH.split(raw))
        match, matched = super().matches({**scope, "path": path})
        params: dict[str, Any] = matched.get("path_params", {})
        return match, {**matched, "path_params": {name: unquote(value) for name, value in params.items()}}


class RolloutPaths(Layer):
    """Takes the id of a rollout out of the path, so that a client needs nothing but a base URL.

    OpenAI's clients get `/rollouts/{id}/v1` as their base URL, Anthropic's `/rollouts/{id}`. Every route of the gateway
    works under it. The id in the path counts, whatever the header says.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if match := _PATH.fullmatch(scope["path"]):
            rollout, path = match.groups()
            if re.fullmatch(ROLLOUT_PATTERN, rollout) is None:
                raise APIError(
                    400,
                    f"{rollout[:50]!r} cannot be the id of a rollout in an address: use 1 to 200 letters, digits, `.`, "
                    "`_`, `:`, `~` and `-`, the first one a letter or a digit",
                    code="invalid_rollout",
                    param="rollout",
                )
            headers = [(name, value) for name, value in scope["headers"] if name.lower() != _HEADER]
            scope = {
                **scope,
                "path": path,
                "raw_path": path.encode(),
                "headers": [*headers, (_HEADER, rollout.encode())],
            }
        await self.app(scope, receive, send)
