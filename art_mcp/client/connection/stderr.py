"""Reads the stderr of a server. Its end is kept for error messages."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TextIO

log = logging.getLogger("art_mcp")

MAX_TEXT = 65_536
"""Number of bytes at the end of stderr that are kept. Loggers draw the trace of a single exception with 10,000."""

_STEP = 0.01
"""Seconds between two looks at whether the reader has got more."""

_WAIT = 0.1
"""Seconds to wait for the reader. What a server wrote before its answer is in the pipe when the answer comes."""

_END = 1.0
"""Seconds to wait, when the server has ended, for what it wrote last. A process that it started may hold the pipe."""


class Stderr:
    """Reads from a pipe continuously and keeps the last MAX_TEXT bytes, so that the server never blocks on a full pipe.

    A thread reads: the event loop of Windows cannot wait for a pipe that a child process inherits.

    Args:
        file: The end of the pipe that the server writes to.

    Attributes:
        size: Number of bytes that were read until now.
    """

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.size = 0
        self._end = b""

    def read(self, pipe: int) -> None:
        """Reads until nobody holds the other end, and logs what it reads at level DEBUG."""
        with os.fdopen(pipe, "rb", buffering=0) as source:
            while data := source.read(65536):
                self._end = (self._end + data)[-MAX_TEXT:]
                self.size += len(data)
                log.debug("%s", data.decode(errors="replace").rstrip())

    def last_line(self) -> str:
        """The last line that is not blank; of a Python traceback, this is the error. Empty: nothing was written."""
        lines = [line.strip() for line in self._end.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else ""

    async def since(self, size: int) -> str:
        """What was written since `size` was so, or the last lines of it, MAX_TEXT bytes at most.

        It waits for the reader, at most _WAIT seconds.

        Args:
            size: An earlier value of `size`.
        """
        before, quiet = size, 0.0
        end = time.monotonic() + _WAIT
        while time.monotonic() < end and not (self.size > size and quiet >= 2 * _STEP):
            await asyncio.sleep(_STEP)
            quiet = quiet + _STEP if self.size == before else 0.0
            before = self.size
        text = self._end
        count = self.size - size
        if count > len(text):
            text = text.partition(b"\n")[2]  # the first line may have lost its beginning
        return text[-count:].decode(errors="replace") if count else ""


@asynccontextmanager
async def read_stderr() -> AsyncIterator[Stderr]:
    """Opens a pipe for the stderr of a child process.

    Yields:
        The reader of the pipe. Give its `file` to the child process.
    """
    read, write = os.pipe()
    stderr = Stderr(os.fdopen(write, "w", encoding="utf-8"))
    reader = threading.Thread(target=stderr.read, args=(read,), name="art-mcp-stderr", daemon=True)
    reader.start()
    try:
        yield stderr
    finally:
        stderr.file.close()
        await asyncio.to_thread(reader.join, _END)
