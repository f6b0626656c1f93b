"""What the pages read: the server, its list of runs, the texts of its tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from trainer_server.ledger.run_list import RunList
from trainer_server.server.dashboard.follow import Follower
from trainer_server.server.dashboard.texts import TokenTexts
from trainer_server.server.server import Server

_PATIENCE = 0.05
"""Seconds that a page waits for the list of runs to be brought up to date."""


class Sources:
    """What the pages read.

    Args:
        server: The server.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.runs = RunList(server.runs)
        self.follower = Follower(server.ledger, server.jobs.board, server.runs)
        self.texts = TokenTexts(Path(server.identity.base.path), server.engines)

    async def look(self) -> None:
        """Brings the list of runs up to date, as far as that takes a moment only."""
        await self.follower.look(_PATIENCE)


def get_sources(request: Request) -> Sources:
    """The sources of an application, made when the first page asks for them."""
    state = request.app.state
    if not hasattr(state, "sources"):
        state.sources = Sources(state.server)
    sources: Sources = state.sources
    return sources


SourcesDep = Annotated[Sources, Depends(get_sources)]
"""What a page reads, as a parameter of its route."""
