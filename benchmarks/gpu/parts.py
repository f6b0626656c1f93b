"""The parts of benchmarks.gpu, in order of worth, and the process of each."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_server.common.guard import end_group

Row = dict[str, Any]
"""A measured thing: its name at `row`, and its figures."""
_GRACE = 20.0
"""Seconds in which a part ends the servers that it has started."""
_TAIL = 40
"""Lines of what a part has printed last, which are kept where it fails."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one process measures.

    Args:
        name: Its function in the module; what stands behind a "-" is passed to it.
        module: Of benchmarks.gpu.
        seconds: It may take, of a run of 8 minutes.
        gpus: GPUs that it needs. 0: it is measured on CPUs too.
    """

    name: str
    module: str
    seconds: float
    gpus: int = 0


PARTS = (
    Part("exactness", "trainer", 60),
    Part("step-0.6B", "trainer", 60),
    Part("serving", "serving", 150),
    Part("step-1.7B", "trainer", 60),
    Part("learning", "serving", 90),
    Part("sft", "trainer", 30),
    Part("swap", "serving", 60),
    Part("turns", "serving", 90, gpus=1),
    Part("step-4B", "trainer", 60, gpus=1),
    Part("tests", "trainer", 90, gpus=1),
    Part("bits", "trainer", 30, gpus=1),
    Part("several", "serving", 90, gpus=2),
)


@dataclass(frozen=True, slots=True)
class Options:
    """What all parts take.

    Args:
        device: cuda or cpu.
        tiny: Whether sizes are those of a rehearsal.
        model: Directory of real weights that learn. None: those of the embedded model.
        scratch: A directory for files, which all parts share.
    """

    device: str
    tiny: bool
    model: str | None
    scratch: Path

    @property
    def flags(self) -> list[str]:
        return [
            *("--device", self.device, "--scratch", str(self.scratch)),
            *(["--tiny"] if self.tiny else []),
            *(["--model", self.model] if self.model else []),
        ]


def skip_reason(part: Part, gpus: int) -> str | None:
    """Why a part cannot be measured here; None: it can."""
    if part.gpus > gpus:
        return f"it needs {part.gpus} GPU{'s' if part.gpus > 1 else ''}, and {gpus} can be used"
    return None


def run_part(part: Part, options: Options, seconds: float, on_row: Callable[[Row], None]) -> Row:
    """Measures a part in a process of its own, and ends that when its time is over.

    Args:
        part: The part.
        options: Of all parts.
        seconds: It may take.
        on_row: Called with each row as it comes.

    Returns:
        How it ended: `state` ("done", "failed" or "ended after … s"), `seconds`, and `output` where it did not succeed.
    """
    rows, log = (options.scratch / f"{part.name}.{kind}" for kind in ("jsonl", "log"))
    rows.touch()
    command = [sys.executable, "-m", "benchmarks.gpu.child", part.name, "--rows", str(rows), *options.flags]
    begin, done, code = time.monotonic(), 0, None
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        while True:
            code = process.poll()
            whole = rows.read_bytes().rpartition(b"\n")[0].splitlines()
            for line in whole[done:]:
                on_row(json.loads(line))
            done = len(whole)
            if code is not None or time.monotonic() - begin > seconds:
                break
            time.sleep(0.2)
    finally:
        end_group(process.pid, grace=_GRACE)
        process.wait()
    took = round(time.monotonic() - begin, 1)
    if code == 0:
        return {"state": "done", "seconds": took}
    state = "failed" if code is not None else f"ended after {seconds:.0f} s"
    return {"state": state, "seconds": took, "output": log.read_text(errors="replace").splitlines()[-_TAIL:]}
