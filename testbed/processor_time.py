"""Runs a Python module, and measures on which parts of the program its process spends processor time.

    python -m testbed.processor_time OUTPUT python -m MODULE ARGUMENTS…

After every MILLISECONDS of processor time, what each thread has used since is counted for the part of the program in
which it is: the innermost frame that lies below one of the folders of PARTS. Upon SIGUSR1 the totals are written to
OUTPUT as JSON: seconds by part. The sum is what the process has used since its begin, but for threads without Python.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

MILLISECONDS = 2.0
PARTS = {
    "trainer_server/ledger/": "ledger",
    "trainer_server/common/jsonl": "JSON",
    "trainer_server/wire/": "JSON",
    "trainer_server/engines/vllm/replies": "JSON",
    "/json/": "JSON",
    "trainer_server/engines/connection": "HTTP to engines",
    "/aiohttp/": "HTTP to engines",
    "trainer_server/gateway/": "gateway",
    "trainer_server/engines/": "gateway",
    "trainer_server/policies/": "gateway",
    "trainer_server/server/access/": "HTTP to clients",
    "trainer_server/server/routes/": "HTTP to clients",
    "/fastapi/": "HTTP to clients",
    "/starlette/": "HTTP to clients",
    "/uvicorn/protocols/": "HTTP to clients",
}
"""By what a file's path has in it. A frame that is in none of them counts for the one that called it."""
REST = "event loop and others"


class ProcessorTime:
    """Processor time by part.

    Args:
        output: The file that gets the totals.
        parts: The parts, as PARTS has them.
    """

    def __init__(self, output: Path, parts: Mapping[str, str]) -> None:
        self._output, self._part_by_word = output, parts
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._used: dict[int, float] = {}
        """By thread: its processor time at the last sample."""
        self._parts: dict[str, str | None] = {}

    def start(self) -> None:
        """Begins to measure."""
        signal.signal(signal.SIGPROF, self._sample)
        signal.signal(signal.SIGUSR1, self._write)
        signal.setitimer(signal.ITIMER_PROF, MILLISECONDS / 1000, MILLISECONDS / 1000)

    def stop(self) -> None:
        """Ends the measurement."""
        signal.setitimer(signal.ITIMER_PROF, 0)

    def totals(self) -> dict[str, float]:
        """Seconds by part, until now."""
        self._sample(signal.SIGPROF, sys._getframe(1))
        return dict(self._seconds)

    def _sample(self, _signal: int, frame: FrameType | None) -> None:
        frames = {**sys._current_frames(), threading.get_ident(): frame}
        for thread, inner in frames.items():
            try:
                used = time.clock_gettime(time.pthread_getcpuclockid(thread))
            except OSError:  # it has ended
                continue
            self._seconds[self._part(inner)] += used - self._used.get(thread, 0.0)
            self._used[thread] = used

    def _part(self, frame: FrameType | None) -> str:
        while frame is not None:
            if (part := self._part_of(frame.f_code.co_filename)) is not None:
                return part
            frame = frame.f_back
        return REST

    def _part_of(self, path: str) -> str | None:
        if path not in self._parts:
            self._parts[path] = next((part for word, part in self._part_by_word.items() if word in path), None)
        return self._parts[path]

    def _write(self, signal_number: int, frame: FrameType | None) -> None:
        self._sample(signal_number, frame)
        partial = self._output.with_suffix(".partial")
        partial.write_text(json.dumps(self._seconds))
        os.replace(partial, self._output)


def parts_of(pid: int, output: Path, patience: float = 60.0) -> dict[str, float]:
    """The totals of a process that runs under this module.

    Raises:
        TimeoutError: It does not write them.
    """
    output.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + patience
    while not output.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{output} was not written in {patience:.0f} s")
        time.sleep(0.01)
    return dict(json.loads(output.read_text()))


def main() -> None:
    output, (_python, _flag, module, *arguments) = Path(sys.argv[1]), sys.argv[2:]
    sys.argv = [module, *arguments]
    ProcessorTime(output, PARTS).start()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
