"""What a client sends: the requests that reach a server, noted on their way in."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

ANSWERING = re.compile(r"/(chat/completions|responses|messages|completions)$")
"""Paths at which a model answers."""


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request of a client."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def api(self) -> str:
        """The path after `/v1`."""
        return self.path.rpartition("/v1")[2]

    @property
    def rollout(self) -> str | None:
        """The rollout that the request belongs to, by its address or by its header."""
        found = re.match(r"/rollouts/([^/]+)/v1/", self.path)
        return found[1] if found else self.headers.get("x-art-rollout")

    @property
    def streams(self) -> bool:
        """Whether the client asked for a stream."""
        return bool(self.body.get("stream"))


@dataclass(slots=True)
class RequestLog:
    """ASGI middleware that notes the requests at which a model answers.

    Args:
        app: What answers them.
        requests: Where they are noted.
    """

    app: Any
    requests: list[SentRequest]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not ANSWERING.search(scope["path"]):
            await self.app(scope, receive, send)
            return
        parts: list[bytes] = []

        async def noted() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                parts.append(message.get("body", b""))
                if not message.get("more_body"):
                    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
                    self.requests.append(SentRequest(scope["path"], headers, json.loads(b"".join(parts) or b"{}")))
            return message

        await self.app(scope, noted, send)
