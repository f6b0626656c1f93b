"""Reads the stderr of a server. Its end is kept for error messages."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TextIO

log = logging.getLogger("art_mcp")

KEPT = 2_000
"""Number of bytes at the end of stderr that are kept."""


class Stderr(asyncio.Protocol):
    """Reads from a pipe continuously and keeps the last KEPT bytes, so that the server never blocks on a full pipe.

    `file` is the end of the pipe that the server writes to. `read_stderr` sets it.
    """

    def __init__(self) -> None:
        self._end = b""
        self.file: TextIO

    def data_received(self, data: bytes) -> None:
        """Keeps the data and logs it at level DEBUG."""
        self._end = (self._end + data)[-KEPT:]
        log.debug("%s", data.decode(errors="replace").rstrip())

    def last_line(self) -> str:
        """The last line that is not blank; of a Python traceback, this is the error. Empty: nothing was written."""
        lines = [line.strip() for line in self._end.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else ""


@asynccontextmanager
async def read_stderr() -> AsyncIterator[Stderr]:
    """Opens a pipe for the stderr of a child process.

    Yields:
        The reader of the pipe. Give its `file` to the child process.
    """
    stderr, transport = Stderr(), None
    read, write = os.pipe()
    with os.fdopen(write, "w") as stderr.file, os.fdopen(read, "rb", buffering=0) as pipe:
        try:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: stderr, pipe)
            yield stderr
        finally:
            if transport:
                transport.close()
