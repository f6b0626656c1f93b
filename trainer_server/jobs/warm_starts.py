"""Renders the warm start that is next, as soon as an engine can; a cancellation stops it."""

from __future__ import annotations

import asyncio
import logging

from trainer_server.engines.pool import Engines
from trainer_server.jobs.board import JobBoard, Trained
from trainer_server.jobs.rendering import Renderer
from trainer_server.ledger.base import Ledger
from trainer_server.wire import EngineError, SFTRequest, TrainingError

log = logging.getLogger("trainer_server")

_RETRY = 1.0
"""Seconds until an engine that went away is asked again."""


class WarmStarts:
    """Writes the rows that warm starts imitate.

    Args:
        board: Where the requests are and the rows go.
        engines: They render conversations.
        ledger: Holds the completions of trajectories.
        tokenizer: Fingerprint of the tokenizer.
        engine_wait: Seconds to wait for an engine that is starting or restarting.
    """

    def __init__(
        self, board: JobBoard, engines: Engines, ledger: Ledger, *, tokenizer: str, engine_wait: float
    ) -> None:
        self._board, self._engines, self._ledger = board, engines, ledger
        self._tokenizer, self._engine_wait = tokenizer, engine_wait
        self._rendering: asyncio.Task[None] | None = None

    async def render(self, job_id: str) -> None:
        """Returns once a warm start is rendered, or cannot be, or is stopped."""
        rendering = self._rendering = asyncio.create_task(self._render(job_id), name=f"render-{job_id}")
        try:
            await asyncio.wait({rendering})
            if not rendering.cancelled():
                rendering.result()
        finally:
            self._rendering = None
            rendering.cancel()  # where the server stops

    def stop(self) -> None:
        """Stops the rendering that is under way. Does nothing if there is none."""
        if self._rendering:
            self._rendering.cancel()

    async def _render(self, job_id: str) -> None:
        """Writes the rows as soon as an engine is ready. Where they cannot be made, reports the job as failed."""
        request = self._board.file(job_id).request
        assert isinstance(request, SFTRequest)
        while not self._board.ready(job_id) and self._board.trained(job_id) is None:
            engine = next((candidate for candidate in self._engines if candidate.ready), self._engines[0])
            try:
                await engine.wait_ready(self._engine_wait)
                renderer = Renderer(engine)
                rows = await renderer.demonstrations(request, self._ledger, self._tokenizer)
                await asyncio.to_thread(self._board.write_rows, job_id, rows)
            except EngineError as error:
                log.warning("%s waits for the engine: %s", job_id, error)
                await asyncio.sleep(_RETRY)
            except TrainingError as error:
                log.error("%s failed: %s", job_id, error)
                await asyncio.to_thread(self._board.report, job_id, Trained(error=str(error)))
            except Exception as error:  # an engine that others run may raise anything: recorded; later jobs go on
                log.exception("%s failed", job_id)
                failed = Trained(error=f"{type(error).__name__}: {error}")
                await asyncio.to_thread(self._board.report, job_id, failed)
