"""A copy of a world with a server that runs in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from art_mcp.client.connection.sdk import Progress, Stdio
from art_mcp.client.connection.session import Session
from art_mcp.worlds.world import Copy
from trainer_server.wire import MCPError


@dataclass(frozen=True, slots=True)
class Ready:
    """A copy with a server that runs in it.

    Args:
        copy: The copy.
        target: The server, with the paths of the copy.
        session: The open session with it.
    """

    copy: Copy
    target: Stdio
    session: Session

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None) -> dict[str, Any]:
        """Sends a request. The caller sees aliases instead of the copy's paths. Raises MCPError."""

        async def forward_progress(at: float, total: float | None, message: str | None) -> None:
            if progress:
                await progress(at, total, self.copy.from_copy(message))

        try:
            answer = await self.session.request(method, self.copy.to_copy(dict(params)), progress and forward_progress)
        except MCPError as error:
            raise MCPError(self.copy.from_copy(str(error)), failure=error.failure, code=error.code) from error
        aliases: dict[str, Any] = self.copy.from_copy(answer)
        return aliases
