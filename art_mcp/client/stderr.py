"""What a server writes to its stderr: read as it comes, the end of it kept for error messages."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TextIO

log = logging.getLogger("art_mcp")

KEPT = 2_000
"""Bytes of its end."""


class Stderr(asyncio.Protocol):
    """The end of what was written. A server that writes without end costs no memory, and never blocks."""

    def __init__(self) -> None:
        self._end = b""
        self.file: TextIO

    def data_received(self, data: bytes) -> None:
        self._end = (self._end + data)[-KEPT:]
        log.debug("%s", data.decode(errors="replace").rstrip())

    def last_line(self) -> str:
        """The last line that says something: of a Python traceback, the error."""
        lines = [line.strip() for line in self._end.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else ""


@asynccontextmanager
async def read_stderr() -> AsyncIterator[Stderr]:
    """A pipe whose end `file` is given to a child."""
    theirs, ours = Stderr(), None
    read, write = os.pipe()
    with os.fdopen(write, "w") as theirs.file, os.fdopen(read, "rb", buffering=0) as pipe:
        try:
            ours, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: theirs, pipe)
            yield theirs
        finally:
            if ours:
                ours.close()
